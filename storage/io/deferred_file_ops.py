"""File operations that need not run immediately: self-contained work that runs in submission order.

RULES    1. A submitted operation runs before every later one, and before bytes that are written to the same log directory
            later. Until then the disk does not show it.
         2. By default operations run at once; a thread that must not block sets another `Submit` (`LogManager.submit`).
         3. An operation that failed on a full disk may be retried from its start. After another failure the following ones
            may still run: dependent steps form one operation (`sequential`).
         4. No operation outlives its files: deleting a log is an operation too, and runs after all others.
NOT HERE Threads, and the handling of failures (replication/partition/replica_manager.py).
"""

from __future__ import annotations

from collections.abc import Callable

FileOp = Callable[[], None]
Submit = Callable[[FileOp], None]


def run_now(op: FileOp) -> None:
    """Run the operation at once."""
    op()


def sequential(steps: list[FileOp]) -> FileOp:
    """One operation of several steps; a retry resumes at the failed step."""

    def op() -> None:
        while steps:
            steps[0]()
            del steps[0]

    return op
