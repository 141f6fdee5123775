"""The threads that read from one log directory: one while it is quick, more while one of them is stuck.

RULES    1. Threads take from one queue. Opening a log is twenty short calls of the system, after each of which its thread
            wants the interpreter back: several threads get into each other's and the loop's way more than they help. So
            one does it all, unless the head of the queue has not moved for PATIENCE_S: then another one is called. As
            long as there are several, each rests after a job.
         2. A thread reports together what it has done, when nothing is left for it or after REPORT_S. More is handed out
            when that was told of, so that a thread and the loop take turns.
         3. No thread is far ahead of the loop: what it opens stays open until the loop knows of it.
         4. What finds no room on a full disk, as the opening of a log may, is put aside and tried again: no thread waits
            for it.
NOT HERE What is read, and who waits for it (`replication/partition/replica_manager.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final

from broker.io.worker_thread import ROOM_S, Job, Lane, attempt, is_full
from replication.io_executor import Done, Run
from storage.io.disk import StorageError

READERS: Final = 4
UNREPORTED: Final = 2 * READERS
"""So much readers may have done of which the loop does not know yet."""
PATIENCE_S: Final = 0.005
REPORT_S: Final = 0.002


class ReaderLane(Lane):
    """A few threads and their queue."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        super().__init__(loop, name)
        self._backlog: deque[Job] = deque()
        self._handed_out: deque[Job] = deque()  # threads take from it
        self._unreported = 0
        self._at_work = 0  # threads that have not said since that they are idle
        self._is_watched = False
        self._aside: list[Job] = []

    def put(self, run: Run, done: Done) -> None:
        """Have it done, some time."""
        self.waiting += 1
        self._backlog.append((run, done))
        self._hand_out()

    def stop(self) -> None:
        """Finish what is queued and end the threads."""
        self.wait_no_longer()
        self._try_again()
        self._handed_out.extend(self._backlog)
        self._unreported += len(self._backlog)
        self._backlog.clear()
        self._call_a_thread()
        super().stop()

    # ------------------------------------------------------------ on the loop
    def _hand_out(self) -> None:
        while self._backlog and self._unreported < UNREPORTED:
            self._unreported += 1
            self._handed_out.append(self._backlog.popleft())
        if not self._at_work:
            self._call_a_thread()
        if self._handed_out and not self._is_watched:
            self._is_watched = True
            self._loop.call_later(PATIENCE_S, self._look, _head(self._handed_out))

    def _call_a_thread(self) -> None:
        job = _take(self._handed_out)
        if job is not None:
            self._at_work += 1
            if self._at_work > len(self._threads) < READERS:
                self._start()
            self._queue.put(job)

    def _look(self, head: Job | None) -> None:
        """Whether the queue has moved since (rule 1)."""
        self._is_watched = False
        if head is not None and head is _head(self._handed_out) and self._at_work < READERS:
            self._call_a_thread()
        self._hand_out()

    def _report(self, reports: list[tuple[Done, Exception | None]]) -> None:
        self._unreported -= len(reports)
        super()._report(reports)
        self._hand_out()

    def _rest(self, reports: list[tuple[Done, Exception | None]]) -> None:
        """A thread has nothing to do any more."""
        self._at_work -= 1
        self._report(reports)

    def _put_aside(self, job: Job) -> None:
        """Let others go on."""
        run, done = job
        if not isinstance(done, _AwaitsRoom):
            self.on_room(False)
            done = _AwaitsRoom(self, done)
        if not self._aside:
            self._loop.call_later(ROOM_S, self._try_again)
        self._aside.append((run, done))
        self.waiting -= 1
        self._unreported -= 1
        self._hand_out()

    def _try_again(self) -> None:
        aside, self._aside = self._aside, []
        for run, done in aside:
            self.put(run, done)

    # ------------------------------------------------------------ in the threads
    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            self._do_all(job)
            del job  # it holds files open, and the next one may be long in coming

    def _do_all(self, job: Job | None) -> None:
        """Do a job, and what else is handed out."""
        reports: list[tuple[Done, Exception | None]] = []
        began_s = time.monotonic()
        while job is not None:
            run, done = job
            error = attempt(run)
            if is_full(error) and not self._is_over.is_set():
                self._loop.call_soon_threadsafe(self._put_aside, job)
            else:
                reports.append((done, error))
            is_enough = self._at_work > 1 and not self._is_over.is_set()
            job = None if is_enough else _take(self._handed_out)
            now_s = time.monotonic()
            if job is not None and reports and now_s - began_s >= REPORT_S:
                self._loop.call_soon_threadsafe(self._report, reports)
                reports, began_s = [], now_s
        self._loop.call_soon_threadsafe(self._rest, reports)


class _AwaitsRoom:
    """Whom to tell of a job that found no room."""

    __slots__ = ("_done", "_lane")

    def __init__(self, lane: ReaderLane, done: Done) -> None:
        self._lane = lane
        self._done = done

    def __call__(self, error: StorageError | None) -> None:
        self._lane.on_room(True)
        self._done(error)


def _take(jobs: deque[Job]) -> Job | None:
    """The first, unless another thread was quicker."""
    try:
        return jobs.popleft()
    except IndexError:
        return None


def _head(jobs: deque[Job]) -> Job | None:
    try:
        return jobs[0]
    except IndexError:
        return None
