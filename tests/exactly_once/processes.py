"""Programs that are killed and restarted, and the folder that holds their histories.

RULES    1. A process that fails or stalls (`client.py`) is replaced, as a killed one is; the counts are reported at the end.
         2. No process outlives the run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from tests.exactly_once.client import FAILED

ROOT = Path(__file__).parents[2]
END_S = 60
STALLED = -signal.SIGALRM

Command = Callable[[int], list[str]]
"""The command line of the process with this number."""


def python(module: str, bootstrap: str, folder: Path, name: str, *arguments: object) -> Command:
    """The command of a program: a module of this package, or any module by its full name."""

    def command(incarnation: int) -> list[str]:
        words = (bootstrap, folder, name, incarnation, *arguments)
        named = module if "." in module else f"tests.exactly_once.{module}"
        return [sys.executable, "-m", named, *map(str, words)]

    return command


class SupervisedProcess:
    """One program: its current process and how many have failed."""

    def __init__(self, name: str, command: Command, log: Path) -> None:
        self.name = name
        self.incarnation = 0
        self.ends: Counter[str] = Counter()
        self._command = command
        self._log = log
        self._start()

    def _start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command(self.incarnation), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT
            )

    def restart_if_failed(self) -> None:
        """Starts the next process after a failure or a stall; any other exit code fails the run."""
        code = self.process.poll()
        if code is None:
            return
        assert code in {FAILED, STALLED}, f"{self.name}, process {self.incarnation}, ended with {code}: see {self._log}"
        self.ends["stalled" if code == STALLED else "failed"] += 1
        self._restart()

    def last_lines(self, folder: Path) -> str:
        """The ends of its log and its history."""
        files = self._log, folder / f"{self.name}-{self.incarnation}.jsonl"
        ends = [_lines(file)[-3:] for file in files if file.exists()]
        return f"{self.name}, process {self.incarnation}, {self.ends['failed']} of which failed: {ends}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._restart()

    def _restart(self) -> None:
        self.incarnation += 1
        self._start()

    def request_stop(self) -> None:
        self.process.terminate()

    def wait(self) -> None:
        """Waits until it exits after SIGTERM; a failure on the way is accepted."""
        not_started = -signal.SIGTERM
        assert self.process.wait(END_S) in {0, FAILED, STALLED, not_started}, (
            f"{self.name} failed while it stopped: see {self._log}"
        )

    def wait_for_success(self) -> None:
        """Waits until it exits with 0, restarting it after failures."""
        while self.process.wait(END_S) != 0:
            self.restart_if_failed()


def _lines(file: Path) -> list[str]:
    lines = file.read_text(errors="replace").splitlines()
    return [line for line in lines if not line.startswith("%7|")]


class ProcessGroup(AbstractContextManager["ProcessGroup"]):
    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.folder = folder
        self.programs: dict[str, SupervisedProcess] = {}
        self.kills: Counter[str] = Counter()
        self._bootstrap = bootstrap

    def __exit__(self, *_: object) -> None:
        for program in self.programs.values():
            program.process.kill()
            program.process.wait()

    def start(self, module: str, name: str, *arguments: object) -> SupervisedProcess:
        """Starts a module of this package, or any module by its full name."""
        return self.start_command(name, python(module, self._bootstrap, self.folder, name, *arguments))

    def start_command(self, name: str, command: Command) -> SupervisedProcess:
        program = SupervisedProcess(name, command, self.folder / f"{name}.log")
        self.programs[name] = program
        return program

    def run_to_completion(self, module: str, name: str, *arguments: object) -> SupervisedProcess:
        """A program that exits by itself and is never killed."""
        program = self.start(module, name, *arguments)
        program.wait_for_success()
        return self.programs.pop(name)

    def check_running(self) -> None:
        for program in self.programs.values():
            program.restart_if_failed()

    def kill(self, name: str) -> None:
        self.programs[name].kill()
        self.kills[name] += 1

    def stop(self, *names: str) -> None:
        for name in names:
            self.programs[name].request_stop()
        for name in names:
            self.programs[name].wait()
            del self.programs[name]

    def last_lines(self) -> str:
        """The last log and history lines of each program."""
        return "\n".join(program.last_lines(self.folder) for program in self.programs.values())

    def counts(self) -> dict[str, int]:
        """The numbers of kills, failures and stalls."""
        ends = {f"{name} {how}": n for name, program in self.programs.items() for how, n in program.ends.items()}
        return {**self.kills, **ends}


class ReadProgress:
    """How many records of each topic a reader has polled; reads only the new lines of its histories."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._read: dict[Path, int] = {}
        self._counts: dict[Path, Counter[str]] = {}

    def latest_counts(self) -> Counter[str]:
        """By topic; a new process counts from zero."""
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
