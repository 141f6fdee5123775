"""A lookup that needs the disk, as self-contained work for a thread.

RULES    1. A method that may need the disk returns its result or a DiskLookup. In that case the call had no effect and is
            repeated after `run` and `finish`; the result of `run` is then available, even if the page cache lost the data.
         2. `run` uses only what it captured, in any thread. It records a KafkaError (invalid batches) as its result and raises
            a StorageError.
         3. `finish` runs on the calling thread and publishes the result, unless it is obsolete.
         4. `done` discards a result that is not cached, after all waiting callers have retried.
         5. Callers of the same lookup share one object, so the lookup runs once.
NOT HERE Threads and waiting requests (`replication/partition/replica_manager.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from protocol.errors import KafkaError

P = ParamSpec("P")
T = TypeVar("T")


class DiskLookup:
    """The work that a result needs before it is available without waiting for the disk."""

    __slots__ = ("_lookup", "_on_done", "_on_result", "_outcome")

    def __init__(
        self,
        lookup: Callable[[], T],
        on_result: Callable[[T | KafkaError], object],
        on_done: Callable[[], object] | None = None,
    ) -> None:
        """`lookup`: the work; `on_result` receives its result or KafkaError; `on_done` discards the result."""
        self._lookup: Callable[[], object] = lookup
        self._on_result: Callable[..., object] = on_result
        self._on_done = on_done
        self._outcome: object = None

    def run(self) -> None:
        """Run the lookup; blocks.

        Raises:
            StorageError: the disk failed.
        """
        try:
            self._outcome = self._lookup()
        except KafkaError as error:
            self._outcome = error

    def finish(self) -> None:
        """Publish the result of `run`; not called if that raised."""
        self._on_result(self._outcome)

    def done(self) -> None:
        """Discard the result: all waiting callers have retried."""
        if self._on_done is not None:
            self._on_done()


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
