"""WouldBlock: raised instead of waiting for the disk; carries the lookup as self-contained work for a thread.

RULES    1. Only calls with `may_block=False` raise it. The call had no effect and is repeated after `run` and `finish`; the
            result of `run` is then available, even if the page cache lost the data again.
         2. `run` uses only what it captured, in any thread. It records a KafkaError (invalid batches) as its result and raises
            a StorageError.
         3. `finish` runs on the calling thread and publishes the result, unless it is obsolete.
         4. `done` discards a result that is not cached, after all waiting callers have retried.
         5. Callers of the same lookup share one object, so the lookup runs once.
NOT HERE Threads and waiting requests (`replication/partition/replica_manager.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from protocol.errors import KafkaError

T = TypeVar("T")


class WouldBlock(Exception, Generic[T]):
    """The result needs the disk, and the caller must not block."""

    def __init__(
        self,
        lookup: Callable[[], T],
        on_result: Callable[[T | KafkaError], object],
        on_done: Callable[[], object] | None = None,
    ) -> None:
        """`lookup`: the work; `on_result` receives its result or KafkaError; `on_done` discards the result."""
        super().__init__()
        self._lookup = lookup
        self._on_result = on_result
        self._on_done = on_done
        self._outcome: T | KafkaError | None = None

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
        self._on_result(self._outcome)  # type: ignore[arg-type]  # `run` has set it

    def done(self) -> None:
        """Discard the result: all waiting callers have retried."""
        if self._on_done is not None:
            self._on_done()
