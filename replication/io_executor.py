"""Where slow work goes: writes, syncs and background jobs, as closed functions (design D6, D12a, D12b).

RULES    1. `run` sees only what was closed over when it was made; it may run in another thread.
         2. `done` runs on the thread of the state machines, with None or the error that `run` raised.
         3. Writes of one log directory are done in the order in which they were handed in; so are its syncs. Reads are
            done in any order, and none waits long for another.
         4. `done` may be called before the call that handed the work in returns.
         5. Names are changed in their order, beside the writes: making a thousand directories holds no write up.
NOT HERE Threads (`broker/io/io_thread_pool.py`); a simulation brings a worker of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from storage.io.disk import StorageError

Run = Callable[[], None]
Begin = Callable[[], Run]
Done = Callable[[StorageError | None], None]


class Worker(Protocol):
    """Does slow work and reports back."""

    def write(self, directory: str, size: int, run: Run, done: Done) -> None:
        """Write `size` bytes in a log directory: in line while that is quick, else in its writer thread."""

    def sync(self, directory: str, begin: Begin, done: Done) -> None:
        """Make something of a log directory durable, together with all else that waits for it; never in line.

        `begin` is called when that begins, on the thread of the state machines, and gives what is to be done: often a
        `Sync`. So it covers what was written while it waited.
        """

    def read(self, directory: str, run: Run, done: Done) -> None:
        """Read something of a log directory that is not at hand; never in line with the caller."""

    def name(self, directory: str, run: Run, done: Done) -> None:
        """Make or rename a partition's directory; never in line with the caller."""

    def background(self, directory: str, run: Run, done: Done) -> None:
        """Do something in a log directory that may take long and that nobody waits for: delete, write checkpoints."""


def behind_all(worker: Worker, directory: str, then: Done) -> None:
    """Call `then` behind the names, writes and syncs of a directory that are waiting now."""

    def sync(_: StorageError | None) -> None:
        worker.sync(directory, lambda: _nothing, then)

    def write(_: StorageError | None) -> None:
        worker.write(directory, 0, _nothing, sync)

    worker.name(directory, _nothing, write)


class InlineWorker:
    """Does everything at once in the caller's thread: for tests and for tools."""

    def write(self, directory: str, size: int, run: Run, done: Done) -> None:  # noqa: ARG002
        """Write at once."""
        _run_and_report(run, done)

    def sync(self, directory: str, begin: Begin, done: Done) -> None:  # noqa: ARG002
        """Sync at once."""
        _run_and_report(begin(), done)

    def read(self, directory: str, run: Run, done: Done) -> None:  # noqa: ARG002
        """Read at once."""
        _run_and_report(run, done)

    def name(self, directory: str, run: Run, done: Done) -> None:  # noqa: ARG002
        """Make or rename it at once."""
        _run_and_report(run, done)

    def background(self, directory: str, run: Run, done: Done) -> None:  # noqa: ARG002
        """Do it at once."""
        _run_and_report(run, done)


def _nothing() -> None:
    """Only its turn is waited for."""


def _run_and_report(run: Run, done: Done) -> None:
    error: StorageError | None = None
    try:
        run()
    except StorageError as failure:
        error = failure
    done(error)
