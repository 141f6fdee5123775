"""The newest batches of the metadata log in memory: what followers and the loader read at once after it was written.

RULES    1. The batches are whole, written, and neighbours in the log. A truncation removes all.
         2. Older ones leave when there are more than `MAX_BYTES`.
NOT HERE Reads of older batches, which need the disk (metadata_log.py).
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from protocol.primitives import Buffer
from protocol.records import headers

MAX_BYTES: Final = 1024 * 1024


class _Batch(NamedTuple):
    """One batch."""

    base_offset: int
    next_offset: int
    data: bytes


class RecentBatches:
    """The end of the log."""

    __slots__ = ("_batches", "_size")

    def __init__(self) -> None:
        self._batches: deque[_Batch] = deque()
        self._size = 0

    def add(self, records: Buffer) -> None:
        """Add batches that were written to the end of the log."""
        data = bytes(records)
        for position, header in headers(data):
            batch = data[position : position + header.size]
            self._batches.append(_Batch(header.base_offset, header.next_offset, batch))
            self._size += header.size
        while self._size > MAX_BYTES and len(self._batches) > 1:
            self._size -= len(self._batches.popleft().data)

    def clear(self) -> None:
        """The log was truncated."""
        self._batches.clear()
        self._size = 0

    def has(self, offset: int) -> bool:
        """Whether the batch with this offset is here."""
        batches = self._batches
        return bool(batches) and batches[0].base_offset <= offset < batches[-1].next_offset

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Whole batches from one that is here on, at least one."""
        found: list[bytes] = []
        for batch in reversed(self._batches):
            if batch.next_offset <= offset:
                break
            found.append(batch.data)
        found.reverse()
        size, count = len(found[0]), 1
        while count < len(found) and size + len(found[count]) <= max_bytes:
            size += len(found[count])
            count += 1
        return b"".join(found[:count])
