"""Apache Kafka's command-line tools, all in one JVM: each takes tenths of a second instead of seconds (java/Tools.java)."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import NamedTuple, Self

from tests.support.kafka import compile_java, run_tool, tool_command
from tests.support.line_process import LineProcess

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
        self._process = LineProcess(self._command())
        assert self._process.read_line() == "ready"
        return self

    def _command(self) -> list[str]:
        return tool_command("Tools", classes=compile_java(SOURCE))

    def __exit__(self, *_: object) -> None:
        self._process.stop()

    def run(self, cls: str, *args: object) -> Outcome:
        """Runs a tool to its end."""
        words = " ".join(base64.b64encode(str(word).encode()).decode() for word in (cls, *args))
        code, out, err = self._process.ask(words).split(" ")
        return Outcome(int(code), base64.b64decode(out).decode(), base64.b64decode(err).decode())
