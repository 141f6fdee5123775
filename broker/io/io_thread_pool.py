"""The I/O threads: per log directory one for writes, one for flushes, a few for reads, one for names, one for background work;
one for writes and one for flushes of the metadata log; and one that closes deleted files.

RULES    1. A write runs in the caller if the directory's queue is empty, the write is small, the previous write was recent and
            recent writes were fast; otherwise in the writer thread, and later writes queue behind it. While writes are slow,
            appends that wait run at the same time, until one is fast; their results are reported in their order.
         2. Flushes of one directory run in rounds with all pending ones (group_commit.py).
         3. Threads make system calls on closed inputs, nothing else; results are reported on the loop.
         4. Threads start on demand. A slow directory gets several readers, so that large reads do not block the opening of
            a log, but only a few, so that it does not fill the process (reader_pool.py).
         5. Any exception in a thread but a StorageError is raised on the loop.
         6. Closing the last descriptor of a deleted file frees its blocks, 0.3 s for 256 MiB. The loop often drops the last
            reference, such as that of a response that was being sent, so a thread closes it.
         7. The metadata log has its own writer and flush rounds: a decision of the controller does not wait for partitions.
NOT HERE What is written, and the meaning of an error (`replication/partition/appender.py`).
         Why: docs/decisions/0119-writes-to-a-slow-disk.md
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import takewhile
from threading import get_ident
from typing import TypeVar

from broker.io.group_commit import GroupCommit
from broker.io.reader_pool import ReaderPool
from broker.io.worker_thread import Job, WorkerThread, attempt, is_full
from replication.completion import completed
from replication.io_executor import SUCCEEDED, Begin, IoResult, Run
from storage.io.disk import Disk, StorageError

INLINE_BYTES = 1024 * 1024
"""Larger writes use the thread: the copy takes most of a millisecond."""
SLOW_S = 0.010
"""An inline write that takes this long moves the directory's writes to its thread for a while."""
QUICK_S = 0.002
MAX_IDLE_S = 1.0
"""After this idle time the speed of the directory is unknown, so the thread writes first."""
QUICK_IN_A_ROW = 16
"""After this many consecutive fast writes in the thread, writes are inline again: each system call in less than `QUICK_S`."""


SLOW_WRITERS = 8
"""The number of appends that run at the same time in a slow directory."""
MAX_LAST_TURNS = 1000


class _Write(Job):
    """A job of a writer thread."""

    __slots__ = ("is_append",)

    def __init__(self, run: Run, *, is_append: bool) -> None:
        super().__init__(run)
        self.is_append = is_append


class _WriterThread(WorkerThread):
    """A writer thread that tracks the write latency of its directory."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        super().__init__(loop, name)
        self._slow_writers: ThreadPoolExecutor | None = None
        self._quick = 0
        self._is_slow = False
        self._last_used_s = -MAX_IDLE_S  # time of the last write
        self.thread_writes = 0

    def write(self, size: int, run: Run, calls: int) -> IoResult:
        started = time.monotonic()
        if self.pending_jobs or self._is_slow or size > INLINE_BYTES or started - self._last_used_s > MAX_IDLE_S:
            self.thread_writes += 1
            job = _Write(lambda: self._timed(run, size, calls), is_append=size > 0)
            self._enqueue(job)
            return job
        error = attempt(run)
        self._record_latency(started, size)
        if error is None:
            return SUCCEEDED
        if is_full(error):  # the thread waits for space
            job = _Write(run, is_append=False)
            self._enqueue(job)
            return job
        if not isinstance(error, StorageError):
            raise error
        return completed(error)

    def stop(self) -> None:
        """Runs the queued jobs and ends the threads."""
        super().stop()
        if self._slow_writers is not None:
            self._slow_writers.shutdown()

    def _attempt_next(self, jobs: Sequence[Job], at: int) -> Sequence[Job]:
        """Appends that follow each other run at the same time if the directory is slow (rule 1)."""
        is_slow = self._is_slow and not self._quick
        appends = list(takewhile(_is_append, jobs[at : at + SLOW_WRITERS])) if is_slow else []
        if len(appends) < 2 or self._is_stopped:
            return super()._attempt_next(jobs, at)
        if self._slow_writers is None:
            self._slow_writers = ThreadPoolExecutor(SLOW_WRITERS, self._name)
        list(self._slow_writers.map(Job.attempt, appends))
        return appends

    def _timed(self, run: Run, size: int, calls: int) -> None:
        """Runs a write in a thread, where the time of each system call counts, not that of all together.

        After each of them the thread waits for the interpreter lock, which a busy loop keeps for a switch interval.
        """
        started = time.monotonic()
        run()
        self._record_latency(started, size, calls)

    def _record_latency(self, started_s: float, size: int, calls: int = 1) -> None:
        """Updates the latency; work without bytes may not touch the disk, so it only proves slowness."""
        ended_s = time.monotonic()
        elapsed_s = (ended_s - started_s) / calls
        if elapsed_s >= SLOW_S and size <= INLINE_BYTES:
            self._is_slow, self._quick = True, 0
        elif size and self._is_slow:
            self._quick = self._quick + 1 if elapsed_s < QUICK_S else 0
            self._is_slow = self._quick < QUICK_IN_A_ROW
        if size:
            self._last_used_s = ended_s


def _is_append(job: Job) -> bool:
    return isinstance(job, _Write) and job.is_append


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


class MetadataLogIo:
    """The I/O executor of the metadata log (rule 7)."""

    def __init__(
        self, pool: IoThreadPool, writers: _ThreadsByDirectory[_WriterThread], syncers: _ThreadsByDirectory[GroupCommit]
    ) -> None:
        self._writers, self._syncers = writers, syncers
        self.read, self.directory_op, self.background = pool.read, pool.directory_op, pool.background

    def write(self, directory: str, size: int, run: Run, calls: int = 1) -> IoResult:
        """Writes `size` bytes of the metadata log."""
        return self._writers[directory].write(size, run, calls)

    def sync(self, directory: str, begin: Begin) -> IoResult:
        """Flushes the metadata log, in its next round."""
        return self._syncers[directory].submit(begin)

    def join_sync(self, directory: str) -> None:
        """Counts one more log of a flush that waits for the next round."""
        self._syncers[directory].join()


class IoThreadPool:
    """The daemon's I/O executor."""

    def __init__(self, loop: asyncio.AbstractEventLoop, disk: Disk | None = None) -> None:
        """`disk`: the one whose deleted files a thread closes."""
        if disk is not None:
            disk.close_deleted = self.close_deleted
        self._loop = loop
        self._loop_thread = get_ident()
        self._closer = WorkerThread(loop, "closer")
        self._writers = self._threads_of(_WriterThread, "writer")
        self._syncers = self._threads_of(GroupCommit, "syncer")
        self._readers = self._threads_of(ReaderPool, "reader")
        self._namers = self._threads_of(WorkerThread, "names")
        self._background = self._threads_of(_BackgroundThread, "background")
        self._metadata_writers = self._threads_of(_WriterThread, "metadata writer")
        self._metadata_syncers = self._threads_of(GroupCommit, "metadata syncer")
        self.of_metadata_log = MetadataLogIo(self, self._metadata_writers, self._metadata_syncers)
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

    def write(self, directory: str, size: int, run: Run, calls: int = 1) -> IoResult:
        """Writes `size` bytes in a log directory."""
        if self.metered is not None:
            run = self.metered(run)
        return self._writers[directory].write(size, run, calls)

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

    def close_deleted(self, descriptor: int) -> None:
        """Closes the descriptor of a deleted file, at once unless the loop calls this; also in a finalizer (rule 6)."""
        if get_ident() == self._loop_thread and self._loop.is_running():
            self._loop.call_soon(self._closer.put, partial(_close, descriptor))
        else:
            _close(descriptor)

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
        """Finishes all queued jobs; their results are still reported on the loop, where they may submit others."""
        for thread in self._threads():
            thread.stop()

    def finish(self) -> bool:
        """Stops the threads and reports all results, also those of jobs that results submit; the loop is not running.

        False if `MAX_LAST_TURNS` turns of the loop do not suffice: jobs submit others without end, or results are lost by an
        exception in a callback.
        """
        for _ in range(MAX_LAST_TURNS):
            self.stop()
            if not any(thread.pending_jobs for thread in self._threads()):
                return True
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()
        return False

    def queues(self) -> list[tuple[str, str, int]]:
        """Kind and directory of each queue, and its jobs that are not reported yet."""
        kinds: tuple[tuple[str, Mapping[str, WorkerThread]], ...] = (
            ("write", self._writers),
            ("read", self._readers),
            ("names", self._namers),
            ("background", self._background),
            ("metadata_write", self._metadata_writers),
        )
        return [
            (kind, directory, thread.pending_jobs)
            for kind, threads in kinds
            for directory, thread in list(threads.items())
        ]

    def thread_writes(self) -> dict[str, int]:
        """By directory: writes that a thread made, not the event loop."""
        writes: Counter[str] = Counter()
        for directory, writer in (*self._writers.items(), *self._metadata_writers.items()):
            writes[directory] += writer.thread_writes
        return dict(writes)

    def group_commits(self) -> dict[str, list[GroupCommit]]:
        """The group commits by directory."""
        commits: dict[str, list[GroupCommit]] = {}
        for directory, commit in (*self._syncers.items(), *self._metadata_syncers.items()):
            commits.setdefault(directory, []).append(commit)
        return commits

    def _threads(self) -> list[WorkerThread]:
        kinds = (
            self._writers, self._syncers, self._readers, self._namers, self._background,
            self._metadata_writers, self._metadata_syncers,
        )  # fmt: skip
        return [self._closer, *[thread for kind in kinds for thread in kind.values()]]


def _close(descriptor: int) -> None:
    with suppress(OSError):  # nothing of a deleted file is needed
        os.close(descriptor)
