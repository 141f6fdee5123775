"""Looking a batch up by its offset; and the look-ups of one segment that a thread does, or did lately, because they
would have waited for the disk.

RULES    1. Who asks for an offset that is being looked up is handed the look-up that is under way.
         2. An answer is kept until so many later ones have come that nobody can be waiting for it any more.
         3. The batch at the place that an index names begins at or before the wanted offset: else the index is wrong, and
            what is wanted may lie before that place.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

from protocol.errors import ErrorCode, KafkaError
from protocol.records import BATCH_OVERHEAD, LENGTH_POSITION, LOG_OVERHEAD, MAGIC
from storage.engine import Buffer
from storage.io.disk import File
from storage.io.would_block import WouldBlock
from storage.segments.indexes import CorruptIndex, OffsetIndex, TimeIndex, TransactionIndex

_KEPT: Final = 64

_LENGTH: Final = Struct(">i")
_SHORT_HEADER: Final = Struct(">qi11xi")  # base offset, batch length, last offset delta
_ENTRY_HEADER: Final = Struct(">qi4xb6xi")  # with the magic number
_SMALLEST_LENGTH: Final = BATCH_OVERHEAD - LOG_OVERHEAD
FIRST_READ_BYTES: Final = 4096  # as far as an index entry reaches
LONG_READ_BYTES: Final = 65536  # when there is more to pass over than that

Place = tuple[int, int] | None
"""Position and size of a batch, if there is one."""


class NotAtHand(Exception):
    """A header would have to be read from the disk."""


class Opened(NamedTuple):
    """What a copy of a segment has open."""

    file: File | None
    indexes: tuple[OffsetIndex, TimeIndex] | None
    transactions: TransactionIndex | None
    copied_size: int
    """How large the segment was when it was copied, if its indexes were not open then."""
    size: int
    """Less than that where building the indexes anew found damage."""
    last_time: tuple[int, int] | None
    """The last entry of the time index, where that alone was read."""


class Lookups:
    """By offset: what is under way, and what was found."""

    __slots__ = ("_found", "under_way")

    def __init__(self) -> None:
        self.under_way: dict[int, WouldBlock[Place]] = {}
        self._found: dict[int, Place | KafkaError] = {}

    def has(self, offset: int) -> bool:
        """Whether the offset's batch was found, or seen not to be there."""
        return offset in self._found

    def answer(self, offset: int) -> Place:
        """What was found.

        Raises:
            KafkaError: damage, which is told once; the next look-up looks again.
        """
        found = self._found[offset]
        if isinstance(found, KafkaError):
            del self._found[offset]
            raise found
        return found

    def give_up(self) -> None:
        """Nobody is told what is under way; each look-up knows these, and would keep them, and the files that it opens."""
        self.under_way.clear()

    def keep(self, offset: int, found: Place | KafkaError) -> None:
        """Remember an answer."""
        self._found[offset] = found
        if len(self._found) > _KEPT:
            del self._found[next(iter(self._found))]


def search(
    path: str, base_offset: int, size: int, position: int, offset: int, read: Callable[[int, int], Buffer | None]
) -> Place:
    """Place of the first batch, at or behind `position`, whose last offset is at or above `offset`.

    Args:
        path: of the log, for messages.
        base_offset: of its segment.
        size: of the log.
        position: where a batch begins; unless it is 0, as an index says.
        offset: what is looked for.
        read: gives so many bytes at a position, or None for `NotAtHand`.

    Raises:
        CorruptIndex: what lies at `position` cannot be what an index would name (rule 3).
        KafkaError: CORRUPT_MESSAGE.
    """
    if position > 0 and position + BATCH_OVERHEAD > size:
        raise CorruptIndex("its index points behind its end")
    is_told = position > 0
    stride = FIRST_READ_BYTES
    while position + BATCH_OVERHEAD <= size:
        data = read(min(stride, size - position), position)
        if data is None:
            raise NotAtHand
        stride = BATCH_OVERHEAD if stride == FIRST_READ_BYTES else LONG_READ_BYTES
        at, end = 0, len(data) - _SHORT_HEADER.size
        if end < 0:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{path} ends before position {position}")
        if is_told and not _may_be_named(data, base_offset, offset):
            raise CorruptIndex(
                f"its index names position {position} for offset {offset}, where another batch is, or none"
            )
        is_told = False
        while at <= end:
            first, length, delta = _SHORT_HEADER.unpack_from(data, at)
            if length < _SMALLEST_LENGTH:
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{path} is damaged at position {position + at}")
            if first + delta >= offset:
                return position + at, length + LOG_OVERHEAD
            at += length + LOG_OVERHEAD
        position += at
    return None


def _may_be_named(data: Buffer, base_offset: int, offset: int) -> bool:
    first, length, magic, delta = _ENTRY_HEADER.unpack_from(data)
    return bool(magic == MAGIC and length >= _SMALLEST_LENGTH and delta >= 0 and base_offset <= first <= offset)


def whole_batches(data: bytes) -> bytes | memoryview:
    """Without the batch that is cut off at the end, if one is."""
    whole, end = 0, len(data) - LOG_OVERHEAD
    while whole <= end:
        (length,) = _LENGTH.unpack_from(data, whole + LENGTH_POSITION)
        if whole + length > end:
            break
        whole += length + LOG_OVERHEAD
    return data if whole == len(data) else memoryview(data)[:whole]
