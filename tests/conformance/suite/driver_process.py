"""A client driver in its own process, controlled by JSON lines.

RULES    1. One request at a time; a response that takes longer than ANSWER_S ends the process.
         2. The driver's standard error is stored, and its end is reported when the driver exits.
         3. No driver outlives its block.
NOT HERE How drivers are built (`clients.py`), the requests (`tables/`).
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
    """The driver exited, or did not answer in time."""


class Unsupported(RuntimeError):
    """The client library has no such function."""


class Refused(RuntimeError):
    """The broker or the client returned an error."""

    def __init__(self, code: int | str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Driver:
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
        """The driver's result; raises `Unsupported`, `Refused` or `DriverEnded`."""
        assert self._process.stdin is not None
        line = json.dumps({"verb": verb, **arguments}).encode() + b"\n"
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise DriverEnded(self._last_output(verb)) from None
        answer = json.loads(self._line(verb, within_s))
        if "unsupported" in answer:
            raise Unsupported(answer["unsupported"])
        if "refused" in answer:
            raise Refused(answer["refused"], answer["message"])
        response: dict[str, Any] = answer["told"]
        return response

    def kill(self) -> None:
        self._process.kill()
        self._forget()

    def stop(self) -> None:
        """Closes its input; kills it if it does not exit."""
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
                raise DriverEnded(self._last_output(verb))
            self._pending += data
        line = bytes(self._pending[:end])
        del self._pending[: end + 1]
        return line

    def _last_output(self, verb: str) -> str:
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
