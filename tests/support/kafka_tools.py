"""Apache Kafka's command-line tools, all in one JVM: each takes tenths of a second instead of seconds (java/Tools.java)."""

from __future__ import annotations

import base64
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from tests.support.kafka import compile_java, run_tool, tool_command

SOURCE = Path(__file__).parents[1] / "conformance" / "java" / "Tools.java"


class Outcome(NamedTuple):
    """The exit code and the output of a tool."""

    code: int
    out: str
    err: str

    @property
    def stdout(self) -> str:
        """The output; asserts that the tool succeeded."""
        assert self.code == 0, f"exit {self.code}\n{self.out}\n{self.err}"
        return self.out


def run_in_own_jvm(cls: str, *args: object, stdin: str | None = None) -> Outcome:
    """Runs a tool in its own JVM."""
    done = run_tool(cls, *args, input=stdin)
    return Outcome(done.returncode, done.stdout, done.stderr)


class KafkaTools:
    """The JVM, until the end of the `with` block."""

    def __enter__(self) -> Self:
        command = self._command()
        self._stderr = tempfile.TemporaryFile()
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            self._stderr.seek(0)
            errors = self._stderr.read().decode(errors="replace")
            self.__exit__(None, None, None)
            raise RuntimeError(f"the JVM did not start:\n{errors}")
        return self

    def _command(self) -> list[str]:
        return tool_command("Tools", classes=compile_java(SOURCE))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._stderr.close()

    def run(self, cls: str, *args: object) -> Outcome:
        """Runs a tool to its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        words = b" ".join(base64.b64encode(str(word).encode()) for word in (cls, *args))
        self._process.stdin.write(words + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the JVM ended in {cls}"
        code, out, err = line.split(b" ")
        return Outcome(int(code), base64.b64decode(out).decode(), base64.b64decode(err).decode())
