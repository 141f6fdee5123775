"""A thread with a queue: jobs are submitted on the event loop, and their results are reported there.

RULES    1. The thread starts with the first job. Jobs run in order; results are reported in batches.
         2. Any exception of a job but a StorageError is raised on the loop.
         3. A job that fails on a full disk is retried until there is space or the thread stops; the jobs behind it wait. The
            results of the jobs before it are reported meanwhile.
NOT HERE Which threads exist, and for what (io_thread_pool.py). Why jobs wait: docs/decisions/0024-full-disks.md
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread

from replication.io_executor import IoCallback, Run
from storage.io.disk import StorageError

Job = tuple[Run, IoCallback]
SPACE_CHECK_INTERVAL_S = 0.25
"""How often a job is retried on a full disk."""


class WorkerThread:
    """One thread and its queue."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._name = name
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self.pending_jobs = 0  # submitted and not yet reported, counted on the loop
        self._is_stopping = Event()
        self.on_space_change: Callable[[bool], None] = lambda _: None
        """Called on the loop with False when a job waits for disk space, and with True when it has it."""

    def put(self, run: Run, done: IoCallback) -> None:
        """Submits a job behind all earlier ones."""
        if not self._threads:
            self._start()
        self.pending_jobs += 1
        self._queue.put((run, done))

    def stop_waiting_for_space(self) -> None:
        """From now on a full disk is an ordinary error."""
        self._is_stopping.set()

    def stop(self) -> None:
        """Runs the queued jobs and ends the thread."""
        self.stop_waiting_for_space()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _start(self) -> None:
        thread = Thread(target=self._work, name=self._name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while True:
            jobs = [self._queue.get()]
            while not self._queue.empty():
                jobs.append(self._queue.get())
            is_last = None in jobs
            self._run_jobs([job for job in jobs if job is not None])
            if is_last:
                return
            del jobs  # release the files that the jobs hold while waiting for the next one

    def _run_jobs(self, jobs: list[Job]) -> None:
        reports: list[tuple[IoCallback, Exception | None]] = []
        for run, done in jobs:
            error = attempt(run)
            if is_full(error):
                if reports:
                    self._loop.call_soon_threadsafe(self._report, reports)
                    reports = []
                error = self.retry_until_space(run, error)
            reports.append((done, error))
        if reports:
            self._loop.call_soon_threadsafe(self._report, reports)

    def retry_until_space(self, run: Run, error: Exception | None) -> Exception | None:
        """Retries a job that found no disk space (in the thread); returns its last error (rule 3)."""
        self._loop.call_soon_threadsafe(self.on_space_change, False)
        while is_full(error) and not self._is_stopping.wait(SPACE_CHECK_INTERVAL_S):
            error = attempt(run)
        self._loop.call_soon_threadsafe(self.on_space_change, True)
        return error

    def _report(self, reports: list[tuple[IoCallback, Exception | None]]) -> None:
        for done, error in reports:
            self.pending_jobs -= 1
            report(done, error)


def is_full(error: Exception | None) -> bool:
    """Whether the error is a full disk."""
    return isinstance(error, StorageError) and error.is_full


def attempt(run: Run) -> Exception | None:
    """Runs a job; returns its exception."""
    try:
        run()
    except Exception as error:  # noqa: BLE001  # rule 2
        return error
    return None


def report(done: IoCallback, error: Exception | None) -> None:
    """Reports a result (on the loop)."""
    if error is not None and not isinstance(error, StorageError):
        raise error
    done(error)
