"""Asynchronous file I/O of the state machines: writes, flushes, reads and background jobs as functions.

RULES    1. `run` uses only what it was created with; it may run on another thread.
         2. `done` runs on the thread of the state machines, with None or the StorageError that `run` raised.
         3. Writes of one log directory run in their order; so do its flushes. Reads run in any order and in parallel.
         4. `done` may be called before the submitting call returns.
         5. Directory creations and renames have a queue of their own, beside the writes: a thousand new directories do not
            delay a write.
NOT HERE Threads (`broker/io/io_thread_pool.py`); a simulation has its own executor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from replication.cooperative_tasks import no_op
from storage.io.disk import StorageError

Run = Callable[[], None]
Begin = Callable[[], Run]
IoCallback = Callable[[StorageError | None], None]


class IoExecutor(Protocol):
    """Runs file I/O and reports the result."""

    def write(self, directory: str, size: int, run: Run, done: IoCallback) -> None:
        """Write `size` bytes in a log directory: inline while that is quick, otherwise on its writer thread."""

    def sync(self, directory: str, begin: Begin, done: IoCallback) -> None:
        """Flush in the directory's next round, together with all other waiting flushes; never inline.

        `begin` is called when the round begins, on the thread of the state machines, and returns what to run. So the flush
        covers what was written while it waited.
        """

    def read(self, directory: str, run: Run, done: IoCallback) -> None:
        """Read from disk in a log directory; never inline."""

    def directory_op(self, directory: str, run: Run, done: IoCallback) -> None:
        """Create or rename a partition directory; never inline."""

    def background(self, directory: str, run: Run, done: IoCallback) -> None:
        """Run a long job in a log directory that no request waits for: deletions, checkpoints."""


def after_pending_io(executor: IoExecutor, directory: str, then: IoCallback) -> None:
    """Call `then` after all pending directory operations, writes and flushes of a log directory."""

    def sync(_: StorageError | None) -> None:
        executor.sync(directory, lambda: no_op, then)

    def write(_: StorageError | None) -> None:
        executor.write(directory, 0, no_op, sync)

    executor.directory_op(directory, no_op, write)


class InlineIoExecutor:
    """Runs everything at once on the caller's thread: for tests and tools."""

    def write(self, directory: str, size: int, run: Run, done: IoCallback) -> None:  # noqa: ARG002
        """Write at once."""
        _run_and_report(run, done)

    def sync(self, directory: str, begin: Begin, done: IoCallback) -> None:  # noqa: ARG002
        """Flush at once."""
        _run_and_report(begin(), done)

    def read(self, directory: str, run: Run, done: IoCallback) -> None:  # noqa: ARG002
        """Run at once."""
        _run_and_report(run, done)

    directory_op = background = read


def _run_and_report(run: Run, done: IoCallback) -> None:
    error: StorageError | None = None
    try:
        run()
    except StorageError as failure:
        error = failure
    done(error)
