"""A client in a process of its own, driven by lines of JSON.

RULES    1. One question at a time; an answer that does not come within ANSWER_S ends the process.
         2. What a driver says on its standard error is kept, and its end is told when it dies.
         3. No driver outlives the block that holds it.
NOT HERE How drivers are built (`clients.py`), what they are asked (`tables/`).
"""

from __future__ import annotations

import contextlib
import json
import selectors
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

ANSWER_S = 60.0
END_S = 10.0


class DriverEnded(RuntimeError):
    """The driver died, or did not answer in time."""


class Unsupported(RuntimeError):
    """The client cannot do what was asked."""


class Refused(RuntimeError):
    """The broker, or the client itself, said no."""

    def __init__(self, code: int | str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Driver:
    """One running driver."""

    def __init__(self, command: Sequence[str], bootstrap: str) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the driver
        self._process = subprocess.Popen(
            [*command, bootstrap], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
        )
        assert self._process.stdout is not None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self._pending = bytearray()

    def ask(self, verb: str, arguments: Mapping[str, Any], within_s: float = ANSWER_S) -> dict[str, Any]:
        """What the driver tells, or one of the three refusals."""
        assert self._process.stdin is not None
        line = json.dumps({"verb": verb, **arguments}).encode() + b"\n"
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise DriverEnded(self._last_words(verb)) from None
        answer = json.loads(self._line(verb, within_s))
        if "unsupported" in answer:
            raise Unsupported(answer["unsupported"])
        if "refused" in answer:
            raise Refused(answer["refused"], answer["message"])
        told: dict[str, Any] = answer["told"]
        return told

    def kill(self) -> None:
        """SIGKILL: nobody is told goodbye."""
        self._process.kill()
        self._forget()

    def stop(self) -> None:
        """End of input; a driver that does not end by itself is killed."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._forget()

    def _line(self, verb: str, within_s: float) -> bytes:
        deadline = time.monotonic() + within_s
        assert self._process.stdout is not None
        while (end := self._pending.find(b"\n")) < 0:
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                self.kill()
                raise DriverEnded(f"no answer to {verb} within {within_s:.0f} s")
            data = self._process.stdout.read1(1 << 20)  # type: ignore[attr-defined]
            if not data:
                raise DriverEnded(self._last_words(verb))
            self._pending += data
        line = bytes(self._pending[:end])
        del self._pending[: end + 1]
        return line

    def _last_words(self, verb: str) -> str:
        code = self._process.wait(END_S)
        self._errors.seek(0)
        tail = self._errors.read()[-1500:].decode(errors="replace").strip()
        return f"the driver ended with {code} when it was asked {verb}: {tail}"

    def _forget(self) -> None:
        self._process.wait()
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._errors.close()
