"""Filters the records of one batch.

RULES    1. Base offset, last offset, producer, sequence, leader epoch and codec stay: offsets never change, and the last
            sequence number stays known.
         2. Retained records keep their bytes. When tombstones, or a marker without its transaction, are found for the
            first time, the delete horizon becomes the base timestamp, and all timestamp deltas are relative to it
            (KIP-534).
         3. A retained empty batch consists of its header.
         4. A batch that loses nothing and needs no new horizon keeps its bytes.
NOT HERE Which records and batches are retained (cleaner.py).
"""

from __future__ import annotations

from collections.abc import Callable

from protocol.batch_builder import assemble
from protocol.compression import compress
from protocol.primitives import Buffer, varint
from protocol.record_codec import Slice, read_varint, read_varlong, slices
from protocol.records import (
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    LOG_APPEND_TIME_BIT,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchHeader,
    record_bytes,
)

MAX_RECORDS_BYTES = 256 * 1024 * 1024
"""Limit for the uncompressed records of one batch."""

Keep = Callable[[int, bytes | None, bool], bool]
"""Offset, key, whether there is a value -> whether the record is retained."""


def decompress_batch(buffer: Buffer, position: int, header: BatchHeader) -> tuple[bytes, list[Slice]]:
    """The uncompressed records and the position of each."""
    data = bytes(record_bytes(buffer, position, header, MAX_RECORDS_BYTES))
    return data, slices(data, header.record_count)


def filter_batch(
    buffer: Buffer, position: int, header: BatchHeader, keep: Keep, *, horizon_ms: int, always: bool, keep_empty: bool
) -> Buffer | None:
    """The batch with the retained records; None if there are none.

    `horizon_ms`: the delete horizon, if the batch has none yet; `always`: set it even without a tombstone; `keep_empty`:
    retain the batch without records.
    """
    data, all_slices = decompress_batch(buffer, position, header)
    base_offset = header.base_offset
    kept = [
        (start, stop, timestamp_delta, has_value)
        for start, stop, timestamp_delta, offset_delta, key, has_value in all_slices
        if keep(base_offset + offset_delta, key, has_value)
    ]
    if not kept:
        return empty_batch(header) if keep_empty else None
    has_tombstone = always or not all(has_value for _, _, _, has_value in kept)
    is_new_horizon = has_tombstone and header.delete_horizon_ms is None
    if len(kept) == len(all_slices) and not is_new_horizon:
        return memoryview(buffer)[position : position + header.size]
    base_timestamp = header.base_timestamp
    max_timestamp = header.max_timestamp
    if not header.is_log_append_time:
        max_timestamp = base_timestamp + max(timestamp_delta for _, _, timestamp_delta, _ in kept)
    if is_new_horizon:
        shift = base_timestamp - horizon_ms
        base_timestamp = horizon_ms
        body = b"".join([_shifted(data[start:stop], shift) for start, stop, *_ in kept])
    else:
        body = b"".join([data[start:stop] for start, stop, *_ in kept])
    header = header._replace(
        attributes=header.attributes | (DELETE_HORIZON_BIT if is_new_horizon else 0),
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        record_count=len(kept),
    )
    return assemble(header, compress(header.compression, body))


def empty_batch(header: BatchHeader) -> bytearray:
    """The header of a batch that is retained for its producer state and offsets."""
    return assemble(
        header._replace(
            attributes=header.attributes & (LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT),
            base_timestamp=NO_TIMESTAMP,
            record_count=0,
        ),
        b"",
    )


def _shifted(record: bytes, shift: int) -> bytes:
    """A record with its length prefix, relative to a base timestamp that is `shift` earlier."""
    _, start = read_varint(record, 0)
    delta, behind = read_varlong(record, start + 1)
    body = record[start : start + 1] + varint(delta + shift) + record[behind:]
    return varint(len(body)) + body
