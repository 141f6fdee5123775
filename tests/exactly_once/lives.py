"""Programs that are killed and live again, and the folder in which they leave their histories.

RULES    1. A life that fails is followed by another one, as one that was killed is, and one that its library has not come
            back to (`client.py`); how often is told at the end.
         2. None of them outlives the run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.exactly_once.client import FAILED

ROOT = Path(__file__).parents[2]
END_S = 60
STALLED = -signal.SIGALRM

Command = Callable[[int], list[str]]
"""The command line of the life with this number."""


def python(module: str, bootstrap: str, folder: Path, name: str, *arguments: object) -> Command:
    """How a program is started: one of this package, or a module with its whole name."""

    def command(life: int) -> list[str]:
        words = (bootstrap, folder, name, life, *arguments)
        named = module if "." in module else f"tests.exactly_once.{module}"
        return [sys.executable, "-m", named, *map(str, words)]

    return command


class Program:
    """One program, life after life."""

    def __init__(self, name: str, command: Command, log: Path) -> None:
        self.name = name
        self.life = 0
        self.failures = 0
        self.stalls = 0
        self._command = command
        self._log = log
        self._begin()

    def _begin(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command(self.life), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT
            )

    def look(self) -> None:
        """See that it lives."""
        code = self.process.poll()
        if code is None:
            return
        assert code in {FAILED, STALLED}, f"{self.name}, life {self.life}, ended with {code}: see {self._log}"
        if code == STALLED:
            self.stalls += 1
        else:
            self.failures += 1
        self._live_again()

    def last_words(self, folder: Path) -> str:
        """The ends of its log and of its history."""
        files = self._log, folder / f"{self.name}-{self.life}.jsonl"
        ends = [_lines(file)[-3:] for file in files if file.exists()]
        return f"{self.name}, life {self.life}, {self.failures} of which failed: {ends}"

    def kill(self) -> None:
        """SIGKILL, and the next life."""
        self.process.kill()
        self.process.wait()
        self._live_again()

    def _live_again(self) -> None:
        self.life += 1
        self._begin()

    def ask_to_end(self) -> None:
        """SIGTERM."""
        self.process.terminate()

    def end(self) -> None:
        """Wait until it has finished what it has begun; a life that fails on the way is not followed by another."""
        unready = -signal.SIGTERM  # it had not begun
        assert self.process.wait(END_S) in {0, FAILED, STALLED, unready}, (
            f"{self.name} did not end well: see {self._log}"
        )

    def see_the_end(self) -> None:
        """Wait until it ends by itself, through all its failures."""
        while self.process.wait(END_S) != 0:
            self.look()


def _lines(file: Path) -> list[str]:
    """Without those with which librdkafka follows its own steps."""
    lines = file.read_text(errors="replace").splitlines()
    return [line for line in lines if not line.startswith("%7|")]


class Lives:
    """All programs of a run."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.folder = folder
        self.programs: dict[str, Program] = {}
        self.kills: Counter[str] = Counter()
        self._bootstrap = bootstrap

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for program in self.programs.values():
            program.process.kill()
            program.process.wait()

    def begin(self, module: str, name: str, *arguments: object) -> Program:
        """A program of this package, or a module with its whole name."""
        return self.begin_command(name, python(module, self._bootstrap, self.folder, name, *arguments))

    def begin_command(self, name: str, command: Command) -> Program:
        """Any program."""
        program = Program(name, command, self.folder / f"{name}.log")
        self.programs[name] = program
        return program

    def see_through(self, module: str, name: str, *arguments: object) -> Program:
        """A program that ends by itself, which nobody kills."""
        program = self.begin(module, name, *arguments)
        program.see_the_end()
        return self.programs.pop(name)

    def look(self) -> None:
        """See that all live."""
        for program in self.programs.values():
            program.look()

    def kill(self, name: str) -> None:
        """Kill one of them."""
        self.programs[name].kill()
        self.kills[name] += 1

    def end(self, *names: str) -> None:
        """Have some of them finish."""
        for name in names:
            self.programs[name].ask_to_end()
        for name in names:
            self.programs[name].end()
            del self.programs[name]

    def last_words(self) -> str:
        """What each program told last: in its log, and in its history."""
        return "\n".join(program.last_words(self.folder) for program in self.programs.values())

    def told(self) -> dict[str, int]:
        """How many kills, failures and calls without an end there were."""
        failed = {f"{name} failed": program.failures for name, program in self.programs.items() if program.failures}
        stalled = {f"{name} stalled": program.stalls for name, program in self.programs.items() if program.stalls}
        return {**self.kills, **failed, **stalled}


class Following:
    """How many records of each topic a reader has polled so far; reads only what is new in its histories."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._read: dict[Path, int] = {}
        self._counts: dict[Path, Counter[str]] = {}

    def of_its_latest_life(self) -> Counter[str]:
        """By topic; a new life begins at the beginning."""
        file = max(self._folder.glob(f"{self._name}-*.jsonl"), key=os.path.getmtime, default=None)
        if file is None:
            return Counter()
        counts = self._counts.setdefault(file, Counter())
        with file.open("rb") as lines:
            lines.seek(self._read.get(file, 0))
            for line in lines:
                if line.endswith(b"\n"):
                    self._read[file] = self._read.get(file, 0) + len(line)
                    if line.startswith(b'["polled"'):
                        counts[line.split(b'"')[5].decode()] += 1
        return counts
