"""Record batches (message format v2), read and written byte for byte.

FORMAT   A header (`batch_header.py`), then the records, compressed together; `protocol/records.py` of the daemon draws it.
RULES    1. Header keys are bytes: a cluster may store what is not UTF-8.
         2. A batch whose CRC is wrong raises ClientError; so does a format before v2.
         3. With log append time every record has the batch's maximum timestamp.
NOT HERE Which batches are visible (`record_reader.py`), the codecs (`compression.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from crc32c import crc32c

from barnabas.client.batch_header import CRC_START, LENGTH_END, MAGIC, OVERHEAD, TRANSACTIONAL, BatchHeader, header_at
from barnabas.client.compression import compress, decompress
from barnabas.client.errors import ClientError

NO_PRODUCER = (-1, -1, -1)
SEQUENCES = 1 << 31
"""The sequence number after `SEQUENCES - 1` is 0."""
_CHECKED = struct.Struct(">hiqqqhii")

Header = tuple[bytes, bytes | None]


class Record(NamedTuple):
    """One record."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Unix milliseconds; -1: none."""
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    batch: BatchHeader


def batches_in(data: memoryview) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yields header and bytes of each whole batch. Raises ClientError."""
    at = 0
    while at + OVERHEAD <= len(data):
        batch = header_at(data, at)
        end = at + batch.size
        if batch.magic != MAGIC:
            raise ClientError(
                f"The batch at offset {batch.base_offset} has a format from before Kafka 0.11: not readable here."
            )
        if end > len(data):
            return
        yield batch, data[at:end]
        at = end


def records_in(topic: str, partition: int, batch: BatchHeader, data: memoryview) -> list[Record]:
    """The records of a batch. Raises ClientError."""
    if crc32c(data[CRC_START:]) != batch.crc:
        raise ClientError(f"{topic}-{partition}: the batch at offset {batch.base_offset} is corrupt: its CRC is wrong.")
    try:
        payload = bytes(decompress(batch.codec, data[OVERHEAD:]))
        return _decode(topic, partition, batch, payload)
    except (IndexError, ValueError) as failure:
        raise ClientError(
            f"{topic}-{partition}: the batch at offset {batch.base_offset} is corrupt: {failure}."
        ) from failure


def _decode(topic: str, partition: int, batch: BatchHeader, data: bytes) -> list[Record]:
    # The hot loop of consume: varints of one byte are read inline.
    found = []
    base_offset, base_timestamp = batch.base_offset, batch.base_timestamp
    append_time = batch.max_timestamp if batch.has_append_time else None
    new, at = tuple.__new__, 0
    for _ in range(batch.record_count):
        if (size := data[at]) < 0x80:
            at += 1
        else:
            size, at = _varint(data, at)
        end = at + (size >> 1)
        at += 1  # the attributes, unused
        if (delta := data[at]) < 0x80:
            at += 1
        else:
            delta, at = _varint(data, at)
        timestamp = base_timestamp + ((delta >> 1) ^ -(delta & 1)) if append_time is None else append_time
        if (delta := data[at]) < 0x80:
            at += 1
        else:
            delta, at = _varint(data, at)
        offset = base_offset + (delta >> 1)
        if (size := data[at]) < 0x80:
            at += 1
        else:
            size, at = _varint(data, at)
        key = None if size & 1 else data[at : (at := at + (size >> 1))]
        if (size := data[at]) < 0x80:
            at += 1
        else:
            size, at = _varint(data, at)
        value = None if size & 1 else data[at : (at := at + (size >> 1))]
        headers: Sequence[Header] = ()
        if data[at]:
            headers, at = _headers(data, at)
        else:
            at += 1
        if at != end:
            raise ValueError("a record does not end where its length says")
        found.append(new(Record, (topic, partition, offset, timestamp, key, value, headers, batch)))
    if at != len(data):
        raise ValueError("records remain after the last one")
    return found


def _headers(data: bytes, at: int) -> tuple[list[Header], int]:
    count, at = _varint(data, at)
    found = []
    for _ in range(count >> 1):
        size, at = _varint(data, at)
        name = data[at : (at := at + (size >> 1))]
        size, at = _varint(data, at)
        found.append((name, None if size & 1 else data[at : (at := at + (size >> 1))]))
    return found, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned varint and the position after it; the lowest bit of a zigzag number is its sign."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


# --- writing ----------------------------------------------------------------------------------------------------------


def encode_record(
    number: int, timestamp_delta: int, key: bytes | None, value: bytes | None, headers: Sequence[Header]
) -> bytes:
    """One record, the batch's record with this number."""
    before_key = _NULL if key is None else _zigzag(len(key))
    before_value = _NULL if value is None else _zigzag(len(value))
    after = _encode_headers(headers) if headers else b"\0"
    record = b"".join(
        (b"\0", _zigzag(timestamp_delta), _zigzag(number), before_key, key or b"", before_value, value or b"", after)
    )
    return _zigzag(len(record)) + record


def _encode_headers(headers: Sequence[Header]) -> bytes:
    parts = [_zigzag(len(headers))]
    for name, content in headers:
        parts += (_zigzag(len(name)), name)
        parts += (_NULL,) if content is None else (_zigzag(len(content)), content)
    return b"".join(parts)


def encode_batch(
    records: Sequence[bytes],
    base_timestamp: int,
    max_timestamp: int,
    *,
    codec: int = 0,
    producer: tuple[int, int, int] = NO_PRODUCER,
    is_transactional: bool = False,
) -> bytes:
    """A batch of encoded records; `producer` is id, epoch and first sequence number."""
    attributes = codec | (TRANSACTIONAL if is_transactional else 0)
    payload = compress(codec, b"".join(records))
    count = len(records)
    checked = _CHECKED.pack(attributes, count - 1, base_timestamp, max_timestamp, *producer, count) + payload
    before = struct.pack(">qiibI", 0, len(checked) + CRC_START - LENGTH_END, -1, MAGIC, crc32c(checked))
    return before + checked


def split_batch(data: bytes, codec: int) -> list[bytes]:
    """Two batches with the records of one; none if it has one record. Sequence numbers continue."""
    [(batch, view)] = batches_in(memoryview(data))
    if batch.record_count < 2:
        return []
    records = records_in("", 0, batch, view)
    half = len(records) // 2
    return [_again(batch, records[:half], 0, codec), _again(batch, records[half:], half, codec)]


def _again(batch: BatchHeader, records: Sequence[Record], before: int, codec: int) -> bytes:
    """A batch of some records; `before` of the batch are in another one."""
    base = records[0].timestamp
    encoded = [
        encode_record(number, record.timestamp - base, record.key, record.value, record.headers)
        for number, record in enumerate(records)
    ]
    sequence = batch.base_sequence if batch.base_sequence < 0 else (batch.base_sequence + before) % SEQUENCES
    return encode_batch(
        encoded,
        base,
        max(record.timestamp for record in records),
        codec=codec,
        producer=(batch.producer_id, batch.producer_epoch, sequence),
        is_transactional=batch.is_transactional,
    )


_NULL = b"\1"


@lru_cache(1 << 14)
def _zigzag(value: int) -> bytes:
    rest = value << 1 if value >= 0 else (-value << 1) - 1
    found = bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)
