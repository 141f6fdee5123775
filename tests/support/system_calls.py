"""The system calls of a running process, by strace.

RULES    1. `watched` starts when strace is attached; `calls` is complete after the `with` block. It ends when all threads of
            the process sleep: a client can have a response before strace has the end of the call that sent it.
         2. A call interrupted in the trace by one of another thread is joined.
NOT HERE The expected calls (the tests).
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.waiting import until

SENDS = ("sendfile", "sendto", "sendmsg", "write", "writev", "splice")
READS = ("read", "readv", "pread64", "preadv", "preadv2", "mmap")

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")

_LINE = re.compile(r"(?P<thread>\d+) +(?P<text>.*)")
_RESUMED = re.compile(r"<\.\.\. \w+ resumed>(?P<rest>.*)")
_CALL = re.compile(r"(?P<name>\w+)\((?P<arguments>.*)\) += (?P<result>-?\d+|0x[0-9a-f]+)")
_UNFINISHED = " <unfinished ...>"


class Call(NamedTuple):
    """One call and its result; -1 for any failure."""

    thread: int
    name: str
    arguments: str
    result: int

    @property
    def is_on_socket(self) -> bool:
        """Whether its first descriptor is a socket."""
        return re.match(r"\d+<(socket|TCP)", self.arguments) is not None


def parse(text: str) -> Iterator[Call]:
    """The calls in an output file of strace -f."""
    begun: dict[str, str] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        thread, messages = match["thread"], match["text"]
        if messages.endswith(_UNFINISHED):
            begun[thread] = messages.removesuffix(_UNFINISHED)
            continue
        resumed = _RESUMED.match(messages)
        if resumed is not None:
            messages = begun.pop(thread, "") + resumed["rest"]
        call = _CALL.match(messages)
        if call is not None:
            yield Call(int(thread), call["name"], call["arguments"], int(call["result"], 0))


@contextlib.contextmanager
def watched(pid: int, names: tuple[str, ...], output: Path, *, shown: int = 0) -> Iterator[list[Call]]:
    """Trace these calls of all threads during the block; strings are truncated to `shown` characters."""
    trace = "trace=" + ",".join(names)
    command = ["strace", "-f", "-y", "-s", str(shown), "-e", trace, "-o", str(output), "-p", str(pid)]
    calls: list[Call] = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        messages = tracer.stderr.readline()
        if "attached" not in messages:
            tracer.kill()
            pytest.skip(f"strace cannot watch another process here: {messages.strip()}")
        try:
            yield calls
            until(lambda: _is_asleep(pid), "all threads of the process sleep")
        finally:
            tracer.terminate()
            tracer.communicate()
    calls += parse(output.read_text())


def _is_asleep(pid: int) -> bool:
    """Whether no thread of a process runs, or is held by its tracer."""
    try:
        states = [(thread / "status").read_text() for thread in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:  # a thread has ended meanwhile
        return False
    return all("\nState:\tS" in state for state in states)


def total(calls: list[Call], names: tuple[str, ...], path_end: str = "", *, on_sockets: bool = False) -> int:
    """The bytes moved by successful calls of these names, on files with this path suffix, or on sockets."""
    return sum(
        call.result
        for call in calls
        if call.name in names
        and call.result > 0
        and (not path_end or f"{path_end}>" in call.arguments)
        and (not on_sockets or call.is_on_socket)
    )
