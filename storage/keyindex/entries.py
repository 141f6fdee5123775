"""Entries of a key index: what is indexed of a record, and the 16 bytes that lead to its offset.

FORMAT   hash 5, offset 7, seconds 4, all big-endian, so that the order of the bytes is that of hash and offset
             hash      the first 5 bytes of BLAKE2b over the field, a zero byte, and the value
             seconds   of the record's timestamp since 1970, within 32 bits
RULES    1. A field is `key` or `header:<name>`. A record has one entry for its key and one for each header of the name; null
            has none.
         2. A hash only leads to candidates: the caller compares the record's bytes.
         3. Control batches have no entries. Those of aborted transactions have: the outcome may change while the records stay
            (a truncation removes the marker). A search leaves them out.
         4. A batch that cannot be decoded has no entries: no consumer can read its records either.
NOT HERE Files of entries (index_file.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Final, NamedTuple

from protocol.errors import KafkaError
from protocol.primitives import Buffer
from protocol.record_codec import read_record, read_varint, read_varlong
from protocol.records import BatchHeader, Record, crc_is_valid, headers, record_bytes, records
from storage.engine import AbortedTransaction

KEY: Final = "key"
HEADER: Final = "header:"
HASH_BYTES: Final = 5
OFFSET_END: Final = 12
ENTRY_BYTES: Final = 16
MAX_RECORDS_BYTES: Final = 256 * 1024 * 1024
"""Limit for the uncompressed records of one batch."""
NO_TIMESTAMPS: Final = ((1 << 63) - 1, -(1 << 63))
"""The least and the greatest timestamp of no records."""
_MAX_SECONDS: Final = 0xFFFF_FFFF


class IndexedBatches(NamedTuple):
    """The entries of consecutive batches."""

    entries: list[bytes]
    """Unsorted."""
    next_offset: int
    """After the last batch; all before it is indexed."""
    leader_epoch: int
    """Of the last batch; -1 if there is none."""
    min_timestamp_ms: int
    max_timestamp_ms: int
    """NO_TIMESTAMPS if no record has an entry."""


def field_hash(field: str, value: bytes) -> bytes:
    """The hash of a field's value."""
    return blake2b(field.encode("utf-8", "surrogateescape") + b"\0" + value, digest_size=HASH_BYTES).digest()


def seconds_of(timestamp_ms: int) -> int:
    """Milliseconds since 1970 as the seconds of an entry."""
    return min(max(timestamp_ms // 1000, 0), _MAX_SECONDS)


def new_entry(hashed: bytes, offset: int, timestamp_ms: int) -> bytes:
    """The entry of a record."""
    return hashed + (offset << 32 | seconds_of(timestamp_ms)).to_bytes(ENTRY_BYTES - HASH_BYTES, "big")


def upper_bound(hashed: bytes, before_offset: int) -> bytes:
    """The first 12 bytes of an entry: those of the hash with offsets below `before_offset` are smaller."""
    return hashed + before_offset.to_bytes(OFFSET_END - HASH_BYTES, "big")


def entry_offset(entry: bytes) -> int:
    """The offset in an entry."""
    return int.from_bytes(entry[HASH_BYTES:OFFSET_END], "big")


def entry_seconds(entry: bytes) -> int:
    """The seconds in an entry."""
    return int.from_bytes(entry[OFFSET_END:], "big")


def values_of(record: Record, field: str) -> list[bytes]:
    """The values of a field in a record: none, one, or one for each header of the name."""
    if field == KEY:
        return [] if record.key is None else [record.key]
    return [value for name, value in record.headers if value is not None and HEADER + name == field]


def size_of(record: Record) -> int:
    """The bytes of a record that an answer has."""
    headers_bytes = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers_bytes


def index_batches(data: Buffer, start_offset: int, end_offset: int, fields: Sequence[str]) -> IndexedBatches:
    """The entries of the batches that are wholly below `end_offset`, of the records from `start_offset` on."""
    entries: list[bytes] = []
    next_offset, leader_epoch = start_offset, -1
    least_ms, greatest_ms = NO_TIMESTAMPS
    for position, header in headers(data):
        if header.next_offset > end_offset:
            break
        next_offset, leader_epoch = header.next_offset, header.leader_epoch
        for record in () if header.is_control else decode(data, position, header):
            if record.offset >= start_offset:
                hashes = [field_hash(field, value) for field in fields for value in values_of(record, field)]
                if hashes:
                    timestamp_ms = record.timestamp_ms
                    entries += [new_entry(hashed, record.offset, timestamp_ms) for hashed in hashes]
                    least_ms, greatest_ms = min(least_ms, timestamp_ms), max(greatest_ms, timestamp_ms)
    return IndexedBatches(entries, next_offset, leader_epoch, least_ms, greatest_ms)


def decode(data: Buffer, position: int, header: BatchHeader) -> list[Record]:
    """The records of a batch; none if it is damaged (rule 4)."""
    try:
        return (
            records(data, position, header, max_bytes=MAX_RECORDS_BYTES) if crc_is_valid(data, position, header) else []
        )
    except KafkaError:
        return []


def _is_aborted(header: BatchHeader, aborted: Iterable[AbortedTransaction]) -> bool:
    return header.is_transactional and any(transaction.contains(header) for transaction in aborted)


def matching(
    data: Buffer,
    offsets: Collection[int],
    aborted: Iterable[AbortedTransaction],
    field: str,
    value: bytes,
    from_ms: int,
    to_ms: int,
) -> Iterator[Record]:
    """The records at these offsets in some batches that have the value and a timestamp in the range, in offset order.

    `aborted`: all aborted transactions with these offsets; their records do not match.
    """
    for position, header in headers(data):
        if header.is_control or _is_aborted(header, aborted):
            continue
        for record in _records_at(data, position, header, offsets):
            if from_ms <= record.timestamp_ms < to_ms and value in values_of(record, field):
                yield record


def _records_at(data: Buffer, position: int, header: BatchHeader, offsets: Collection[int]) -> Iterator[Record]:
    """The records of a batch at these offsets; the others are skipped without being decoded."""
    if not crc_is_valid(data, position, header):
        return
    with suppress(KafkaError, IndexError):  # rule 4
        body = bytes(record_bytes(data, position, header, MAX_RECORDS_BYTES))
        append_time = header.max_timestamp if header.is_log_append_time else None
        at = 0
        for _ in range(header.record_count):
            length, begin = read_varint(body, at)
            _, delta_at = read_varlong(body, begin + 1)
            delta, _ = read_varint(body, delta_at)
            if header.base_offset + delta in offsets:
                timestamp, _, key, value, pairs, _ = read_record(body, at)
                stamp = header.base_timestamp + timestamp if append_time is None else append_time
                yield Record(header.base_offset + delta, stamp, key, value, pairs)
            at = begin + length
