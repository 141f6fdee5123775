"""The look-ups of one segment that a thread does, or did lately, because they would have waited for the disk.

RULES    1. Who asks for an offset that is being looked up is handed the look-up that is under way.
         2. An answer is kept until so many later ones have come that nobody can be waiting for it any more.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from protocol.errors import KafkaError
from protocol.records import LENGTH_POSITION, LOG_OVERHEAD
from storage.blocking import WouldBlock
from storage.disk import File
from storage.segments.indexes import OffsetIndex, TimeIndex, TransactionIndex

_KEPT: Final = 64

_LENGTH: Final = Struct(">i")

Place = tuple[int, int] | None
"""Position and size of a batch, if there is one."""


class Opened(NamedTuple):
    """What a copy of a segment has open."""

    file: File | None
    indexes: tuple[OffsetIndex, TimeIndex] | None
    transactions: TransactionIndex | None
    copied_size: int
    """How large the segment was when it was copied, if its indexes were not open then."""
    size: int
    """Less than that where building the indexes anew found damage."""


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

    def keep(self, offset: int, found: Place | KafkaError) -> None:
        """Remember an answer."""
        self._found[offset] = found
        if len(self._found) > _KEPT:
            del self._found[next(iter(self._found))]


def whole_batches(data: bytes) -> bytes | memoryview:
    """Without the batch that is cut off at the end, if one is."""
    whole, end = 0, len(data) - LOG_OVERHEAD
    while whole <= end:
        (length,) = _LENGTH.unpack_from(data, whole + LENGTH_POSITION)
        if whole + length > end:
            break
        whole += length + LOG_OVERHEAD
    return data if whole == len(data) else memoryview(data)[:whole]
