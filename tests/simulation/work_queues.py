"""The queues of a simulated I/O executor: one per kind of work and log directory, each in order.

RULES    1. `push` appends work to a queue; the `run_…` methods run the first item of a queue. With `runs_immediately`, `push`
            runs it at once, as a fast disk does.
         2. While an item runs, `run_loop_step` may be called between its steps, as the event loop runs concurrently. Its
            queue is busy meanwhile.
         3. An item that fails reports its error to its callback.
         4. Kinds of work in `held` wait, as on a full disk, until `release`.
         5. On a slow disk, appends that follow each other in a queue run at the same time (concurrent_calls.py). Their
            results are reported in their order, when all have ended.
         6. With `waits_for_space`, work that finds a full disk waits at the head of its queue until `retry`, as in the broker.
            Background work reports the error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice, takewhile
from random import Random
from typing import NamedTuple

from storage.io.deferred_file_ops import no_op
from storage.io.disk import StorageError
from tests.simulation.concurrent_calls import ConcurrentCalls
from tests.simulation.simulated_disk import SimulatedDisk

Work = Callable[[], None]
Done = Callable[[StorageError | None], None]
QueueKey = tuple[str, str]
"""Kind and log directory."""
SLOW_WRITERS = 8
"""The number of appends that run at the same time on a slow disk."""


class _Item(NamedTuple):
    """Work in a queue."""

    work: Work
    on_done: Done
    is_append: bool


class WorkQueues:
    """All queues of one process."""

    def __init__(
        self,
        disk: SimulatedDisk,
        random: Random,
        run_loop_step: Callable[[], None],
        *,
        runs_immediately: bool,
        is_slow: bool = False,
    ) -> None:
        """`is_slow`: whether appends run at the same time (rule 5)."""
        self._disk = disk
        self._random = random
        self._run_loop_step = run_loop_step
        self._runs_immediately = runs_immediately
        self._is_slow = is_slow
        self._queues: dict[QueueKey, deque[_Item]] = {}
        self._busy: set[QueueKey] = set()
        self.held: frozenset[str] = frozenset()
        self.is_paused = False
        """Whether the loop does not run between steps."""
        self.waits_for_space = False
        self.on_space_change: Callable[[str, bool], None] = lambda _directory, _has_space: None
        """Called with a log directory when work there finds no space, and when it is retried."""
        self._without_space: set[QueueKey] = set()

    def push(self, kind: str, directory: str, work: Work, on_done: Done, *, is_append: bool = False) -> None:
        key = (kind, directory)
        queue = self._queues.setdefault(key, deque())
        queue.append(_Item(work, on_done, is_append))
        if self._runs_immediately:
            self._run_queue(key)

    def waiting(self, kind: str) -> int:
        """The number of items of a kind that wait."""
        return sum(len(queue) for key, queue in self._queues.items() if key[0] == kind)

    def release(self) -> None:
        """Let all kinds of work run again."""
        self.held = frozenset()
        if self._runs_immediately:
            for key in list(self._queues):
                self._run_queue(key)

    def _run_queue(self, key: QueueKey) -> None:
        queue = self._queues[key]
        while queue and self._may_run(key):
            self._run(key)

    def run_any(self) -> bool:
        """Run the first item of a random queue; False if all are empty, busy, held or without space."""
        queues = [key for key, queue in self._queues.items() if queue and self._may_run(key)]
        if not queues:
            return False
        self._run(self._random.choice(queues))
        return True

    def _may_run(self, key: QueueKey) -> bool:
        return key not in self._busy and key not in self._without_space and key[0] not in self.held

    def run_file_ops(self, directory: str) -> bool:
        """Run all renames and writes of a directory; False if one of its queues is busy or without space."""
        if self.is_busy(directory):
            return False
        for key in (("name", directory), ("write", directory)):
            while self._queues.get(key):
                if key in self._without_space:
                    return False
                self._run(key)
        return True

    def retry(self) -> None:
        """Let the queues continue that wait for space (rule 6)."""
        waiting, self._without_space = self._without_space, set()
        for directory in {key[1] for key in waiting}:
            self.on_space_change(directory, True)

    def is_busy(self, directory: str) -> bool:
        """Whether work on a directory runs now."""
        return any(key[1] == directory for key in self._busy)

    def run_all(self) -> None:
        while self.run_any():
            pass

    def _run(self, key: QueueKey) -> None:
        items = self._take(self._queues[key])
        self._busy.add(key)
        outer, self._disk.before_step = self._disk.before_step, None if self._runs_immediately else self._interleave
        try:
            errors = [_attempt(items[0].work)] if len(items) == 1 else self._run_together(items)
        finally:
            self._busy.discard(key)
            self._disk.before_step = outer
        for number, (item, error) in enumerate(zip(items, errors, strict=True)):
            if error is not None and error.is_full and self.waits_for_space and key[0] != "background":
                self._put_back(key, items[number:], errors[number:])
                break
            item.on_done(error)

    def _put_back(self, key: QueueKey, items: list[_Item], errors: list[StorageError | None]) -> None:
        """Work that ran at the same time waits too; only the results of what succeeded are still to be reported."""
        waiting = [
            item._replace(work=no_op) if error is None else item for item, error in zip(items, errors, strict=True)
        ]
        self._queues[key].extendleft(reversed(waiting))
        self._without_space.add(key)
        self.on_space_change(key[1], False)

    def _take(self, queue: deque[_Item]) -> list[_Item]:
        """The first item, or the appends at the head of the queue that run at the same time (rule 5)."""
        appends = list(takewhile(_is_append, islice(queue, SLOW_WRITERS))) if self._is_slow else []
        return [queue.popleft() for _ in range(max(len(appends), 1))]

    def _run_together(self, items: list[_Item]) -> list[StorageError | None]:
        disk = self._disk
        calls = ConcurrentCalls(self._random, [item.work for item in items])

        def before_step() -> None:
            calls.switch()
            self._interleave()

        outer, disk.before_step, disk.switch = disk.before_step, before_step, calls.switch
        try:
            return calls.run()
        finally:
            disk.before_step, disk.switch = outer, None

    def _interleave(self) -> None:
        if not self.is_paused and self._random.random() < 0.15:
            saved, self._disk.before_step = self._disk.before_step, None  # the loop does not interrupt itself
            try:
                self._run_loop_step()
            finally:
                self._disk.before_step = saved


def _is_append(item: _Item) -> bool:
    return item.is_append


def _attempt(work: Work) -> StorageError | None:
    try:
        work()
    except StorageError as error:
        return error
    return None
