"""A broker of one's own: started as a daemon in a process of its own, stopped with the `with` block.

    with barnabas.Broker() as broker:
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap)

RULES    1. Nothing of the daemon is imported here: it is another process, reached through its command line, its ready
            line and Kafka's protocol.
         2. When the daemon does not start, the error is the sentence that the daemon itself said.
         3. No daemon outlives the process that started it, however that process ends: the daemon holds the reading
            end of a pipe whose writing end only its starter has. (A parent-death signal would fire when the starting
            *thread* ends.)
         4. What lies in a temporary directory goes when nobody can ask for it any more: with `close()` or the `with`
            block, with a broker object that is dropped while no daemon runs, and at the latest with this process.
         5. A restarted broker has the port and the data of the one before.
         6. Only the standard library is used.
NOT HERE The pytest fixtures (`pytest_plugin.py`), the daemon's side of the pipe (`__main__.py`).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

READY = re.compile(r"^barnabas ready on (?P<host>.+):(?P<port>\d+) \(")
PARENT_PIPE = "BARNABAS_PARENT_PIPE"
MAIN = Path(__file__).with_name("__main__.py")
LAST_LINES = 15
SENTENCE = "barnabas: "
"""How the daemon marks what it says to whoever started it, among its log lines."""


class BrokerError(RuntimeError):
    """The daemon did not do what was asked of it; the message says why, in the daemon's own words where it had any."""


class Broker:
    """One Barnabas node, broker and controller, in a process of its own.

    Without `data_dir` its data lie in a temporary directory that goes away with `close()` or the `with` block.
    Port 0 takes a free one. `settings` are Kafka's names, as in `{"num.partitions": 4}`.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        port: int = 0,
        settings: Mapping[str, object] | None = None,
        *,
        host: str = "127.0.0.1",
        arguments: Sequence[str] = (),
        start_timeout_s: float = 30.0,
        stop_timeout_s: float = 30.0,
    ) -> None:
        self.host = host
        self.port = port
        self.settings = {name: _as_text(value) for name, value in (settings or {}).items()}
        self.start_timeout_s = start_timeout_s
        self.stop_timeout_s = stop_timeout_s
        self.ready_line = ""
        self._arguments = list(arguments)
        self._folder = Path(tempfile.mkdtemp(prefix="barnabas-"))
        weakref.finalize(self, _remove, self._folder, os.getpid())
        self.data_dir = self._folder / "data" if data_dir is None else Path(data_dir)
        self.log_path = self._folder / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: int | None = None
        self._log_end = 0

    def __enter__(self) -> Self:
        if self._process is None:
            try:
                self.start()
            except BaseException:
                self.close()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """What a client takes as its bootstrap servers."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The daemon's process id."""
        if self._process is None:
            raise BrokerError("The broker is not running.")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the daemon is there."""
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """All that the daemon has written to standard error so far."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def start(self) -> Self:
        """Start the daemon and wait until it answers requests."""
        self.launch()
        return self.wait_until_ready()

    def launch(self) -> None:
        """Start the daemon; `wait_until_ready` is to follow."""
        if self._process is not None:
            raise BrokerError(f"The broker is running already, as process {self._process.pid}.")
        self._log_end = self.log_path.stat().st_size if self.log_path.exists() else 0
        read_end, write_end = os.pipe()
        try:
            with self.log_path.open("ab") as log:
                self._process = subprocess.Popen(
                    self._command(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=_environment(read_end),
                    pass_fds=(read_end,),
                )
        except BaseException:
            os.close(write_end)
            raise
        finally:
            os.close(read_end)
        self._lifeline = write_end
        _running[self] = os.getpid()

    def wait_until_ready(self) -> Self:
        """Wait until the daemon that was launched answers requests; one that does not is ended."""
        try:
            self._read_ready_line(self._log_end)
        except BaseException:
            self._end(kill=True)
            raise
        return self

    def signal(self, number: int) -> None:
        """Send the daemon a signal, if it is there."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    @property
    def exit_code(self) -> int | None:
        """What the daemon ended with by itself; None while it runs, or when it was not started or was stopped."""
        return None if self._process is None else self._process.poll()

    def stop(self) -> None:
        """Stop cleanly and wait; the data stay, and `start` finds them again."""
        process = self._process
        self._end(kill=False)
        if process is not None and process.returncode != 0:
            raise BrokerError(f"The broker ended with {process.returncode}:\n{self._last_lines(0)}")

    def kill(self) -> None:
        """SIGKILL, as a power cut would; the data stay."""
        self._end(kill=True)

    def restart(self) -> Self:
        """Stop when it is running, then start on the same port and data."""
        if self._process is not None:
            self.stop()
        return self.start()

    def close(self) -> None:
        """Stop and remove what lies in a temporary directory. May be called twice."""
        try:
            self._end(kill=False)
        finally:
            _remove(self._folder, os.getpid())

    def _command(self) -> list[str]:
        # -P: whatever lies in the working directory, it is not imported instead of the standard library or the daemon.
        command = [sys.executable, "-P", str(MAIN), "serve", "--data-dir", str(self.data_dir)]
        if "listeners" not in self.settings:
            command += ["--listen", self.bootstrap]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        return command + self._arguments

    def _read_ready_line(self, log_end: int) -> None:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        deadline = time.monotonic() + self.start_timeout_s
        said = b""
        while b"\n" not in said:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                raise BrokerError(
                    f"The broker was not ready within {self.start_timeout_s:g} s.\n{self._last_lines(log_end)}"
                )
            chunk = os.read(process.stdout.fileno(), 4096)
            if not chunk:
                process.wait()
                words = self._last_words(log_end) or f"it ended with {process.returncode} and no word"
                raise BrokerError(f"The broker did not start: {words}")
            said += chunk
        self.ready_line = said.decode().splitlines()[0]
        match = READY.match(self.ready_line)
        if match is None:
            raise BrokerError(f"The broker's first line is not its ready line: {self.ready_line}")
        self.port = int(match["port"])

    def _end(self, *, kill: bool) -> None:
        process, self._process = self._process, None
        lifeline, self._lifeline = self._lifeline, None
        _running.pop(self, None)
        if process is not None:
            if kill:
                process.kill()
            else:
                process.terminate()
            try:
                process.wait(self.stop_timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        if lifeline is not None:
            with contextlib.suppress(OSError):
                os.close(lifeline)

    def _last_words(self, log_end: int) -> str:
        """The sentence that the daemon ended with; where it had none, the end of its log."""
        lines = self._last_lines(log_end).splitlines()
        sentences = [line.removeprefix(SENTENCE) for line in lines if line.startswith(SENTENCE)]
        return " ".join(sentences) or "\n".join(lines)

    def _last_lines(self, log_end: int) -> str:
        text = self.log_path.read_bytes()[log_end:].decode(errors="replace").strip()
        return "\n".join(text.splitlines()[-LAST_LINES:])


_running: dict[Broker, int] = {}
"""Brokers whose daemon runs, and the process that started it: they are kept, even if nobody else holds them."""


@atexit.register
def _close_all() -> None:
    for broker, starter in list(_running.items()):
        if starter == os.getpid():
            broker.close()


def _remove(folder: Path, owner: int) -> None:
    """Take the folder away, unless this is a fork of the process that it belongs to."""
    if owner == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _environment(read_end: int) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONOPTIMIZE"}
    environment[PARENT_PIPE] = str(read_end)
    return environment
