"""The I/O executor of a simulated process: work completes some time after it is submitted.

RULES    1. In a process with a fast disk, all work except syncs runs immediately.
         2. The work of one queue completes in order; queues overtake each other.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from replication.completion import Completion
from replication.io_executor import Begin, IoResult, Run
from tests.simulation.simulated_disk import SimulatedDisk
from tests.simulation.work_queues import WorkQueues

CallLater = Callable[[int, Callable[[], object]], None]


class SimulatedIoExecutor:
    """The `IoExecutor` of one process."""

    def __init__(self, disk: SimulatedDisk, random: Random, call_later: CallLater, slowest_ms: int) -> None:
        """`call_later` schedules an action of this process; `slowest_ms` is the maximum duration of a sync."""
        self._random = random
        self._call_later = call_later
        self._slowest_ms = slowest_ms
        self._runs_immediately = random.random() < 0.5
        self._work_queue = WorkQueues(disk, random, _nothing, runs_immediately=self._runs_immediately)
        self._sync_queue = WorkQueues(disk, random, _nothing, runs_immediately=False)

    def write(self, directory: str, size: int, run: Run) -> IoResult:
        return self._push("write", directory, run)

    def sync(self, directory: str, begin: Begin) -> IoResult:
        """Sync after a delay; what to sync is determined then."""
        result: IoResult = Completion()
        self._sync_queue.push("sync", directory, lambda: _do(begin), result.complete)
        self._call_later(self._delay_ms(), self._sync_queue.run_any)
        return result

    def join_sync(self, directory: str) -> None:
        """Do nothing: what joins is flushed with the flush that it joins."""

    def read(self, directory: str, run: Run) -> IoResult:
        return self._push("read", directory, run)

    def directory_op(self, directory: str, run: Run) -> IoResult:
        return self._push("name", directory, run)

    def background(self, directory: str, run: Run) -> IoResult:
        return self._push("background", directory, run)

    def finish(self) -> None:
        self._work_queue.run_all()
        self._sync_queue.run_all()

    def _push(self, fault: str, directory: str, run: Run) -> IoResult:
        result: IoResult = Completion()
        self._work_queue.push(fault, directory, run, result.complete)
        if not self._runs_immediately:
            self._call_later(self._delay_ms(), self._work_queue.run_any)
        return result

    def _delay_ms(self) -> int:
        random = self._random
        return random.choice((0, 0, 1, 2)) if random.random() < 0.9 else random.randrange(self._slowest_ms)


def _do(begin: Begin) -> None:
    begin()()


def _nothing() -> None:
    """The loop is idle while work runs."""
