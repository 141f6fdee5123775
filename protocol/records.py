"""Record batches, message format v2: header views without copies, and the records inside.

FORMAT   one batch, big-endian, 61 bytes and then the records:
              0  i64  base offset               ┐ not covered by the CRC: the broker patches
              8  i32  length of all that follows │ base offset and leader epoch in place
             12  i32  leader epoch              │
             16  i8   magic, 2                  │
             17  u32  CRC-32C of byte 21 to the end ┘
             21  i16  attributes: bits 0-2 codec, 3 log append time, 4 transactional, 5 control, 6 delete horizon
             23  i32  last offset delta
             27  i64  base timestamp            43  i64  producer id      53  i32  base sequence
             35  i64  max timestamp             51  i16  producer epoch   57  i32  record count
RULES    1. Corrupt bytes raise KafkaError and nothing else: CORRUPT_MESSAGE for a batch, INVALID_RECORD for the
            records inside, UNSUPPORTED_FOR_MESSAGE_FORMAT for the formats before v2.
         2. A size is checked against the available bytes before it is used.
         3. Reading a header copies no record; patching writes only the bytes named above.
NOT HERE Building (`batch_builder.py`), the bytes of one record (`record_codec.py`), the codecs (`compression.py`), validation
         of produced batches (`storage/log/log_validator.py`).
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple, NoReturn

from protocol.compression import decompress
from protocol.crc32c import crc32c
from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import Buffer
from protocol.record_codec import (
    BYTES_REMAIN,
    NO_MORE_BYTES,
    Headers,
    invalid_record,
    read_record,
)

HEADER: Final = Struct(">qiibIhiqqqhii")
BATCH_OVERHEAD: Final = HEADER.size
LOG_OVERHEAD: Final = 12
LENGTH_POSITION: Final = 8
LEADER_EPOCH_POSITION: Final = 12
MAGIC_POSITION: Final = 16
CRC_POSITION: Final = 17
ATTRIBUTES_POSITION: Final = 21
MAX_TIMESTAMP_POSITION: Final = 35
MAGIC: Final = 2
MIN_RECORD_OVERHEAD: Final = 14  # Kafka's minimum record overhead over all formats

COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_LEADER_EPOCH: Final = -1

_I64 = Struct(">q")
_I32 = Struct(">i")
_U32 = Struct(">I")
_new_tuple = tuple.__new__


class TimestampType(IntEnum):
    """Which clock sets a batch's timestamps: the producer's or the broker's."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """The 61 bytes before a batch's records."""

    base_offset: int
    batch_length: int
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
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        """The offset of the last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        """The codec id; 5 to 7 are undefined."""
        return self.attributes & COMPRESSION_MASK

    @property
    def is_log_append_time(self) -> bool:
        """Whether the broker set the timestamp."""
        return bool(self.attributes & LOG_APPEND_TIME_BIT)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Whether the batch holds control records, which consumers do not return to the application."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When compaction may remove the batch's tombstones (stored in place of the base timestamp); None if not set."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record; sequence numbers wrap from 2**31 - 1 to 0."""
        first = self.base_sequence
        return NO_SEQUENCE if first == NO_SEQUENCE else (first + self.last_offset_delta) & 0x7FFFFFFF


class Record(NamedTuple):
    """One record as a consumer receives it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


# ---- batch header --------------------------------------------------------------------------------------------


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Parses the header at `position`; the records, which may be incomplete, and the CRC are not checked."""
    if len(buffer) - position < BATCH_OVERHEAD:
        _refuse_short(buffer, position)
    header: BatchHeader = _new_tuple(BatchHeader, HEADER.unpack_from(buffer, position))
    if header.magic != MAGIC or header.batch_length < BATCH_OVERHEAD - LOG_OVERHEAD:
        raise _refused(header.magic, header.batch_length)
    return header


def headers(buffer: Buffer) -> list[tuple[int, BatchHeader]]:
    """Every complete batch with its position; an incomplete last batch is left out."""
    found: list[tuple[int, BatchHeader]] = []
    position, end = 0, len(buffer)
    while end - position >= LOG_OVERHEAD:
        (length,) = _I32.unpack_from(buffer, position + LENGTH_POSITION)
        if length < MIN_RECORD_OVERHEAD:
            raise _refused(MAGIC, length)
        if length > end - position - LOG_OVERHEAD:
            break
        header = parse_header(buffer, position)
        found.append((position, header))
        position += length + LOG_OVERHEAD
    return found


def crc_is_valid(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    """Whether the CRC matches. The whole batch must be in the buffer."""
    end = position + header.size
    return crc32c(memoryview(buffer)[position + ATTRIBUTES_POSITION : end]) == header.crc


def patch(buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Set base offset and leader epoch, which the CRC does not cover."""
    _I64.pack_into(buffer, position, base_offset)
    _I32.pack_into(buffer, position + LEADER_EPOCH_POSITION, leader_epoch)


def set_max_timestamp(
    buffer: bytearray | memoryview, position: int, header: BatchHeader, kind: TimestampType, timestamp_ms: int
) -> BatchHeader:
    """Set the max timestamp and the timestamp type, recompute the CRC, and return the changed header."""
    attributes = header.attributes & ~LOG_APPEND_TIME_BIT
    if kind == TimestampType.LOG_APPEND_TIME:
        attributes |= LOG_APPEND_TIME_BIT
    buffer[position + ATTRIBUTES_POSITION + 1] = attributes & 0xFF  # the upper byte is unchanged
    _I64.pack_into(buffer, position + MAX_TIMESTAMP_POSITION, timestamp_ms)
    end = position + header.size
    crc = crc32c(memoryview(buffer)[position + ATTRIBUTES_POSITION : end])
    _U32.pack_into(buffer, position + CRC_POSITION, crc)
    return header._replace(attributes=attributes, max_timestamp=timestamp_ms, crc=crc)


def _refuse_short(buffer: Buffer, position: int) -> NoReturn:
    available = max(len(buffer) - position, 0)
    if available >= LOG_OVERHEAD:
        (length,) = _I32.unpack_from(buffer, position + LENGTH_POSITION)
        if length < MIN_RECORD_OVERHEAD:
            raise _refused(MAGIC, length)
    if available > MAGIC_POSITION and (magic := buffer[position + MAGIC_POSITION]) != MAGIC:
        raise _refused(magic if magic < 0x80 else magic - 0x100, MIN_RECORD_OVERHEAD)
    raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"A record batch's header is cut off after {available} bytes")


def _refused(magic: int, length: int) -> KafkaError:
    if length < MIN_RECORD_OVERHEAD:
        text = f"Record size {length} is less than the minimum record overhead ({MIN_RECORD_OVERHEAD})"
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, text)
    if magic in {0, 1}:
        return KafkaError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"Message format v{magic} is not supported, only v2"
        )
    if magic != MAGIC:
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"Invalid magic found in record: {magic}")
    text = f"Record batch is corrupt (the size {length + LOG_OVERHEAD} is smaller than {BATCH_OVERHEAD})"
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, text)


# ---- the records inside ----------------------------------------------------------------------------------


def record_bytes(buffer: Buffer, position: int, header: BatchHeader, max_bytes: int) -> Buffer:
    """The decompressed records of a batch."""
    end = position + header.size
    if end > len(buffer):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "A record batch is truncated")
    body = memoryview(buffer)[position + BATCH_OVERHEAD : end]
    return decompress(header.compression, body, max_bytes)


def records(buffer: Buffer, position: int, header: BatchHeader, *, max_bytes: int) -> list[Record]:
    """All records of one batch; `max_bytes` limits their decompressed size."""
    data = bytes(record_bytes(buffer, position, header, max_bytes))
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.is_log_append_time else None
    found: list[Record] = []
    at = 0
    try:
        for _ in range(header.record_count):
            timestamp, delta, key, value, pairs, at = read_record(data, at)
            stamp = base_timestamp + timestamp if append_time is None else append_time
            found.append(_new_tuple(Record, (base_offset + delta, stamp, key, value, pairs)))
    except IndexError:
        raise invalid_record(NO_MORE_BYTES) from None
    if at != len(data):
        raise invalid_record(BYTES_REMAIN)
    return found
