"""A program that answers lines on its standard input with lines on its standard output."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


class ProgramEnded(RuntimeError):
    """The program exited instead of answering; the message has its exit code and the end of its errors."""


class LineProcess:
    """The program, until `stop`; one request at a time."""

    def __init__(self, command: Sequence[str], cwd: Path | None = None) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, cwd=cwd, encoding="utf-8"
        )

    def ask(self, line: str) -> str:
        """The first line of the answer."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # then it has ended, which `read_line` reports
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        return self.read_line()

    def read_line(self) -> str:
        """The next line; raises `ProgramEnded` if it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait(10)
            self._errors.seek(0)
            raise ProgramEnded(f"ended with {code}: {self._errors.read().decode(errors='replace')[-3000:].strip()}")
        return line.removesuffix("\n")

    def kill(self) -> None:
        self._process.kill()

    def stop(self) -> None:
        """Closes its input; kills it if it does not end."""
        with self._process:
            assert self._process.stdin is not None
            with suppress(BrokenPipeError):
                self._process.stdin.close()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._errors.close()
