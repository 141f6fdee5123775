"""One batch without the records that are not wanted any more.

RULES    1. Base offset, last offset, producer, sequence, leader epoch and codec stay as they are: offsets never change,
            and the last sequence number can still be told.
         2. Records that stay keep their bytes. When tombstones, or a marker without its transaction, are met for the
            first time, the time from which they may go becomes the base timestamp, and every record is told from there
            (KIP-534).
         3. A batch that stays although it is empty is a header and nothing else.
         4. A batch that loses nothing and needs no such time is the same bytes again.
NOT HERE Which records stay, and which batches (cleaner.py).
"""

from __future__ import annotations

from collections.abc import Callable

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
    assemble,
    record_bytes,
)

MAX_RECORDS_BYTES = 256 * 1024 * 1024
"""What the records of one batch may take."""

Keep = Callable[[int, bytes | None, bool], bool]
"""Offset, key, and whether there is a value: whether the record stays."""


def opened(buffer: Buffer, position: int, header: BatchHeader) -> tuple[bytes, list[Slice]]:
    """The records' bytes, and where each lies in them."""
    data = bytes(record_bytes(buffer, position, header, MAX_RECORDS_BYTES))
    return data, slices(data, header.record_count)


def filtered(
    buffer: Buffer, position: int, header: BatchHeader, keep: Keep, *, horizon_ms: int, always: bool, keeps_empty: bool
) -> Buffer | None:
    """The batch with the records that stay; None when nothing does.

    Args:
        buffer: holds it.
        position: where.
        header: the batch's.
        keep: which records stay.
        horizon_ms: from when its tombstones may go, if that was not decided before.
        always: whether that is to be noted even without a tombstone.
        keeps_empty: whether the batch stays without records.
    """
    data, all_slices = opened(buffer, position, header)
    base_offset = header.base_offset
    kept = [piece for piece in all_slices if keep(base_offset + piece[3], piece[4], piece[5])]
    if not kept:
        return emptied(header) if keeps_empty else None
    has_tombstone = always or not all(piece[5] for piece in kept)
    is_new_horizon = has_tombstone and header.delete_horizon_ms is None
    if len(kept) == len(all_slices) and not is_new_horizon:
        return memoryview(buffer)[position : position + header.size]
    base_timestamp = header.base_timestamp
    max_timestamp = header.max_timestamp
    if not header.is_log_append_time:
        max_timestamp = base_timestamp + max(piece[2] for piece in kept)
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


def emptied(header: BatchHeader) -> bytearray:
    """The header of a batch that is kept for what it says of its producer and of offsets."""
    return assemble(
        header._replace(
            attributes=header.attributes & (LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT),
            base_timestamp=NO_TIMESTAMP,
            record_count=0,
        ),
        b"",
    )


def _shifted(record: bytes, shift: int) -> bytes:
    """A record, its length in front, told from a base timestamp that lies `shift` earlier."""
    _, start = read_varint(record, 0)
    delta, behind = read_varlong(record, start + 1)
    body = record[start : start + 1] + varint(delta + shift) + record[behind:]
    return varint(len(body)) + body
