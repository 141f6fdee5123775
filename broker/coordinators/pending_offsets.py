"""The offsets of a shard's open transactions, by producer id and by partition.

RULES    1. An offset is superseded when a later commit of its partition is valid: it stays pending, and nothing is stored at
            the end of its transaction.
         2. A commit looks only at the transactions that have an offset of its partition: there may be thousands of others.
NOT HERE Valid offsets, and which commit is the later one (`offset_manager.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar

from broker.coordinators.classic.group_records import OffsetAndMetadata

K = TypeVar("K", bound=Hashable)


class PendingOffset(NamedTuple):
    """An offset of an open transaction."""

    number: int
    """Of the commit, in the order of the transactional commits of the shard."""
    committed: OffsetAndMetadata | bytes | None
    """None: a later commit is valid."""


class PendingOffsets(Generic[K]):
    """Offsets by producer id and key; a key names a group's partition."""

    __slots__ = ("_producers", "by_producer")

    def __init__(self) -> None:
        self.by_producer: dict[int, dict[K, PendingOffset]] = {}
        self._producers: dict[K, set[int]] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._producers

    @property
    def keys(self) -> Iterable[K]:
        """The partitions that have an offset in an open transaction."""
        return self._producers.keys()

    def add(self, producer_id: int, key: K, offset: PendingOffset) -> None:
        """Store an offset of a transaction."""
        self.by_producer.setdefault(producer_id, {})[key] = offset
        self._producers.setdefault(key, set()).add(producer_id)

    def pop(self, producer_id: int) -> dict[K, PendingOffset]:
        """Remove the offsets of a transaction that has ended, and return them."""
        pending = self.by_producer.pop(producer_id, {})
        for key in pending:
            producers = self._producers[key]
            producers.remove(producer_id)
            if not producers:
                del self._producers[key]
        return pending

    def supersede(self, key: K, before: int | None = None) -> None:
        """A commit is valid: the partition's offsets are superseded, those with numbers below `before`."""
        for producer_id in self._producers.get(key, ()):
            pending = self.by_producer[producer_id]
            found = pending[key]
            if found.committed is not None and (before is None or found.number < before):
                pending[key] = found._replace(committed=None)

    def remove(self, key: K) -> None:
        """A tombstone removes the partition's offsets."""
        for producer_id in self._producers.pop(key, ()):
            del self.by_producer[producer_id][key]
