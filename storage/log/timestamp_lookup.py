"""Which record is the first at or after a time.

RULES    1. The batch's max timestamp is a hint of where to look; a record's own timestamp decides.
         2. With log append time every record has the batch's max timestamp.
         3. No key, value or header is looked at: a record costs its length, its timestamp and its offset.
         4. One batch is opened at a time, nearly always only one; it is the engine that knows which.
NOT HERE What a client may ask for, and see (replication/partition/partition.py).
"""

from __future__ import annotations

from protocol.primitives import Buffer
from protocol.record_codec import invalid_record, read_varint, read_varlong
from protocol.records import BatchHeader, parse_header, record_bytes
from storage.engine import Engine
from storage.log.log_validator import MAX_OPENED_BYTES


def first_record(engine: Engine, target_ms: int, start_offset: int) -> tuple[int, int, int] | None:
    """(timestamp, offset, leader epoch) of the first record at or behind `start_offset` not before `target_ms`."""
    offset = start_offset
    while (base_offset := engine.find_timestamp(target_ms, offset)) is not None:
        buffer = engine.read_batches(base_offset, 1)
        header = parse_header(buffer)
        found = first_at_or_after(buffer, 0, header, target_ms, start_offset, max_bytes=MAX_OPENED_BYTES)
        if found is not None:
            return *found, header.leader_epoch
        offset = header.next_offset  # its latest record lies before the log's start
    return None


def latest_record(engine: Engine) -> tuple[int, int, int] | None:
    """(timestamp, offset, leader epoch) of the first record with the greatest timestamp."""
    latest = engine.max_timestamp()
    if latest is None:
        return None
    timestamp, offset = latest
    buffer = engine.read_batches(offset, 1)
    header = parse_header(buffer)
    found = first_at_or_after(buffer, 0, header, timestamp, header.base_offset, max_bytes=MAX_OPENED_BYTES)
    return (*found, header.leader_epoch) if found is not None else None


def first_at_or_after(
    buffer: Buffer, position: int, header: BatchHeader, target_ms: int, start_offset: int, *, max_bytes: int
) -> tuple[int, int] | None:
    """(timestamp, offset) of the first record at or behind `start_offset` that is not before `target_ms`.

    Raises:
        KafkaError: the records cannot be read.
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
                return (header.base_timestamp + timestamp if fixed is None else fixed), header.base_offset + offset
            at = stop
    except IndexError:
        raise invalid_record("Incorrect declared batch size, premature EOF reached") from None
    return None
