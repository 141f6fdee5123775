"""Record batches, message format v2: header views without copies, a builder, and the records inside.

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
         a control record's key is i16 version 0, i16 type
RULES    1. Corrupt bytes raise KafkaError and nothing else: CORRUPT_MESSAGE for a batch, INVALID_RECORD for the
            records inside, UNSUPPORTED_FOR_MESSAGE_FORMAT for the formats before v2.
         2. A size is checked against the available bytes before it is used.
         3. Reading a header copies no record; patching writes only the bytes named above.
NOT HERE The bytes of one record (record_codec.py), the codecs (compression.py), validation of produced batches
         (`storage/log/log_validator.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple, NoReturn, Protocol, TypeAlias

from protocol.compression import Compression, compress, decompress
from protocol.crc32c import crc32c
from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import Buffer, varint
from protocol.record_codec import (
    BYTES_REMAIN,
    NO_MORE_BYTES,
    Headers,
    encode_record,
    encode_records,
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
_CONTROL_KEY = Struct(">hh")
_END_TXN_VALUE = Struct(">hi")
_new_tuple = tuple.__new__


class TimestampType(IntEnum):
    """Which clock sets a batch's timestamps: the producer's or the broker's."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class ControlType(IntEnum):
    """The type in a control record's key."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class HasFileno(Protocol):
    """An open file, as a region needs it."""

    def fileno(self) -> int:
        """The file descriptor to send from."""
        ...


class FileRegion:
    """A range of an open file that is sent without being read; it holds a reference to the file."""

    __slots__ = ("file", "length", "position")

    def __init__(self, file: HasFileno, position: int, length: int) -> None:
        self.file = file
        self.position = position
        self.length = length

    def __len__(self) -> int:
        """Bytes, as of the other parts of a response."""
        return self.length

    @property
    def spans(self) -> tuple[tuple[int, int]]:
        """As of a ScatteredRegion."""
        return ((self.position, self.length),)

    def __repr__(self) -> str:
        return f"FileRegion({self.file!r}, {self.position}, {self.length})"


class ScatteredRegion:
    """Ranges of an open file that are sent one after the other, like one FileRegion; it never changes."""

    __slots__ = ("file", "length", "spans")

    def __init__(self, file: HasFileno, spans: Sequence[tuple[int, int]], length: int) -> None:
        """`spans`: position and length of each range, at least one; `length`: of all."""
        self.file = file
        self.spans = spans
        self.length = length

    def __len__(self) -> int:
        """Bytes, as of the other parts of a response."""
        return self.length

    def __repr__(self) -> str:
        return f"ScatteredRegion({self.file!r}, {self.spans!r})"

    def after(self, count: int, length: int) -> ScatteredRegion:
        """The region without its first `count` ranges, which have this length."""
        return ScatteredRegion(self.file, self.spans[count:], self.length - length)


Region: TypeAlias = FileRegion | ScatteredRegion
"""Stored batches of a response."""


def file_regions(regions: Iterable[Region]) -> Iterator[FileRegion]:
    """The contiguous ranges of these regions, in order."""
    for region in regions:
        if isinstance(region, FileRegion):
            yield region
        else:
            yield from [FileRegion(region.file, position, length) for position, length in region.spans]


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


# ---- building --------------------------------------------------------------------------------------------


class BatchBuilder:
    """Builds one batch, record by record."""

    __slots__ = (
        "_attributes", "_base_offset", "_base_sequence", "_base_timestamp", "_body", "_compression",
        "_compression_level", "_count", "_last_offset", "_leader_epoch", "_max_timestamp", "_producer_epoch",
        "_producer_id",
    )  # fmt: skip

    def __init__(
        self,
        base_offset: int = 0,
        *,
        compression: int = Compression.NONE,
        compression_level: int | None = None,
        timestamp_type: TimestampType = TimestampType.CREATE_TIME,
        leader_epoch: int = NO_LEADER_EPOCH,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        transactional: bool = False,
        control: bool = False,
    ) -> None:
        self._base_offset = base_offset
        self._compression = compression
        self._compression_level = compression_level
        self._leader_epoch = leader_epoch
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._base_sequence = base_sequence
        self._attributes = (
            compression
            | (LOG_APPEND_TIME_BIT if timestamp_type == TimestampType.LOG_APPEND_TIME else 0)
            | (TRANSACTIONAL_BIT if transactional else 0)
            | (CONTROL_BIT if control else 0)
        )
        self._body = bytearray()
        self._count = 0
        self._base_timestamp = NO_TIMESTAMP
        self._max_timestamp = NO_TIMESTAMP
        self._last_offset = base_offset - 1

    @property
    def count(self) -> int:
        """The number of records so far."""
        return self._count

    @property
    def size(self) -> int:
        """The size of the batch so far, before compression."""
        return BATCH_OVERHEAD + len(self._body)

    @property
    def next_offset(self) -> int:
        """The offset of the next record."""
        return self._last_offset + 1

    def append(
        self,
        timestamp_ms: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        *,
        offset: int | None = None,
    ) -> None:
        """Add a record; `offset` may leave gaps, as after compaction, but must ascend."""
        if offset is None:
            offset = self._last_offset + 1
        else:
            assert offset > self._last_offset, "offsets of a batch ascend"
        if not self._count:
            self._base_timestamp = timestamp_ms
            self._max_timestamp = timestamp_ms
        elif timestamp_ms > self._max_timestamp:
            self._max_timestamp = timestamp_ms
        self._last_offset = offset
        self._count += 1
        record = encode_record(timestamp_ms - self._base_timestamp, offset - self._base_offset, key, value, headers)
        self._body += varint(len(record))
        self._body += record

    def append_encoded(self, timestamp_ms: int, fields: bytes) -> None:
        """Add a record whose key, value and headers are encoded; all records have one timestamp."""
        assert not self._count or self._base_timestamp == timestamp_ms, "all records have one timestamp"
        self._base_timestamp = self._max_timestamp = timestamp_ms
        self._last_offset += 1
        self._count += 1
        delta = varint(self._last_offset - self._base_offset)
        self._body += b"".join((varint(2 + len(delta) + len(fields)), b"\0\0", delta, fields))

    def extend(self, timestamp_ms: int, records: Iterable[tuple[Buffer | None, Buffer | None]]) -> None:
        """Add key-value records without headers that all have one timestamp, which is also that of any earlier record."""
        assert not self._count or self._base_timestamp == self._max_timestamp == timestamp_ms, (
            "all records have one timestamp"
        )
        self._base_timestamp = self._max_timestamp = timestamp_ms
        first = self._last_offset + 1 - self._base_offset
        encoded = encode_records(first, records)
        self._last_offset += len(encoded)
        self._count += len(encoded)
        self._body += b"".join(encoded)

    def build(self) -> bytearray:
        """Returns the whole batch, with its CRC."""
        assert self._count, "a batch holds at least one record"
        return assemble(
            BatchHeader(
                self._base_offset,
                0,
                self._leader_epoch,
                MAGIC,
                0,
                self._attributes,
                self._last_offset - self._base_offset,
                self._base_timestamp,
                self._max_timestamp,
                self._producer_id,
                self._producer_epoch,
                self._base_sequence,
                self._count,
            ),
            compress(self._compression, self._body, self._compression_level),
        )


def batch_of(body: bytes, count: int, timestamp_ms: int) -> bytearray:
    """Builds a batch without producer from records that are encoded at offset deltas from 0 and timestamp delta 0."""
    time_ms, no_producer = timestamp_ms, (NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)
    header = (0, 0, NO_LEADER_EPOCH, MAGIC, 0, 0, count - 1, time_ms, time_ms, *no_producer, count)
    return assemble(_new_tuple(BatchHeader, header), body)


def assemble(header: BatchHeader, body: Buffer) -> bytearray:
    """Builds a batch from a header and stored records; computes length and CRC."""
    size = BATCH_OVERHEAD + len(body)
    batch = bytearray(size)
    HEADER.pack_into(batch, 0, header.base_offset, size - LOG_OVERHEAD, *header[2:])
    batch[BATCH_OVERHEAD:] = body
    _U32.pack_into(batch, CRC_POSITION, crc32c(memoryview(batch)[ATTRIBUTES_POSITION:]))
    return batch


# ---- control batches -------------------------------------------------------------------------------------


def control_batch(
    entries: Iterable[tuple[ControlType, bytes]],
    *,
    base_offset: int,
    timestamp_ms: int,
    leader_epoch: int,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    transactional: bool = False,
) -> bytearray:
    """Builds one batch of control records from types and encoded values."""
    builder = BatchBuilder(
        base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=transactional,
        control=True,
    )
    for kind, value in entries:
        builder.append(timestamp_ms, _CONTROL_KEY.pack(0, kind), value)
    return builder.build()


def end_txn_marker(
    kind: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytearray:
    """Builds the control batch that ends a transaction in one partition: COMMIT or ABORT."""
    return control_batch(
        [(kind, _END_TXN_VALUE.pack(0, coordinator_epoch))],
        base_offset=base_offset,
        timestamp_ms=timestamp_ms,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
    )


def control_type(key: bytes | None) -> int:
    """The type in a control record's key; a number that ControlType lacks belongs to a later version."""
    if key is None or len(key) < _CONTROL_KEY.size:
        raise invalid_record("Invalid control record key: it has fewer than 4 bytes")
    version, kind = _CONTROL_KEY.unpack_from(key)
    if version < 0:
        raise invalid_record(f"Invalid version found for control record: {version}. May indicate data corruption")
    return int(kind)


def coordinator_epoch_of(value: bytes | None) -> int:
    """The coordinator epoch in the value of an EndTxn marker."""
    if value is None or len(value) < _END_TXN_VALUE.size:
        raise invalid_record("Invalid end transaction marker: its value has fewer than 6 bytes")
    _, coordinator_epoch = _END_TXN_VALUE.unpack_from(value)
    return int(coordinator_epoch)
