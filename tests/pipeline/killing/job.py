"""A job of the pipeline as a command, in a process group of its own: Python, Spark's driver, and on `local[N]` its workers.

RULES    1. What it says goes to files: a pipe would be held open by a JVM that outlives its Python.
         2. Killed is the whole group, or Python alone: its JVM, in the middle of something, has to see that and end. Or the JVM
            alone: Python has to say so in a sentence.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.support.child_process import mortal

ROOT = Path(__file__).parents[3]
LIMIT_S = 900.0
QUICK_JVM = {"JAVA_TOOL_OPTIONS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
"""It lives for seconds."""
KILLED = -signal.SIGKILL


class Job:
    """One run."""

    def __init__(
        self,
        words: Sequence[str],
        log: Path,
        die_at: int = 0,
        below: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        program = ["tests.pipeline.killing.driver", str(die_at), str(below)]
        self._said = log.with_suffix(".out")
        self._complained = log.with_suffix(".err")
        with self._said.open("wb") as out, self._complained.open("wb") as errors:
            self._process = subprocess.Popen(
                mortal([sys.executable, "-m", *program, "pipeline", *words, "--json"]),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                cwd=ROOT,
                env={**os.environ, **QUICK_JVM, **(environment or {})},
                start_new_session=True,
            )

    @property
    def is_over(self) -> bool:
        """Whether its Python has ended."""
        return self._process.poll() is not None

    @property
    def complaints(self) -> str:
        """What it said on standard error."""
        return self._complained.read_text(errors="replace")

    def report(self) -> dict[str, Any]:
        """Its last word."""
        said: dict[str, Any] = json.loads(self._said.read_text().splitlines()[-1])
        return said

    def wait(self) -> int:
        """Wait until it ends; its exit code."""
        return self._process.wait(LIMIT_S)

    def kill_python(self) -> int:
        """SIGKILL for its Python; its JVM is still there for a moment. How its Python ended."""
        self._process.kill()
        return self._process.wait()

    def kill_jvm(self) -> bool:
        """SIGKILL for what its Python started; False when that was nothing as yet."""
        try:
            started = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return False
        for process in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return bool(started)

    def kill(self) -> int:
        """SIGKILL for all that is left of it; how its Python ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait()
