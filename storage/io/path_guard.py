"""Guards the paths of a log's files: a directory is renamed only when no thread uses them.

RULES    1. Work that addresses files by path runs under the guard; for an offline or deleted log it does not run.
         2. A rename of a log's directory waits for the users that started before it: their paths could otherwise refer
            to a topic that was created again with the same name.
         3. Only a rename waits for users of the path to finish; users wait only for the disk.
NOT HERE Real locks: the broker passes a factory for them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol

from storage.io.deferred_file_ops import FileOp

LockContext = AbstractContextManager[object]


class GuardedLog(Protocol):
    """A log."""

    is_offline: bool
    """Whether the log was deleted or its directory failed."""


class PathGuard:
    """The current users of all log paths of a broker."""

    __slots__ = ("_mutex", "_new_lock", "_users")

    def __init__(self, new_lock: Callable[[], LockContext]) -> None:
        self._new_lock = new_lock
        self._mutex = new_lock()
        self._users: dict[LockContext, GuardedLog] = {}

    def run(self, log: GuardedLog, work: FileOp) -> None:
        """Run work on a log's paths, in any thread, unless the log is offline."""
        lock = self._new_lock()
        with lock:
            with self._mutex:
                if log.is_offline:
                    return
                self._users[lock] = log
            try:
                work()
            finally:
                with self._mutex:
                    del self._users[lock]

    def wait_for_users(self, log: GuardedLog) -> None:
        """Return when no thread uses the paths of an offline log; blocks."""
        with self._mutex:
            locks = [lock for lock, used in self._users.items() if used is log]
        for lock in locks:
            with lock:
                pass


UNGUARDED: Final = PathGuard(nullcontext)
"""For use without threads."""
