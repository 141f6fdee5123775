"""A lookup that needs the disk, as self-contained work for a thread.

RULES    1. A method that may need the disk returns its result or a DiskLookup. In that case the call had no effect and is
            repeated after `run` and `finish`; the result of `run` is then available, even if the page cache lost the data.
         2. `run` uses only what it captured, in any thread. It records a KafkaError (invalid batches) as its result and raises
            a StorageError.
         3. `finish` runs on the calling thread and publishes the result, unless it is obsolete.
         4. `done` discards a result that is not cached, after all waiting callers have retried.
         5. Callers of the same lookup share one object, so the lookup runs once.
         6. A KafkaError is discarded by `done`, also one of a cached lookup: the next caller reads again. A cached result is
            discarded after _MAX_CACHED later ones: by then every waiting caller has retried.
         7. A caller that does not run a lookup drops it: until then its log keeps it, and so the files that it captured stay
            open, also deleted ones. The repeated call may need no lookup: the page may be in the page cache by then.
NOT HERE Threads and waiting requests (`replication/partition/disk_lookups.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, TypeVar, cast

from protocol.errors import KafkaError, without_frames
from protocol.primitives import Buffer
from storage.io.disk import File, StorageError

P = ParamSpec("P")
T = TypeVar("T")

_MAX_CACHED: Final = 64
_NO_LOOKUPS: Final[dict[Hashable, DiskLookup]] = {}
_NO_RESULTS: Final[dict[Hashable, object]] = {}
"""Both are shared by all logs that never had a lookup; nothing is added to them."""


class NotResident(Exception):
    """A thread must read the bytes: they are not in the page cache, or the file is not open."""


Read = Callable[[File, int, int], Buffer]
"""Reads up to a number of bytes at a position."""


def read_waiting(file: File, length: int, position: int) -> Buffer:
    """Read in a thread, or where blocking is allowed."""
    return file.pread(length, position)


def read_resident(file: File, length: int, position: int) -> Buffer:
    """Read without waiting; raises NotResident."""
    data = file.pread_if_resident(length, position)
    if data is None:
        raise NotResident
    return data


@dataclass(slots=True, eq=False)
class DiskLookup:
    """The work that a result needs before it is available without waiting for the disk."""

    _lookup: Callable[[], object]
    _on_result: Callable[[Any], object]
    """Receives the result of `_lookup`, or its KafkaError."""
    _on_done: Callable[[], object] | None = None
    """Discards the result."""
    _on_drop: Callable[[], object] | None = None
    """Forgets the lookup."""
    _outcome: Any = None

    def run(self) -> None:
        """Run the lookup; blocks.

        Raises:
            StorageError: the disk failed.
        """
        try:
            self._outcome = self._lookup()
        except KafkaError as error:
            self._outcome = without_frames(error)

    def finish(self) -> None:
        """Publish the result of `run`, and forget it: it may be a whole open log. Not called if `run` raised."""
        outcome, self._outcome = self._outcome, None
        self._on_result(outcome)

    def drop(self) -> None:
        """Forget the lookup, which nothing runs or waits for (rule 7)."""
        if self._on_drop is not None:
            self._on_drop()

    def done(self) -> None:
        """Discard the result: all waiting callers have retried, or the log was deleted while it was being opened."""
        self._outcome = None
        if self._on_done is not None:
            self._on_done()


class PendingLookups:
    """The lookups of one log that are pending, and their results, by key."""

    __slots__ = ("_pending", "_results")

    def __init__(self) -> None:
        self._pending = _NO_LOOKUPS
        self._results = _NO_RESULTS

    def get(
        self, key: Hashable, begin: Callable[[], tuple[Callable[[], T], Callable[[], object]]], *, is_cached: bool
    ) -> T | DiskLookup:
        """The result of the lookup with this key, or the pending lookup.

        `begin` starts a new one: it returns the work for a thread, and what the calling thread does after it, before the result
        is available.

        Raises:
            KafkaError: the data read is invalid.
        """
        if key in self._results:
            result = self._results[key]
            if isinstance(result, KafkaError):
                raise result
            return cast("T", result)
        if key not in self._pending:
            if self._pending is _NO_LOOKUPS:
                self._pending, self._results = {}, {}
            self._pending[key] = self._new_lookup(key, *begin(), is_cached=is_cached)
        return self._pending[key]

    def discard(self, key: Hashable) -> None:
        """Discard a cached result; an error stays until `done`."""
        if not isinstance(self._results.get(key), KafkaError):
            self._results.pop(key, None)

    def cancel(self) -> None:
        """Discard all results, also those of pending lookups, and ignore their disk errors."""
        pending, self._pending = self._pending, _NO_LOOKUPS
        pending.clear()  # each lookup refers to this dict
        self._results = _NO_RESULTS

    def _new_lookup(
        self, key: Hashable, work: Callable[[], T], on_finish: Callable[[], object], *, is_cached: bool
    ) -> DiskLookup:
        pending, results = self._pending, self._results

        def run() -> T | None:
            try:
                return work()
            except StorageError:
                if pending is self._pending:
                    raise
                return None  # the files are deleted

        def on_result(result: object) -> None:
            if pending is self._pending and pending.pop(key, None) is not None:
                on_finish()
                results[key] = result
                if len(results) > _MAX_CACHED:
                    del results[next(iter(results))]

        def on_done() -> None:
            if not is_cached or isinstance(results.get(key), KafkaError):
                results.pop(key, None)

        return DiskLookup(run, on_result, on_done, lambda: pending.pop(key, None))


def wait_for_disk(attempt: Callable[P, T | DiskLookup], *args: P.args, **kwargs: P.kwargs) -> T:
    """Repeat a call until it returns its result, and run the lookups that it returns before; blocks.

    Raises:
        StorageError: the disk failed.
    """
    finished: list[DiskLookup] = []
    try:
        while isinstance(found := attempt(*args, **kwargs), DiskLookup):
            found.run()
            found.finish()
            finished.append(found)
        return found
    finally:
        for lookup in finished:
            lookup.done()
