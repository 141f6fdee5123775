"""Asynchronous file I/O of the state machines: writes, flushes, reads and background jobs as functions.

RULES    1. `run` uses only what it was created with; it may run on another thread.
         2. Results are given on the thread of the state machines, perhaps before the submitting call returns.
         3. Writes of one log directory run in their order; so do its flushes. Reads run in any order and in parallel. Appends
            (writes with a size) that follow each other may run at the same time; their results are given in their order.
         4. Directory creations and renames have a queue of their own, beside the writes: a thousand new directories do not
            delay a write.
NOT HERE Threads (`broker/io/io_thread_pool.py`); a simulation has its own executor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from replication.completion import Completion, completed
from replication.cooperative_tasks import no_op
from storage.io.disk import StorageError

Run = Callable[[], None]
Begin = Callable[[], Run]
IoResult = Completion[StorageError | None]
"""The value is None, or the StorageError that `run` raised; every caller handles it."""
SUCCEEDED: Final[IoResult] = completed(None)
"""The result of everything that succeeded at once: an inline write allocates none."""


class IoExecutor(Protocol):
    """Runs file I/O."""

    def write(self, directory: str, size: int, run: Run, calls: int = 1) -> IoResult:
        """Write `size` bytes in a log directory: inline while that is quick, otherwise on its writer thread.

        `size`: with the space of a file that may have to be created. `calls`: how many system calls write them.
        """

    def sync(self, directory: str, begin: Begin) -> IoResult:
        """Flush in the directory's next round, together with all other waiting flushes; never inline.

        `begin` is called when the round begins, on the thread of the state machines, and returns what to run. So the flush
        covers what was written while it waited.
        """

    def join_sync(self, directory: str) -> None:
        """One more log takes part in a flush that `sync` was called for and that has not begun."""

    def read(self, directory: str, run: Run) -> IoResult:
        """Read from disk in a log directory; never inline."""

    def directory_op(self, directory: str, run: Run) -> IoResult:
        """Create or rename a partition directory; never inline."""

    def background(self, directory: str, run: Run) -> IoResult:
        """Run a long job in a log directory that no request waits for: deletions, checkpoints."""


def after_pending_io(executor: IoExecutor, directory: str, then: Callable[[], None]) -> None:
    """Call `then` after all pending directory operations, writes and flushes of a log directory."""

    def write(_: IoResult) -> None:
        executor.write(directory, 0, no_op).then(sync)

    def sync(_: IoResult) -> None:
        executor.sync(directory, lambda: no_op).then(lambda _: then())

    executor.directory_op(directory, no_op).then(write)


class InlineIoExecutor:
    """Runs everything at once on the caller's thread: for tests and tools."""

    def write(self, directory: str, size: int, run: Run, calls: int = 1) -> IoResult:  # noqa: ARG002
        """Write at once."""
        return _run(run)

    def sync(self, directory: str, begin: Begin) -> IoResult:  # noqa: ARG002
        """Flush at once."""
        return _run(begin())

    def join_sync(self, directory: str) -> None:
        """Do nothing: no flush waits."""

    def read(self, directory: str, run: Run) -> IoResult:  # noqa: ARG002
        """Run at once."""
        return _run(run)

    directory_op = background = read


def _run(run: Run) -> IoResult:
    try:
        run()
    except StorageError as error:
        return completed(error)
    return SUCCEEDED
