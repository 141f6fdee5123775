"""The opened files of one segment, and the search of a batch in them.

FORMAT   `<20-digit base offset>.log` is a sequence of batches (protocol/records.py); the indexes have the same stem.
RULES    1. Immutable: threads and the event loop share it, and the files stay open while it is referenced.
         2. A search reads batch headers: one index interval first, then header by header.
         3. The batch at an index entry's position starts at or below the wanted offset; otherwise the index is wrong, and
            the wanted batch may be before that position. The index of a segment with appends is then bypassed: the log is
            searched from its start.
NOT HERE Opening the files and rebuilding wrong indexes (sealed_segment.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import Buffer
from protocol.records import (
    BATCH_OVERHEAD,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    MIN_RECORD_OVERHEAD,
    BatchHeader,
    parse_header,
)
from storage.io.disk import File
from storage.io.disk_lookup import Read, read_waiting
from storage.segments.indexes import CorruptIndex, OffsetIndex, TimeIndex, TransactionIndex

_LENGTH: Final = Struct(">i")
_SHORT_HEADER: Final = Struct(">qi11xi")  # base offset, batch length, last offset delta
_ENTRY_HEADER: Final = Struct(">qi4xb6xi")  # with the magic byte
_OLD_HEADER: Final = Struct(">8xiIb")  # of formats before v2: length, CRC-32 of all that follows, magic byte
_CRC_BYTES: Final = 4
_SMALLEST_LENGTH: Final = BATCH_OVERHEAD - LOG_OVERHEAD
FIRST_READ_BYTES: Final = 4096  # the default index interval
LONG_READ_BYTES: Final = 65536  # for longer scans
LARGEST_BATCH_BYTES: Final = 1 << 27  # larger than any request: a greater length is damage

_log = logging.getLogger("barnabas.storage")

BatchPosition = tuple[int, int] | None
"""Position and size of a batch, or None."""


class SegmentFiles(NamedTuple):
    """The opened files of one segment."""

    log: File
    size: int
    """Of the published batches; smaller than the segment's if the index rebuild found an invalid batch."""
    offset_index: OffsetIndex
    time_index: TimeIndex
    transactions: TransactionIndex
    is_sealed: bool = True
    """Whether no appends add index entries, so that a wrong index can be rebuilt."""

    def find(self, offset: int, read: Read) -> BatchPosition:
        """Position and size of the first batch whose last offset is at or above `offset`; raises as `search`."""
        _, position = self.offset_index.lookup(offset, read)
        try:
            return search(self.log, self.offset_index.base_offset, self.size, position, offset, read)
        except CorruptIndex as error:
            if self.is_sealed:
                raise
            _log.warning("Searching %s from its start: %s", self.log.path, error)
            return search(self.log, self.offset_index.base_offset, self.size, 0, offset, read)

    def find_timestamp(self, target_ms: int, offset: int) -> int | None:
        """The base offset of the first batch from `offset` on whose max timestamp is at least `target_ms`."""
        _, first = self.time_index.lookup(target_ms)
        _, position = self.offset_index.lookup(max(first, offset))
        for _, header in headers_from(self.log, self.size, position):
            if header.max_timestamp >= target_ms and header.last_offset >= offset:
                return header.base_offset
        return None


def search(log: File, base_offset: int, size: int, position: int, offset: int, read: Read) -> BatchPosition:
    """The position of the first batch from `position` on whose last offset is at or above `offset`.

    `position`: of a batch, from the index unless 0.

    Raises:
        CorruptIndex: the batch at `position` contradicts the index (rule 3).
        KafkaError: CORRUPT_MESSAGE.
        NotResident: by `read`.
    """
    if position > 0 and position + BATCH_OVERHEAD > size:
        raise CorruptIndex("its index points beyond its end")
    is_indexed = position > 0
    stride = FIRST_READ_BYTES
    while position + BATCH_OVERHEAD <= size:
        data = read(log, min(stride, size - position), position)
        stride = BATCH_OVERHEAD if stride == FIRST_READ_BYTES else LONG_READ_BYTES
        at, end = 0, len(data) - _SHORT_HEADER.size
        if end < 0:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{log.path} ends before position {position}")
        if is_indexed and not _matches_index(data, base_offset, offset):
            raise CorruptIndex(f"its index has position {position} for offset {offset}, which is another batch or none")
        is_indexed = False
        while at <= end:
            first, length, delta = _SHORT_HEADER.unpack_from(data, at)
            if length < _SMALLEST_LENGTH:
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{log.path} is damaged at position {position + at}")
            if first + delta >= offset:
                return position + at, length + LOG_OVERHEAD
            at += length + LOG_OVERHEAD
        position += at
    return None


def _matches_index(data: Buffer, base_offset: int, offset: int) -> bool:
    first, length, magic, delta = _ENTRY_HEADER.unpack_from(data)
    return bool(magic == MAGIC and length >= _SMALLEST_LENGTH and delta >= 0 and base_offset <= first <= offset)


def headers_from(log: File, size: int, position: int) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of every batch from `position` on, up to `size`."""
    stride = FIRST_READ_BYTES
    while position + BATCH_OVERHEAD <= size:
        data = read_waiting(log, min(stride, size - position), position)
        if len(data) < BATCH_OVERHEAD:
            return
        at = 0
        while at + BATCH_OVERHEAD <= len(data):
            header = parse_header(data, at)
            if position + at + header.size > size:
                return
            yield position + at, header
            at += header.size
        stride = BATCH_OVERHEAD if at > 2 * stride else LONG_READ_BYTES
        position += at


def refuse_old_message(log: File, position: int) -> None:
    """Raise KafkaError if there is a whole message of format v0 or v1, which Apache Kafka reads: it must not be truncated."""
    data = log.pread(_OLD_HEADER.size, position)
    if len(data) < _OLD_HEADER.size:
        return
    length, crc, magic = _OLD_HEADER.unpack(data)
    if magic not in {0, 1} or not MIN_RECORD_OVERHEAD <= length <= LARGEST_BATCH_BYTES:
        return
    body = log.pread(length - _CRC_BYTES, position + MAGIC_POSITION)
    if len(body) == length - _CRC_BYTES and crc32(body) == crc:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"{log.path} has records in message format v{magic} at position {position}; only v2 is supported",
        )


def header_at(log: File, position: int) -> BatchHeader:
    """The header of the batch at `position`."""
    return parse_header(log.pread(BATCH_OVERHEAD, position))


def whole_batches(data: bytes) -> bytes | memoryview:
    """The data without a truncated batch at its end."""
    whole, end = 0, len(data) - LOG_OVERHEAD
    while whole <= end:
        (length,) = _LENGTH.unpack_from(data, whole + LENGTH_POSITION)
        if whole + length > end:
            break
        whole += length + LOG_OVERHEAD
    return data if whole == len(data) else memoryview(data)[:whole]
