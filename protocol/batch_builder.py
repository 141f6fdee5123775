"""Builds record batches.

NOT HERE The format, reading (`records.py`), control records (`control_records.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct

from protocol.compression import Compression, compress
from protocol.crc32c import crc32c
from protocol.primitives import Buffer, varint
from protocol.record_codec import encode_record, encode_records
from protocol.records import (
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    CONTROL_BIT,
    CRC_POSITION,
    HEADER,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchHeader,
    TimestampType,
)

_U32 = Struct(">I")
_new_tuple = tuple.__new__


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
