"""Calls that run at the same time, one step at a time, in an order that the seed determines.

RULES    1. Each call has a thread, but only one runs: the others wait until the running one calls `switch`, or ends.
         2. `switch` continues a random call that has not ended; it may be the same one.
         3. The end of the process (`ProcessEnded`) is raised in `run` when all calls have ended.
NOT HERE Where calls switch: before each step of the disk (work_queues.py), and while a lock is held (held_lock.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from threading import Semaphore, Thread

from storage.io.disk import StorageError


class _Call:
    """One call, which waits until it is continued."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work
        self.turn = Semaphore(0)
        self.error: BaseException | None = None


class ConcurrentCalls:
    """Calls that run at the same time."""

    def __init__(self, random: Random, calls: Sequence[Callable[[], None]]) -> None:
        self._random = random
        self._running = [_Call(work) for work in calls]
        self._calls = tuple(self._running)
        self._all_ended = Semaphore(0)
        self._current = self._running[0]

    def run(self) -> list[StorageError | None]:
        """Run all calls; the error of each.

        Raises:
            BaseException: a call failed with something else.
        """
        threads = [Thread(target=self._run_one, args=(call,), daemon=True) for call in self._calls]
        for thread in threads:
            thread.start()
        self._continue_any()
        self._all_ended.acquire()
        for thread in threads:
            thread.join()
        errors: list[StorageError | None] = []
        for call in self._calls:
            if not (call.error is None or isinstance(call.error, StorageError)):
                raise call.error
            errors.append(call.error)
        return errors

    def switch(self) -> None:
        """Continue a random call; returns when the caller is continued."""
        caller = self._current
        self._continue_any()
        caller.turn.acquire()

    def _continue_any(self) -> None:
        self._current = self._random.choice(self._running)
        self._current.turn.release()

    def _run_one(self, call: _Call) -> None:
        call.turn.acquire()
        try:
            call.work()
        except BaseException as error:  # noqa: BLE001  # `run` raises it
            call.error = error
        self._running.remove(call)
        if self._running:
            self._continue_any()
        else:
            self._all_ended.release()
