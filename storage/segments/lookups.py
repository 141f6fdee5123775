"""The search of a batch by offset, and the lookups of one segment that run in another thread.

RULES    1. Callers of a pending lookup share it.
         2. A result is cached until _MAX_CACHED later ones exist: by then every waiting caller has retried.
         3. The batch at an index entry's position starts at or below the wanted offset; otherwise the index is wrong, and
            the wanted batch may be before that position.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

from protocol.errors import ErrorCode, KafkaError
from protocol.records import BATCH_OVERHEAD, LENGTH_POSITION, LOG_OVERHEAD, MAGIC
from storage.engine import Buffer
from storage.io.disk import File
from storage.io.disk_lookup import DiskLookup
from storage.segments.indexes import CorruptIndex, OffsetIndex, TimeIndex, TransactionIndex

_MAX_CACHED: Final = 64

_LENGTH: Final = Struct(">i")
_SHORT_HEADER: Final = Struct(">qi11xi")  # base offset, batch length, last offset delta
_ENTRY_HEADER: Final = Struct(">qi4xb6xi")  # with the magic byte
_SMALLEST_LENGTH: Final = BATCH_OVERHEAD - LOG_OVERHEAD
FIRST_READ_BYTES: Final = 4096  # the default index interval
LONG_READ_BYTES: Final = 65536  # for longer scans

BatchPosition = tuple[int, int] | None
"""Position and size of a batch, or None."""


class NotResident(Exception):
    """The header is not in the page cache."""


class OpenedFiles(NamedTuple):
    """The files that a copy of a segment has opened."""

    file: File | None
    indexes: tuple[OffsetIndex, TimeIndex] | None
    transactions: TransactionIndex | None
    copied_size: int
    """The segment's size when it was copied, if its indexes were not open then."""
    size: int
    """Smaller than `copied_size` if the index rebuild found an invalid batch."""
    last_time: tuple[int, int] | None
    """The last entry of the time index, if only that was read."""


class PendingLookups:
    """Pending lookups and cached results by offset."""

    __slots__ = ("_results", "pending")

    def __init__(self) -> None:
        self.pending: dict[int, DiskLookup] = {}
        self._results: dict[int, BatchPosition | KafkaError] = {}

    def has(self, offset: int) -> bool:
        """Whether there is a result for the offset."""
        return offset in self._results

    def result(self, offset: int) -> BatchPosition:
        """The result of a lookup.

        Raises:
            KafkaError: an invalid batch; the error is removed, so that the next lookup runs again.
        """
        found = self._results[offset]
        if isinstance(found, KafkaError):
            del self._results[offset]
            raise found
        return found

    def store(self, offset: int, found: BatchPosition | KafkaError) -> None:
        """Cache a result."""
        self._results[offset] = found
        if len(self._results) > _MAX_CACHED:
            del self._results[next(iter(self._results))]


def search(
    path: str, base_offset: int, size: int, position: int, offset: int, read: Callable[[int, int], Buffer | None]
) -> BatchPosition:
    """The position of the first batch from `position` on whose last offset is at or above `offset`.

    `position`: of a batch, from the index unless 0; `read`: reads up to a number of bytes at a position, None raises
    `NotResident`.

    Raises:
        CorruptIndex: the batch at `position` contradicts the index (rule 3).
        KafkaError: CORRUPT_MESSAGE.
    """
    if position > 0 and position + BATCH_OVERHEAD > size:
        raise CorruptIndex("its index points beyond its end")
    is_indexed = position > 0
    stride = FIRST_READ_BYTES
    while position + BATCH_OVERHEAD <= size:
        data = read(min(stride, size - position), position)
        if data is None:
            raise NotResident
        stride = BATCH_OVERHEAD if stride == FIRST_READ_BYTES else LONG_READ_BYTES
        at, end = 0, len(data) - _SHORT_HEADER.size
        if end < 0:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{path} ends before position {position}")
        if is_indexed and not _matches_index(data, base_offset, offset):
            raise CorruptIndex(f"its index has position {position} for offset {offset}, which is another batch or none")
        is_indexed = False
        while at <= end:
            first, length, delta = _SHORT_HEADER.unpack_from(data, at)
            if length < _SMALLEST_LENGTH:
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{path} is damaged at position {position + at}")
            if first + delta >= offset:
                return position + at, length + LOG_OVERHEAD
            at += length + LOG_OVERHEAD
        position += at
    return None


def _matches_index(data: Buffer, base_offset: int, offset: int) -> bool:
    first, length, magic, delta = _ENTRY_HEADER.unpack_from(data)
    return bool(magic == MAGIC and length >= _SMALLEST_LENGTH and delta >= 0 and base_offset <= first <= offset)


def whole_batches(data: bytes) -> bytes | memoryview:
    """The data without a truncated batch at its end."""
    whole, end = 0, len(data) - LOG_OVERHEAD
    while whole <= end:
        (length,) = _LENGTH.unpack_from(data, whole + LENGTH_POSITION)
        if whole + length > end:
            break
        whole += length + LOG_OVERHEAD
    return data if whole == len(data) else memoryview(data)[:whole]
