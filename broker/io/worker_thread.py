"""A thread with a queue: closed work goes in, reports come out on the loop.

RULES    1. The thread starts with the first job. Jobs are done in their order; reports go to the loop in batches.
         2. A fault of a job, anything but a StorageError, is raised on the loop.
         3. What does not find room on a full disk waits for it, and everything behind it waits too: it is tried again and
            again, until the end of the lane. What was done before it is reported meanwhile.
NOT HERE Which lanes there are, and what goes where (io_thread_pool.py). Why it waits: docs/decisions/0024-a-full-disk-is-a-delay.md
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread

from replication.io_executor import Done, Run
from storage.io.disk import StorageError

Job = tuple[Run, Done]
ROOM_S = 0.25
"""So often somebody looks whether there is room on a full disk."""


class Lane:
    """One thread and its queue; reports go to the loop in batches."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._name = name
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self.waiting = 0  # handed in and not yet reported, counted on the loop
        self._is_over = Event()
        self.on_room: Callable[[bool], None] = _nothing
        """Told on the loop that there is no room, and that there is room again."""

    def put(self, run: Run, done: Done) -> None:
        """Have it done behind all that was handed in before."""
        if not self._threads:
            self._start()
        self.waiting += 1
        self._queue.put((run, done))

    def wait_no_longer(self) -> None:
        """From now on a full disk is a failure like any other."""
        self._is_over.set()

    def stop(self) -> None:
        """Finish what is queued and end the thread."""
        self.wait_no_longer()
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
            self._do([job for job in jobs if job is not None])
            if is_last:
                return
            del jobs  # they hold files open, and the next job may be long in coming

    def _do(self, jobs: list[Job]) -> None:
        reports: list[tuple[Done, Exception | None]] = []
        for run, done in jobs:
            error = attempt(run)
            if is_full(error):
                if reports:
                    self._loop.call_soon_threadsafe(self._report, reports)
                    reports = []
                error = self.wait_for_room(run, error)
            reports.append((done, error))
        if reports:
            self._loop.call_soon_threadsafe(self._report, reports)

    def wait_for_room(self, run: Run, error: Exception | None) -> Exception | None:
        """Try again what found no room (in a thread); what came of it at last (rule 3)."""
        self._loop.call_soon_threadsafe(self.on_room, False)
        while is_full(error) and not self._is_over.wait(ROOM_S):
            error = attempt(run)
        self._loop.call_soon_threadsafe(self.on_room, True)
        return error

    def _report(self, reports: list[tuple[Done, Exception | None]]) -> None:
        for done, error in reports:
            self.waiting -= 1
            tell(done, error)


def is_full(error: Exception | None) -> bool:
    """Whether only room was missing."""
    return isinstance(error, StorageError) and error.is_full


def _nothing(_: bool) -> None:  # noqa: FBT001
    """Nobody asks."""


def attempt(run: Run) -> Exception | None:
    """What came of it."""
    try:
        run()
    except Exception as error:  # noqa: BLE001  # rule 2
        return error
    return None


def tell(done: Done, error: Exception | None) -> None:
    """Report it (on the loop)."""
    if error is not None and not isinstance(error, StorageError):
        raise error
    done(error)
