"""A thread with a queue: closed work goes in, reports come out on the loop.

RULES    1. The thread starts with the first job. Jobs are done in their order; reports go to the loop in batches.
         2. A fault of a job, anything but a StorageError, is raised on the loop.
NOT HERE Which lanes there are, and what goes where (workers.py).
"""

from __future__ import annotations

import asyncio
from queue import SimpleQueue
from threading import Thread

from replication.work import Done, Run
from storage.disk import StorageError

Job = tuple[Run, Done]


class Lane:
    """One thread and its queue; reports go to the loop in batches."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._name = name
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self.waiting = 0  # handed in and not yet reported, counted on the loop

    def put(self, run: Run, done: Done) -> None:
        """Have it done behind all that was handed in before."""
        if not self._threads:
            self._start()
        self.waiting += 1
        self._queue.put((run, done))

    def stop(self) -> None:
        """Finish what is queued and end the thread."""
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
            reports = [(job[1], attempt(job[0])) for job in jobs if job is not None]
            if reports:
                self._loop.call_soon_threadsafe(self._report, reports)
            if is_last:
                return
            del jobs, reports  # they hold files open, and the next job may be long in coming

    def _report(self, reports: list[tuple[Done, Exception | None]]) -> None:
        for done, error in reports:
            self.waiting -= 1
            tell(done, error)


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
