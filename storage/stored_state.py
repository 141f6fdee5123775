"""What an engine offers if it stores leader epochs and producer snapshots with the batches, instead of files beside them.

NOT HERE The files (log/leader_epoch_cache.py, log/producer_snapshots.py), the rest of an engine (engine.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from storage.engine import AbortedTransaction, Reservation


class StoresState(ABC):
    """An engine that stores what other engines' partitions have in files beside the records."""

    __slots__ = ()

    @abstractmethod
    def leader_epochs(self) -> list[tuple[int, int]]:
        """The leader epochs of the batches and their first offsets, ascending."""

    @abstractmethod
    def snapshots(self) -> dict[int, bytes]:
        """The producer snapshots by offset, none above the log end.

        A truncation deletes those above its end, `trim` those before the first segment.
        """

    @abstractmethod
    def write_with(self, append: Reservation, snapshot: bytes | None, aborted: Sequence[AbortedTransaction]) -> None:
        """Write with a reserved append: the producer snapshot at its offset, and the transactions that it aborts.

        They are stored when the append is published.
        """

    @abstractmethod
    def store_snapshot(self, offset: int, data: bytes) -> None:
        """Store a producer snapshot, unless an append has stored it; the next sync makes it durable."""

    @abstractmethod
    def forget_snapshots(self, offsets: Iterable[int]) -> None:
        """Delete snapshots; they may return after a restart."""
