"""Runs verbs: in this process (`Verbs`), or as processes of their own (`barnabas`, `running`)."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from typing import Any, NamedTuple
from unittest import mock

from barnabas.__main__ import main

COMMAND = (sys.executable, "-m", "barnabas")
TIMEOUT_S = 120


class Ended(NamedTuple):
    """What a verb printed, and its exit code."""

    code: int
    out: str
    err: str

    def rows(self) -> list[dict[str, Any]]:
        """The objects of --json; asserts that the verb succeeded."""
        assert self.code == 0, self
        return [json.loads(line) for line in self.out.splitlines()]


class Verbs:
    """Verbs at one cluster."""

    def __init__(self, bootstrap: str, *options: str) -> None:
        self.bootstrap = bootstrap
        self._options = ("-b", bootstrap, *options)

    def run(self, line: str, stdin: str = "") -> Ended:
        """Runs `topics list ...`."""
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch("sys.stdin", io.StringIO(stdin)),
        ):
            code = main([*line.split(), *self._options])
        return Ended(code, out.getvalue(), err.getvalue())

    def rows(self, line: str, stdin: str = "") -> list[dict[str, Any]]:
        """Runs a verb with --json; returns its objects."""
        return self.run(f"{line} --json", stdin).rows()

    def refused(self, line: str, stdin: str = "") -> str:
        """Runs a verb that fails; returns its sentence."""
        ended = self.run(line, stdin)
        assert ended.code == 1, ended
        assert ended.err.startswith("barnabas: "), ended
        return ended.err.removeprefix("barnabas: ").strip()


def barnabas(*arguments: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    """Runs a verb to its end."""
    return subprocess.run([*COMMAND, *arguments], input=stdin, capture_output=True, timeout=TIMEOUT_S, check=False)


def running(bootstrap: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Starts a verb with a connection to a cluster; all its streams are pipes."""
    return subprocess.Popen(
        [*COMMAND, arguments[0], "-b", bootstrap, *arguments[1:]],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
    )  # fmt: skip


def values(bootstrap: str, *arguments: str) -> list[str]:
    """The values that `consume` prints."""
    done = barnabas("consume", "-b", bootstrap, *arguments)
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["value"] for line in done.stdout.splitlines()]
