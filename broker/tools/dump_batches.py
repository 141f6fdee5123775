"""Rows of record batches and records, and what the rows of all files have in common.

NOT HERE The files (dump_rows.py, dump_commit_log.py), the format of a row (dump_text.py, dump_log.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from broker.tools.decoding import Decoding, control_record
from protocol.compression import Compression
from protocol.errors import KafkaError
from protocol.records import Record
from storage.inspection.batches import StoredBatch

Row = dict[str, Any]
"""`type` is the kind of row; the other fields have the labels of Kafka's tool."""


class UnknownFile(Exception):
    """The file's name has no known format; the message is a sentence."""


class Options(NamedTuple):
    """What to show."""

    is_deep: bool = False
    """Records too, not only batches."""
    with_data: bool = False
    """Keys and values too."""
    decoding: Decoding | None = None
    """Decodes records; None: they are shown as bytes."""
    is_sanity_only: bool = False
    """Only whether an index passes the sanity check of a start."""
    is_verify_only: bool = False
    """Only the index entries that contradict the log."""
    max_bytes: int | None = None
    """Only the first bytes of a log."""
    partition: str | None = None
    """Of a commit log, only this partition: topic or topic id, a hyphen, the number."""


def problem(text: str) -> Row:
    """A problem of the file."""
    return {"type": "problem", "text": text}


def batch_rows(path: str, found: StoredBatch, options: Options) -> Iterator[Row]:
    """The row of a batch, then those of its records if they are wanted."""
    yield _batch(found)
    if not options.is_deep:
        return
    try:
        records = found.records()
    except KafkaError as error:
        yield problem(f"{path}: the records of the batch at position {found.position} cannot be read: {error}")
        return
    for record in records:
        yield _record(found, record, options)


def _batch(found: StoredBatch) -> Row:
    header = found.header
    codec = header.compression
    return {
        "type": "batch",
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.record_count,
        "baseSequence": header.base_sequence,
        "lastSequence": header.last_sequence,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.leader_epoch,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
        "deleteHorizonMs": header.delete_horizon_ms,
        "position": found.position,
        "timestampType": _timestamp_type(found),
        "timestamp": header.max_timestamp,
        "size": header.size,
        "magic": header.magic,
        "compresscodec": Compression(codec).name.lower() if codec in list(Compression) else f"unknown({codec})",
        "crc": header.crc,
        "isvalid": found.is_valid,
    }


def _timestamp_type(found: StoredBatch) -> str:
    return "LogAppendTime" if found.header.is_log_append_time else "CreateTime"


def _record(found: StoredBatch, record: Record, options: Options) -> Row:
    header = found.header
    base_sequence, delta = header.base_sequence, record.offset - header.base_offset
    row: Row = {
        "type": "record",
        "offset": record.offset,
        "timestampType": _timestamp_type(found),
        "timestamp": record.timestamp_ms,
        "keySize": -1 if record.key is None else len(record.key),
        "valueSize": -1 if record.value is None else len(record.value),
        "sequence": -1 if base_sequence < 0 else (base_sequence + delta) & 0x7FFFFFFF,
        "headerKeys": [key for key, _ in record.headers],
    }
    if header.is_control:
        row["control"] = control_record(record)
    elif options.decoding is not None:
        row["key"], row["payload"] = options.decoding(record)
    elif options.with_data:
        row["key"], row["payload"] = record.key, record.value
    return row
