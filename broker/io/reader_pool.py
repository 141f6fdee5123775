"""The reader threads of one log directory: one while it is fast, more while one is stuck.

RULES    1. All take from one list of ready jobs. Opening a log is five to twenty-five short system calls, and the thread
            needs the interpreter after each: several threads would slow each other and the loop down. So one thread runs all
            jobs unless no turn has ended for STUCK_AFTER_S: then it is stuck, and another one takes its place until it is
            stuck too. While several run that are not stuck, a turn is one job.
         2. A turn ends when the queue is empty or after TURN_S. The thread reports its results together; the loop handles all
            of them before it wakes a thread for the next turn. So both alternate instead of competing for the interpreter.
            Results that a thread has before it is stuck in a job are reported without it.
         3. Threads run at most MAX_UNREPORTED jobs ahead of the loop, which bounds the open files.
         4. Each thread waits at a queue of its own, and the one that has waited least is woken: of several threads that wait
            at one SimpleQueue each job wakes two, and they compete for the interpreter.
         5. A job that finds no space on a full disk, such as opening a log, is deferred and retried: no thread waits for it.
NOT HERE What is read (`replication/partition/disk_lookups.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from queue import SimpleQueue
from typing import Final

from broker.io.worker_thread import SPACE_CHECK_INTERVAL_S, Job, JobQueue, WorkerThread, is_full
from replication.io_executor import IoResult, Run

MAX_READERS: Final = 4
MAX_UNREPORTED: Final = 2 * MAX_READERS
"""The most jobs that threads have run and not reported."""
STUCK_AFTER_S: Final = 0.005
TURN_S: Final = 0.002


class ReaderPool(WorkerThread):
    """A few threads and their jobs."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        super().__init__(loop, name)
        self._backlog: deque[Job] = deque()
        self._ready_jobs: deque[Job] = deque()  # the threads take from it
        self._finished_jobs: deque[Job] = deque()  # the threads add to it
        self._unreported = 0
        self._idle_queues: list[JobQueue] = []  # of the threads that wait (rule 4)
        self._running: set[JobQueue | None] = set()  # the queues of threads in a turn that are not stuck
        self._stuck: set[JobQueue | None] = set()  # of those that are (rule 1)
        self._turns = 0  # that have ended
        self._is_check_scheduled = False
        self._deferred: list[Job] = []

    def put(self, run: Run) -> IoResult:
        """Submits a job."""
        job = Job(run)
        self._submit(job)
        return job

    def stop(self) -> None:
        """Runs the queued jobs and ends the threads."""
        self.stop_waiting_for_space()
        self._retry_deferred()
        self._ready_jobs.extend(self._backlog)
        self._unreported += len(self._backlog)
        self._backlog.clear()
        self._wake_thread()
        super().stop()

    # ------------------------------------------------------------ on the loop
    def _submit(self, job: Job) -> None:
        self.pending_jobs += 1
        self._backlog.append(job)
        self._fill_ready()

    def _fill_ready(self) -> None:
        while self._backlog and self._unreported < MAX_UNREPORTED:
            self._unreported += 1
            self._ready_jobs.append(self._backlog.popleft())
        if not self._running:
            self._wake_thread()
        if (self._ready_jobs or self._finished_jobs) and not self._is_check_scheduled:
            self._is_check_scheduled = True
            self._loop.call_later(STUCK_AFTER_S, self._check_progress, self._turns)

    def _wake_thread(self) -> None:
        if len(self._stuck) >= MAX_READERS and not self._is_stopping.is_set():
            return
        job = _pop(self._ready_jobs)
        if job is not None:
            if self._is_stopped:  # as in `WorkerThread.put`
                self._running.add(None)
                self._run_ready(job, None)
                return
            if self._idle_queues:
                queue = self._idle_queues.pop()
            else:
                queue = SimpleQueue()
                self._start(queue)
            self._running.add(queue)
            queue.put(job)

    def _check_progress(self, turns: int) -> None:
        """If no turn has ended since `turns` had, reports what was finished, and others take the jobs (rules 1, 2)."""
        self._is_check_scheduled = False
        if turns == self._turns:
            self._stuck |= self._running
            self._running.clear()
            self._report_finished()
        self._fill_ready()

    def _report_finished(self) -> None:
        finished: list[Job] = []
        while (job := _pop(self._finished_jobs)) is not None:
            finished.append(job)
        self._unreported -= len(finished)
        self._report(finished)

    def _on_turn_end(self, queue: JobQueue | None) -> None:
        """Reports the results of a thread's turn; jobs that follow from them start after all are reported (rule 2)."""
        try:
            self._report_finished()
        finally:
            self._running.discard(queue)
            self._stuck.discard(queue)
            if queue is not None:
                self._idle_queues.append(queue)
            self._turns += 1
            self._fill_ready()

    def _defer_until_space(self, job: Job) -> None:
        """Defers a job, so that others can run."""
        if not job.is_deferred:
            job.is_deferred = True
            self.on_space_change(False)
        if not self._deferred:
            self._loop.call_later(SPACE_CHECK_INTERVAL_S, self._retry_deferred)
        self._deferred.append(job)
        self.pending_jobs -= 1
        self._unreported -= 1
        self._fill_ready()

    def _retry_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for job in deferred:
            self._submit(job)

    # ------------------------------------------------------------ in the threads
    def _work(self, queue: JobQueue) -> None:
        while (job := queue.get()) is not None:
            self._run_ready(job, queue)
            del job  # release the files that the job holds while waiting for the next one

    def _run_ready(self, job: Job | None, queue: JobQueue | None) -> None:
        """Runs a job and the other ready ones; `queue`: where the thread waits."""
        began_s = time.monotonic()
        while job is not None:
            job.attempt()
            if is_full(job.failure) and not self._is_stopping.is_set():
                self._loop.call_soon_threadsafe(self._defer_until_space, job)
            else:
                self._finished_jobs.append(job)
            is_turn_over = len(self._running) > 1 or time.monotonic() - began_s >= TURN_S
            job = None if is_turn_over and not self._is_stopping.is_set() else _pop(self._ready_jobs)
        self._loop.call_soon_threadsafe(self._on_turn_end, queue)


def _pop(jobs: deque[Job]) -> Job | None:
    """The first job, unless another thread took it."""
    try:
        return jobs.popleft()
    except IndexError:
        return None
