"""The threads of a broker, as far as storage can tell: lanes of closed work, one piece after the other in each.

RULES    1. `push` puts work behind what is in its lane; `run` does the first piece of one lane. With `is_prompt` work is
            done when it is pushed, as in a directory that is quick.
         2. While a piece runs, `meanwhile` may be called between its steps: what the loop does at that time. Its lane is
            busy then.
         3. A piece that fails is told with its error, as a worker tells it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

from storage.io.disk import StorageError
from tests.simulation.simulated_disk import SimulatedDisk

Work = Callable[[], None]
Done = Callable[[StorageError | None], None]
Lane = tuple[str, str]
"""Kind and log directory."""


class Lanes:
    """All lanes of one process."""

    def __init__(self, disk: SimulatedDisk, dice: Random, meanwhile: Callable[[], None], *, is_prompt: bool) -> None:
        self._disk = disk
        self._dice = dice
        self._meanwhile = meanwhile
        self._is_prompt = is_prompt
        self._waiting: dict[Lane, deque[tuple[Work, Done]]] = {}
        self._busy: set[Lane] = set()
        self.is_quiet = False
        """Whether the loop does nothing meanwhile."""

    def push(self, kind: str, directory: str, work: Work, done: Done) -> None:
        """Have it done, now or later."""
        lane = (kind, directory)
        waiting = self._waiting.setdefault(lane, deque())
        waiting.append((work, done))
        if self._is_prompt and lane not in self._busy:
            while waiting:
                self._run(lane)

    def run_any(self) -> bool:
        """Do the first piece of a lane; False where every lane is empty or busy."""
        lanes = [lane for lane, waiting in self._waiting.items() if waiting and lane not in self._busy]
        if not lanes:
            return False
        self._run(self._dice.choice(lanes))
        return True

    def run_changes(self, directory: str) -> bool:
        """Do all names and writes of a directory; False where one of its lanes is busy, so that this had to wait."""
        if self.is_busy(directory):
            return False
        for lane in (("name", directory), ("write", directory)):
            while self._waiting.get(lane):
                self._run(lane)
        return True

    def is_busy(self, directory: str) -> bool:
        """Whether any work on a directory is under way at this moment."""
        return any(lane[1] == directory for lane in self._busy)

    def run_all(self) -> None:
        """Do everything."""
        while self.run_any():
            pass

    def _run(self, lane: Lane) -> None:
        work, done = self._waiting[lane].popleft()
        error: StorageError | None = None
        self._busy.add(lane)
        outer, self._disk.between = self._disk.between, None if self._is_prompt else self._between
        try:
            work()
        except StorageError as failure:
            error = failure
        finally:
            self._busy.discard(lane)
            self._disk.between = outer
        done(error)

    def _between(self) -> None:
        if not self.is_quiet and self._dice.random() < 0.15:
            mine, self._disk.between = self._disk.between, None  # the loop does one thing at a time
            try:
                self._meanwhile()
            finally:
                self._disk.between = mine
