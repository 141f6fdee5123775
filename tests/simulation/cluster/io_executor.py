"""The I/O executor of a simulated process: work completes some time after it is submitted.

RULES    1. In a process with a fast disk, all work except syncs runs immediately.
         2. The work of one queue completes in order; queues overtake each other. With slow disks, appends that wait
            run at the same time (work_queues.py).
         3. While the disk is full, writes wait, and so do syncs if one of them writes the election state.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from replication.completion import Completion
from replication.io_executor import Begin, IoResult, Run
from tests.simulation.simulated_disk import SimulatedDisk
from tests.simulation.work_queues import WorkQueues

_SLOW_MS = 100
"""If syncs may take longer, the disk is slow."""

CallLater = Callable[[int, Callable[[], object]], None]


class SimulatedIoExecutor:
    """The `IoExecutor` of one process."""

    def __init__(self, disk: SimulatedDisk, random: Random, call_later: CallLater, slowest_ms: int) -> None:
        """`call_later` schedules an action of this process; `slowest_ms` is the maximum duration of a sync."""
        self._random = random
        self._call_later = call_later
        self._slowest_ms = slowest_ms
        self._runs_immediately = random.random() < 0.5
        self._is_reported_full = False
        self.on_space_change: Callable[[bool], None] = lambda _: None
        """Called with False when a write waits for space, and with True when there is space again."""
        self._work_queue = WorkQueues(
            disk, random, _nothing, runs_immediately=self._runs_immediately, is_slow=slowest_ms > _SLOW_MS
        )
        self._sync_queue = WorkQueues(disk, random, _nothing, runs_immediately=False)

    def write(self, directory: str, size: int, run: Run, calls: int = 1) -> IoResult:
        return self._push("write", directory, run, is_append=size > 0)

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

    def fill(self) -> None:
        """Let the disk be full (rule 3)."""
        self._work_queue.held = frozenset({"write"})
        if self._random.random() < 0.5:
            self._sync_queue.held = frozenset({"sync"})
        if self._work_queue.waiting("write"):
            self._report_full()

    def _report_full(self) -> None:
        if not self._is_reported_full:
            self._is_reported_full = True
            self._call_later(0, self._tell)

    def _tell(self) -> None:
        """Tell what is true now: events of a process that was paused may be late."""
        self.on_space_change(not self._is_reported_full)

    def free(self) -> None:
        """Let what waits for space run again, after a delay."""
        for queue, kind in ((self._work_queue, "write"), (self._sync_queue, "sync")):
            waiting = queue.waiting(kind)
            queue.release()
            for _ in range(waiting):
                self._call_later(self._delay_ms(), queue.run_any)
        if self._is_reported_full:
            self._is_reported_full = False
            self._call_later(0, self._tell)

    def finish(self) -> None:
        for queue in (self._work_queue, self._sync_queue):
            queue.release()
        while self._work_queue.run_any() or self._sync_queue.run_any():
            pass

    def _push(self, fault: str, directory: str, run: Run, *, is_append: bool = False) -> IoResult:
        result: IoResult = Completion()
        self._work_queue.push(fault, directory, run, result.complete, is_append=is_append)
        if fault in self._work_queue.held:
            self._report_full()
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
