"""The I/O threads: per log directory one for writes, one for flushes, a few for reads, one for names, one for background work.

RULES    1. A write runs in the caller if the directory's queue is empty, the write is small, the previous write was recent and
            recent writes were fast; otherwise in the writer thread, and later writes queue behind it.
         2. Flushes of one directory run in rounds with all pending ones (group_commit.py).
         3. Threads make system calls on closed inputs, nothing else; results are reported on the loop.
         4. Threads start on demand. A slow directory gets several readers, so that large reads do not block the opening of
            a log, but only a few, so that it does not fill the process (reader_pool.py).
         5. Any exception in a thread but a StorageError is raised on the loop.
NOT HERE What is written, and the meaning of an error (`replication/partition/replica_manager.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from broker.io.group_commit import GroupCommit
from broker.io.reader_pool import ReaderPool
from broker.io.worker_thread import Job, WorkerThread, attempt, is_full
from replication.completion import completed
from replication.io_executor import SUCCEEDED, Begin, IoResult, Run
from storage.io.disk import StorageError

INLINE_BYTES = 1024 * 1024
"""Larger writes use the thread: the copy takes most of a millisecond."""
SLOW_S = 0.010
"""An inline write that takes this long moves the directory's writes to its thread for a while."""
QUICK_S = 0.002
MAX_IDLE_S = 1.0
"""After this idle time the speed of the directory is unknown, so the thread writes first."""
QUICK_IN_A_ROW = 16
"""After this many consecutive fast writes in the thread, writes are inline again."""


class _WriterThread(WorkerThread):
    """A writer thread that tracks the write latency of its directory."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        super().__init__(loop, name)
        self._quick = 0
        self._is_slow = False
        self._last_used_s = -MAX_IDLE_S  # time of the last write
        self.thread_writes = 0

    def write(self, size: int, run: Run) -> IoResult:
        started = time.monotonic()
        if self.pending_jobs or self._is_slow or size > INLINE_BYTES or started - self._last_used_s > MAX_IDLE_S:
            self.thread_writes += 1
            return self.put(lambda: self._timed(run, size))
        error = attempt(run)
        self._record_latency(started, size)
        if error is None:
            return SUCCEEDED
        if is_full(error):  # the thread waits for space
            return self.put(run)
        if not isinstance(error, StorageError):
            raise error
        return completed(error)

    def _timed(self, run: Run, size: int) -> None:
        started = time.monotonic()
        run()
        self._record_latency(started, size)

    def _record_latency(self, started_s: float, size: int) -> None:
        """Updates the latency; work without bytes may not touch the disk, so it only proves slowness."""
        ended_s = time.monotonic()
        elapsed_s = ended_s - started_s
        if elapsed_s >= SLOW_S and size <= INLINE_BYTES:
            self._is_slow, self._quick = True, 0
        elif size and self._is_slow:
            self._quick = self._quick + 1 if elapsed_s < QUICK_S else 0
            self._is_slow = self._quick < QUICK_IN_A_ROW
        if size:
            self._last_used_s = ended_s


class _BackgroundThread(WorkerThread):
    """A thread that reports a full disk as an error: its deletions make space."""

    def retry_until_space(self, job: Job) -> None: ...


T = TypeVar("T", bound=WorkerThread)


class _ThreadsByDirectory(dict[str, T]):
    """The threads of one kind by log directory, created on first use."""

    def __init__(self, create: Callable[[str], T]) -> None:
        super().__init__()
        self._create = create

    def __missing__(self, directory: str) -> T:
        thread = self[directory] = self._create(directory)
        return thread


class IoThreadPool:
    """The daemon's I/O executor."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._writers = self._threads_of(_WriterThread, "writer")
        self._syncers = self._threads_of(GroupCommit, "syncer")
        self._readers = self._threads_of(ReaderPool, "reader")
        self._namers = self._threads_of(WorkerThread, "names")
        self._background = self._threads_of(_BackgroundThread, "background")
        self._threads_without_space: dict[str, int] = {}  # the number of threads that wait for space
        self.on_space_change: Callable[[str, bool], None] = lambda _directory, _has_space: None
        """Called with a log directory that is full, and again when it has space."""
        self.metered: Callable[[Run], Run] | None = None
        """Measures the time of a job; set while the request of a client with a quota runs."""

    def _threads_of(self, kind: type[T], name: str) -> _ThreadsByDirectory[T]:
        def create(directory: str) -> T:
            thread = kind(self._loop, f"{name} {directory}")
            thread.on_space_change = partial(self._on_space_change, directory)
            return thread

        return _ThreadsByDirectory(create)

    def write(self, directory: str, size: int, run: Run) -> IoResult:
        """Writes `size` bytes in a log directory."""
        if self.metered is not None:
            run = self.metered(run)
        return self._writers[directory].write(size, run)

    def sync(self, directory: str, begin: Begin) -> IoResult:
        """Flushes something in a log directory, in the next round."""
        return self._syncers[directory].submit(begin)

    def join_sync(self, directory: str) -> None:
        """Counts one more log of a flush that waits for the next round."""
        self._syncers[directory].join()

    def read(self, directory: str, run: Run) -> IoResult:
        """Reads from a log directory, in one of its reader threads."""
        if self.metered is not None:
            run = self.metered(run)
        return self._readers[directory].put(run)

    def directory_op(self, directory: str, run: Run) -> IoResult:
        """Creates or renames files in a log directory, in the order of the calls."""
        return self._namers[directory].put(run)

    def background(self, directory: str, run: Run) -> IoResult:
        """Does work in a log directory that nothing waits for."""
        return self._background[directory].put(run)

    def _on_space_change(self, directory: str, has_space: bool) -> None:  # noqa: FBT001
        """Several threads may wait; the first and the last one count."""
        count = self._threads_without_space.get(directory, 0) + (-1 if has_space else 1)
        self._threads_without_space[directory] = count
        if count == (0 if has_space else 1):
            self.on_space_change(directory, has_space)

    def is_full(self, directory: str) -> bool:
        """Whether a thread waits for space in a log directory."""
        return self._threads_without_space.get(directory, 0) > 0

    def stop_waiting_for_space(self) -> None:
        """From now on a full disk is an ordinary error: the broker is shutting down."""
        for thread in self._threads():
            thread.stop_waiting_for_space()

    def stop(self) -> None:
        """Finishes all queued jobs; their results are still reported on the loop."""
        for thread in self._threads():
            thread.stop()

    def queues(self) -> list[tuple[str, str, int]]:
        """Kind and directory of each queue, and its jobs that are not reported yet."""
        writers, readers = list(self._writers.items()), list(self._readers.items())
        namers, background = list(self._namers.items()), list(self._background.items())
        kinds = ("write", writers), ("read", readers), ("names", namers), ("background", background)
        return [(kind, directory, thread.pending_jobs) for kind, threads in kinds for directory, thread in threads]

    def thread_writes(self) -> dict[str, int]:
        """By directory: writes that a thread made, not the event loop."""
        return {directory: writer.thread_writes for directory, writer in self._writers.items()}

    def group_commits(self) -> dict[str, GroupCommit]:
        """The group commits of the directories."""
        return dict(self._syncers)

    def _threads(self) -> list[WorkerThread]:
        kinds = (self._writers, self._syncers, self._readers, self._namers, self._background)
        return [thread for kind in kinds for thread in kind.values()]
