"""The threads of a simulated process: each piece of closed work is done some time after it was handed in.

RULES    1. Writes and what belongs to them are done in line in a process whose disk is quick; syncs never are.
         2. What waits in one lane is done in its order; lanes overtake each other.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from replication.io_executor import Begin, Done, Run
from tests.simulation.lanes import Lanes
from tests.simulation.simulated_disk import SimulatedDisk

Later = Callable[[int, Callable[[], object]], None]


class SimulatedWorker:
    """`Worker`, as one process has it."""

    def __init__(self, disk: SimulatedDisk, random: Random, later: Later, slowest_ms: int) -> None:
        """`later` does something of this process in so many milliseconds; `slowest_ms` is what a sync may take."""
        self._random = random
        self._later = later
        self._slowest_ms = slowest_ms
        self._is_prompt = random.random() < 0.5
        self._others = Lanes(disk, random, _nothing, is_prompt=self._is_prompt)
        self._syncs = Lanes(disk, random, _nothing, is_prompt=False)

    def write(self, directory: str, size: int, run: Run, done: Done) -> None:
        """Rule 1."""
        self._push("write", directory, run, done)

    def sync(self, directory: str, begin: Begin, done: Done) -> None:
        """Some time later; what is to be synced is asked for then."""
        self._syncs.push("sync", directory, lambda: _do(begin), done)
        self._later(self._delay_ms(), self._syncs.run_any)

    def read(self, directory: str, run: Run, done: Done) -> None:
        """Rule 1."""
        self._push("read", directory, run, done)

    def name(self, directory: str, run: Run, done: Done) -> None:
        """Rule 1."""
        self._push("name", directory, run, done)

    def background(self, directory: str, run: Run, done: Done) -> None:
        """Rule 1."""
        self._push("background", directory, run, done)

    def finish(self) -> None:
        """Do everything that waits."""
        self._others.run_all()
        self._syncs.run_all()

    def _push(self, kind: str, directory: str, run: Run, done: Done) -> None:
        self._others.push(kind, directory, run, done)
        if not self._is_prompt:
            self._later(self._delay_ms(), self._others.run_any)

    def _delay_ms(self) -> int:
        random = self._random
        return random.choice((0, 0, 1, 2)) if random.random() < 0.9 else random.randrange(self._slowest_ms)


def _do(begin: Begin) -> None:
    begin()()


def _nothing() -> None:
    """The loop does nothing while a piece of work runs."""
