"""A thread with a queue: jobs are submitted on the event loop, and their results are reported there.

RULES    1. The thread starts with the first job. Jobs run in order; results are reported in batches, those of slow jobs one
            by one.
         2. Any exception of a job but a StorageError is raised on the loop.
         3. A job that fails on a full disk is retried until there is space or the thread stops; the jobs behind it wait. The
            results of the jobs before it are reported meanwhile.
NOT HERE Which threads exist, and for what (io_thread_pool.py). Why jobs wait: docs/decisions/0024-full-disks.md
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Event, Thread

from protocol.errors import without_frames
from replication.completion import Completion
from replication.io_executor import IoResult, Run
from storage.io.disk import StorageError

SPACE_CHECK_INTERVAL_S = 0.25
"""How often a job is retried on a full disk."""
REPORT_S = 0.005
"""After this time the results of finished jobs are reported before the next job runs."""


class Job(Completion[StorageError | None]):
    """Work for a thread, and its result, which is reported on the loop."""

    __slots__ = ("failure", "is_deferred", "run")

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        self.failure: Exception | None = None
        """The exception of the last attempt."""
        self.is_deferred = False
        """Whether others run before it until the disk has space."""

    def attempt(self) -> None:
        """Runs it (in the thread)."""
        self.failure = attempt(self.run)

    def report(self) -> None:
        """Completes it, or raises a fault (rule 2)."""
        failure = self.failure
        if failure is not None and not isinstance(failure, StorageError):
            raise failure
        self.complete(failure)


JobQueue = SimpleQueue[Job | None]
"""Where a thread waits for jobs; None ends it."""


class WorkerThread:
    """One thread and its queue."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._name = name
        self._queue: JobQueue = SimpleQueue()
        self._threads: list[tuple[Thread, JobQueue]] = []
        self.pending_jobs = 0  # submitted and not yet reported, counted on the loop
        self._is_stopping = Event()
        self._is_stopped = False
        self.on_space_change: Callable[[bool], None] = lambda _: None
        """Called on the loop with False when a job waits for disk space, and with True when it has it."""

    def put(self, run: Run) -> IoResult:
        """Submits a job behind all earlier ones; after `stop` it runs now, since a thread might outlive the loop."""
        job = Job(run)
        self._enqueue(job)
        return job

    def _enqueue(self, job: Job) -> None:
        self.pending_jobs += 1
        if self._is_stopped:
            self._run_jobs([job])
            return
        if not self._threads:
            self._start(self._queue)
        self._queue.put(job)

    def stop_waiting_for_space(self) -> None:
        """From now on a full disk is an ordinary error."""
        self._is_stopping.set()

    def stop(self) -> None:
        """Runs the queued jobs and ends the thread."""
        self.stop_waiting_for_space()
        for _, queue in self._threads:
            queue.put(None)
        for thread, _ in self._threads:
            thread.join()
        self._threads.clear()
        self._is_stopped = True

    def _start(self, queue: JobQueue) -> None:
        """Starts a thread that takes jobs from this queue."""
        thread = Thread(target=self._work, args=(queue,), name=self._name, daemon=True)
        self._threads.append((thread, queue))
        thread.start()

    def _work(self, queue: JobQueue) -> None:
        while True:
            jobs = [queue.get()]
            while not queue.empty():
                jobs.append(queue.get())
            is_last = None in jobs
            self._run_jobs([job for job in jobs if job is not None])
            if is_last:
                return
            del jobs  # release the files that the jobs hold while waiting for the next one

    def _run_jobs(self, jobs: list[Job]) -> None:
        finished: list[Job] = []
        began_s = time.monotonic()
        at = 0
        while at < len(jobs):
            attempted = self._attempt_next(jobs, at)
            at += len(attempted)
            for job in attempted:
                if is_full(job.failure):
                    self._submit_report(finished)
                    finished = []
                    self.retry_until_space(job)
                finished.append(job)
            if (now_s := time.monotonic()) - began_s >= REPORT_S:
                self._submit_report(finished)
                finished, began_s = [], now_s
        self._submit_report(finished)

    def _attempt_next(self, jobs: Sequence[Job], at: int) -> Sequence[Job]:
        """Attempts the job at this index, and perhaps some that follow; returns them."""
        jobs[at].attempt()
        return (jobs[at],)

    def _submit_report(self, finished: list[Job]) -> None:
        if finished:
            self._loop.call_soon_threadsafe(self._report, finished)

    def retry_until_space(self, job: Job) -> None:
        """Retries a job that found no disk space (in the thread, rule 3)."""
        self._loop.call_soon_threadsafe(self.on_space_change, False)
        while is_full(job.failure) and not self._is_stopping.wait(SPACE_CHECK_INTERVAL_S):
            job.attempt()
        if not is_full(job.failure):  # otherwise the broker is shutting down
            self._loop.call_soon_threadsafe(self.on_space_change, True)

    def _report(self, finished: list[Job]) -> None:
        for job in finished:
            self.pending_jobs -= 1
            if job.is_deferred and not is_full(job.failure):
                self.on_space_change(True)
            job.report()


def is_full(error: Exception | None) -> bool:
    """Whether the error is a full disk."""
    return isinstance(error, StorageError) and error.is_full


def attempt(run: Run) -> Exception | None:
    """Runs a job; returns its exception, that of the disk without frames, which would keep files open."""
    try:
        run()
    except StorageError as error:
        return without_frames(error)
    except Exception as error:  # noqa: BLE001  # rule 2
        return error
    return None
