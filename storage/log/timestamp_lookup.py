"""Offset lookup by timestamp, and the timestamp of an offset.

RULES    1. The batch's max timestamp selects a batch; the record's own timestamp decides.
         2. With LogAppendTime every record has the batch's max timestamp.
         3. Keys, values and headers are not decoded.
         4. One batch is decompressed at a time, almost always only one in total.
         5. A timestamp that a hostile client's delta carries beyond 2**63 - 1 counts as that.
NOT HERE Which timestamps a client may request and see (replication/partition/partition.py).
"""

from __future__ import annotations

from typing import Final

from protocol.primitives import Buffer
from protocol.record_codec import invalid_record, read_varint, read_varlong
from protocol.records import BatchHeader, parse_header, record_bytes
from storage.config.config_def import MAX_LONG
from storage.engine import EngineView
from storage.log.log_validator import MAX_OPENED_BYTES

_BEFORE_ALL_MS: Final = -(2**62)


def first_record(view: EngineView, target_ms: int, start_offset: int) -> tuple[int, int, int] | None:
    """(timestamp, offset, leader epoch) of the first record from `start_offset` on that is not before `target_ms`."""
    offset = start_offset
    while (base_offset := view.find_timestamp(target_ms, offset)) is not None:
        header, found = _first_in_batch(view, base_offset, target_ms, start_offset)
        if found is not None:
            return *found, header.leader_epoch
        offset = header.next_offset  # the matching records are below the log start offset
    return None


def latest_record(view: EngineView) -> tuple[int, int, int] | None:
    """(timestamp, offset, leader epoch) of the first record with the greatest timestamp."""
    latest = view.max_timestamp()
    if latest is None:
        return None
    timestamp, last_offset = latest
    header, found = _first_in_batch(view, last_offset, timestamp, 0)
    return (*found, header.leader_epoch) if found is not None else None


def timestamp_at(view: EngineView, offset: int) -> int:
    """The timestamp of the first record from `offset` on in its batch; the batch's greatest if compaction has removed them."""
    header, found = _first_in_batch(view, offset, _BEFORE_ALL_MS, offset)
    return header.max_timestamp if found is None else found[0]


def _first_in_batch(
    view: EngineView, offset: int, target_ms: int, start_offset: int
) -> tuple[BatchHeader, tuple[int, int] | None]:
    buffer = view.read_batches(offset, 1)
    header = parse_header(buffer)
    return header, first_at_or_after(buffer, 0, header, target_ms, start_offset, max_bytes=MAX_OPENED_BYTES)


def first_at_or_after(
    buffer: Buffer, position: int, header: BatchHeader, target_ms: int, start_offset: int, *, max_bytes: int
) -> tuple[int, int] | None:
    """(timestamp, offset) of the first record from `start_offset` on that is not before `target_ms`.

    Raises:
        KafkaError: the records are invalid.
    """
    fixed = header.max_timestamp if header.is_log_append_time else None
    if fixed is not None and fixed < target_ms:
        return None
    data = bytes(record_bytes(buffer, position, header, max_bytes))
    wanted_delta = target_ms - header.base_timestamp
    first_delta = start_offset - header.base_offset
    at = 0
    try:
        for _ in range(header.record_count):
            length, at = read_varint(data, at)
            stop = at + length
            if length < 0:
                raise invalid_record("Invalid record size: it is negative")
            timestamp, at = read_varlong(data, at + 1)
            offset, at = read_varint(data, at)
            if offset >= first_delta and (fixed is not None or timestamp >= wanted_delta):
                found = min(header.base_timestamp + timestamp, MAX_LONG) if fixed is None else fixed
                return found, header.base_offset + offset
            at = stop
    except IndexError:
        raise invalid_record("Incorrect declared batch size, premature EOF reached") from None
    return None
