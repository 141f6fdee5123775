"""A job of the pipeline as a command, in its own process group: Python, Spark's driver, and on `local[N]` its workers.

RULES    1. Output goes to files: a JVM that outlives its Python would keep a pipe open.
         2. A kill hits the whole group, or Python alone (its JVM must notice and end), or the JVM alone (Python must report
            it in one sentence).
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
TIMEOUT_S = 900.0
QUICK_JVM = {"JAVA_TOOL_OPTIONS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
"""For JVMs that live a few seconds."""
KILLED = -signal.SIGKILL


class Job:
    def __init__(
        self,
        words: Sequence[str],
        log: Path,
        kill_at: int = 0,
        below: Path | None = None,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = (),
    ) -> None:
        program = program or ("-m", "tests.pipeline.killing.driver", str(kill_at), str(below))
        self._stdout = log.with_suffix(".out")
        self._stderr = log.with_suffix(".err")
        with self._stdout.open("wb") as out, self._stderr.open("wb") as errors:
            self._process = subprocess.Popen(
                mortal([sys.executable, *program, "pipeline", *words, "--json"]),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                cwd=ROOT,
                env={**os.environ, **QUICK_JVM, **(environment or {})},
                start_new_session=True,
            )

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    @property
    def stderr(self) -> str:
        return self._stderr.read_text(errors="replace")

    def report(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads(self._stdout.read_text().splitlines()[-1])
        return values

    def wait(self) -> int:
        return self._process.wait(TIMEOUT_S)

    def kill_python(self) -> int:
        """Kills Python; its JVM lives on for a moment. Returns Python's exit code."""
        self._process.kill()
        return self._process.wait()

    def kill_jvm(self) -> bool:
        """Kills the children of Python. Returns False if there are none."""
        try:
            started = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return False
        for process in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return bool(started)

    def kill(self) -> int:
        """Kills the whole group. Returns Python's exit code."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait()

    def close(self) -> None:
        self.kill()
