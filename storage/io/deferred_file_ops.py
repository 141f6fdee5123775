"""File operations that need not run immediately: self-contained work that runs in submission order.

RULES    1. A submitted operation runs before every later one, and before bytes that are written to the same log directory
            later. Until then the disk does not show it.
         2. By default operations run at once; a thread that must not block sets another `Submit` (`LogManager.submit`).
         3. An operation that failed on a full disk may be retried from its start. After another failure the following ones
            may still run: dependent steps form one operation (`sequential`).
         4. No operation outlives its files: deleting a log is an operation too, and runs after all others.
         5. On a full disk, operations that free space do not queue behind those that need it: a log directory has a
            `Submit` of its own for them. They must not touch files with pending operations: only fully written segments
            are deleted, and no segment is started.
NOT HERE Threads, and the handling of failures (replication/partition/replica_manager.py). Detection of a full disk
         (`broker/io/worker_thread.py`). Why: docs/decisions/0024-full-disks.md
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Final

FileOp = Callable[[], None]
Submit = Callable[[FileOp], None]


def run_now(op: FileOp) -> None:
    """Run the operation at once."""
    op()


def no_op() -> None:
    """Do nothing: only the turn of the operation counts, or its result."""


def sequential(steps: list[FileOp]) -> FileOp:
    """One operation of several steps, which may append further ones; a retry resumes at the failed step."""

    def op() -> None:
        while steps:
            steps[0]()
            del steps[0]

    return op


class OrderedSteps:
    """Steps of several operations that run in their order, also if a later operation runs first, or in another thread."""

    __slots__ = ("_added", "_done", "_lock", "_waiting")

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        """`lock`: a mutex, if threads run the operations."""
        self._waiting: list[FileOp] = []
        self._added = self._done = 0
        self._lock = lock

    def operation(self, steps: Sequence[FileOp]) -> FileOp:
        """An operation that runs these steps after all earlier ones; a retry resumes at the failed step."""
        self._waiting += steps
        self._added += len(steps)
        return partial(self._run, self._added)

    def _run(self, end: int) -> None:
        with self._lock:
            while self._done < end:
                self._waiting[0]()
                del self._waiting[0]
                self._done += 1


@dataclass(slots=True, eq=False)
class DiskSpace:
    """The disk-full state of a log directory."""

    submit: Submit = run_now
    """Runs operations that free space, while the directory is full."""
    is_full: bool = False
    """While true, client appends are rejected."""


UNMONITORED: Final = DiskSpace()
"""For logs without a log manager: never full."""
