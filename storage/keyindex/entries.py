"""Entries of a key index: what is indexed of a record, and the 16 bytes that lead to its offset.

FORMAT   hash 5, offset 7, seconds 4, all big-endian, so that the order of the bytes is that of hash and offset
             hash      the first 5 bytes of BLAKE2b over the field, a zero byte, and the value
             seconds   of the record's timestamp since 1970, within 32 bits
RULES    1. A field is `key` or `header:<name>`. A record has one entry for its key and one for each header of the name; null
            has none.
         2. A hash only leads to candidates: the caller compares the record's bytes.
         3. Control batches and batches of aborted transactions have no entries.
         4. A batch that cannot be decoded has no entries: no consumer can read its records either.
NOT HERE Files of entries (index_file.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from protocol.errors import KafkaError
from protocol.primitives import Buffer
from protocol.records import BatchHeader, Record, crc_is_valid, headers, records
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


def index_batches(
    data: Buffer, start_offset: int, end_offset: int, fields: Sequence[str], aborted: Iterable[AbortedTransaction]
) -> IndexedBatches:
    """The entries of the batches that are wholly below `end_offset`, of the records from `start_offset` on.

    `aborted`: all aborted transactions with records in the range.
    """
    by_producer: dict[int, list[AbortedTransaction]] = {}
    for transaction in aborted:
        by_producer.setdefault(transaction.producer_id, []).append(transaction)
    entries: list[bytes] = []
    next_offset, leader_epoch = start_offset, -1
    least_ms, greatest_ms = NO_TIMESTAMPS
    for position, header in headers(data):
        if header.next_offset > end_offset:
            break
        next_offset, leader_epoch = header.next_offset, header.leader_epoch
        if header.is_control or _is_aborted(header, by_producer.get(header.producer_id, ())):
            continue
        for record in decode(data, position, header):
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


def _is_aborted(header: BatchHeader, transactions: Collection[AbortedTransaction]) -> bool:
    return header.is_transactional and any(
        some.first_offset <= header.base_offset <= some.last_offset for some in transactions
    )


def matching(
    data: Buffer, offsets: Collection[int], field: str, value: bytes, from_ms: int, to_ms: int
) -> Iterator[Record]:
    """The records at these offsets in some batches that have the value and a timestamp in the range, in offset order."""
    for position, header in headers(data):
        for record in decode(data, position, header):
            if (
                record.offset in offsets
                and from_ms <= record.timestamp_ms < to_ms
                and value in values_of(record, field)
            ):
                yield record
