"""What an engine offers if it stores leader epochs and producer snapshots with the batches, instead of files beside them.

NOT HERE The files (log/leader_epoch_cache.py, log/producer_snapshots.py), the rest of an engine (engine.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from storage.engine import AbortedTransaction, Reservation


class StoresState:
    """An engine that stores what other engines' partitions have in files beside the records."""

    __slots__ = ()

    def leader_epochs(self) -> list[tuple[int, int]]:
        """The leader epochs of the batches and their first offsets, ascending."""
        raise NotImplementedError

    def snapshots(self) -> dict[int, bytes]:
        """The producer snapshots by offset, none above the log end.

        A truncation deletes those above its end, `trim` those before the first segment.
        """
        raise NotImplementedError

    def write_with(self, append: Reservation, snapshot: bytes | None, aborted: Sequence[AbortedTransaction]) -> None:
        """Write with a reserved append: the producer snapshot at its offset, and the transactions that it aborts.

        They are stored when the append is published.
        """
        raise NotImplementedError

    def store_snapshot(self, offset: int, data: bytes) -> None:
        """Store a producer snapshot, unless an append has stored it; the next sync makes it durable."""
        raise NotImplementedError

    def forget_snapshots(self, offsets: Iterable[int]) -> None:
        """Delete snapshots; they may return after a restart."""
        raise NotImplementedError
