"""The header of a record batch, format v2.

FORMAT   Big-endian, in the order of `BatchHeader`; the records follow. `length` counts the bytes after itself. The CRC-32C
         covers everything from the attributes on. Attributes: bits 0-2 codec, 3 log append time, 4 transactional, 5 control.
RULES    1. Spark workers import it: only the standard library is imported.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, NamedTuple

CODES = "qiibIhiqqqhii"
"""The types of the fields, in the notation of `struct` and numpy."""
_STRUCT = Struct(f">{CODES}")
OVERHEAD = _STRUCT.size
LENGTH_END = 12
CRC_START = 21
MAGIC = 2

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20


class BatchHeader(NamedTuple):
    """A batch header."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """The size of the whole batch in bytes."""
        return LENGTH_END + self.length

    @property
    def last_offset(self) -> int:
        """The last offset of the batch, also if compaction removed its record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """The number of the compression."""
        return self.attributes & CODEC_MASK

    @property
    def has_append_time(self) -> bool:
        """Whether the broker set the timestamps."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the batch is a control batch (a transaction marker)."""
        return bool(self.attributes & CONTROL)


def header_at(data: Any, at: int) -> BatchHeader:
    """Reads the header at a position of a buffer."""
    return BatchHeader._make(_STRUCT.unpack_from(data, at))
