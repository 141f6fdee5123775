"""The rows of a commit log's files: frames with their batches, and queue entries.

RULES    1. A frame's row is followed by those of its batches, as in the dump of a segment, or of its producers, as in that of a
            snapshot; positions are those in the file.
         2. With a partition, only its frames and entries are shown.
         3. Invalid bytes at the end are no problem: a write may be under way, or was cut off. Elsewhere they are one.
NOT HERE Rows of batches (dump_batches.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from broker.tools.dump_batches import Options, Row, UnknownFile, batch_rows, problem
from broker.tools.dump_producers import producer_rows
from protocol.primitives import uuid_from_text, uuid_text
from storage.inspection.batches import header_at
from storage.inspection.commit_log_files import (
    LOG_SUFFIX,
    Entry,
    Frame,
    FrameKind,
    FrameScan,
    InvalidRange,
    SlotId,
    frame_fields,
    frame_size,
    is_of_a_slot,
    parse_log_name,
    partitions_without_directory,
    read_queue_file,
    snapshot_of,
)
from storage.io.checkpoint_file import PARTITION_METADATA, read_topic_id
from storage.io.disk import Disk, File


def log_rows(disk: Disk, path: str, name: str, options: Options) -> Iterator[Row]:
    """The rows of a `.clog` file."""
    scanned = FrameScan(disk.open(path, write=False), _start(path, name), options.max_bytes)
    if scanned.file_id is None:
        yield problem(f"{path} has no valid header.")
        return
    wanted = _wanted(disk, path, options)
    yield {"type": "commitLog", "start": scanned.start, "fileId": scanned.file_id.hex()}
    at = scanned.start
    invalid: InvalidRange | None = None
    for found in scanned:
        if invalid is not None:
            yield problem(f"{path}: no valid frame from position {invalid.start - at} to {invalid.end - at}")
            invalid = None
        if isinstance(found, InvalidRange):
            invalid = found
        elif wanted is None or (is_of_a_slot(found) and wanted == _partition(scanned.partitions.get(found.slot))):
            yield _frame(found, scanned)
            yield from _contents(path, found, scanned, options)
    if invalid is not None and options.max_bytes is None:
        size = invalid.end - invalid.start
        yield {"type": "tail", "position": invalid.start - at, "size": size, "name": os.path.basename(path)}


def _frame(frame: Frame, scanned: FrameScan) -> Row:
    row: Row = {
        "type": "frame",
        "kind": frame.kind.name,
        "position": scanned.position(frame),
        "size": frame_size(frame),
    }
    if not is_of_a_slot(frame):
        return row | frame_fields(frame)
    row |= {"slot": frame.slot, **_labels(scanned.partitions.get(frame.slot)), "previousEnd": frame.previous_end}
    return row | frame_fields(frame)


def _contents(path: str, frame: Frame, scanned: FrameScan, options: Options) -> Iterator[Row]:
    """The rows of what a frame contains."""
    if frame.kind == FrameKind.BATCHES:
        for batch in scanned.batches(frame):
            yield from batch_rows(path, batch, options)
    elif frame.kind == FrameKind.SNAPSHOT:
        where = f"the producer snapshot at position {scanned.position(frame)} of {path}"
        yield from producer_rows(snapshot_of(frame), where)


def _labels(slot_id: SlotId | None) -> Row:
    return {} if slot_id is None else {"topicId": uuid_text(slot_id.topic_id), "partition": slot_id.partition}


def queue_rows(disk: Disk, path: str, name: str, options: Options) -> Iterator[Row]:
    """The rows of a `.queue` file: what it says of each slot, then the entries, which are compared with the log."""
    found = read_queue_file(disk, path, _start(path, name))
    if found is None:
        yield problem(f"{path} is invalid: a start makes it again from the log file.")
        return
    if options.is_sanity_only:
        yield {"type": "sanity", "path": path}
        return
    wanted = _wanted(disk, path, options)
    log = disk.open(os.path.splitext(path)[0] + LOG_SUFFIX, write=False)
    yield {"type": "queue", "start": found.header.start, "end": found.header.end, "slots": found.header.slot_count}
    for slot in range(found.header.slot_count):
        row, slot_id = found.row(slot), found.slot_id(slot)
        is_used = slot in found.states or row.entry_count
        if not is_used or (wanted is not None and wanted != _partition(slot_id)):
            continue
        if not options.is_verify_only:
            yield {
                "type": "queueSlot", "slot": slot, **_labels(slot_id), "endOffset": row.end_offset,
                "maxTimestamp": row.max_timestamp, "entries": row.entry_count, "size": row.size,
            }  # fmt: skip
        for entry in found.entries(row):
            yield from _entry(path, log, entry, options)


def _entry(path: str, log: File, entry: Entry, options: Options) -> Iterator[Row]:
    header = header_at(log, entry.position)
    if header is None:
        yield problem(
            f"{path}: offset {entry.last_offset} is indexed at position {entry.position}, where no batch starts"
        )
    elif (header.size, header.last_offset, header.max_timestamp) != entry[1:]:
        text = f"size {header.size}, last offset {header.last_offset}, timestamp {header.max_timestamp}"
        yield problem(f"{path}: the batch at position {entry.position} has {text}, its entry says {tuple(entry[1:])}")
    if not options.is_verify_only:
        yield {
            "type": "queueEntry",
            **dict(zip(("position", "size", "lastOffset", "maxTimestamp"), entry, strict=True)),
        }


# ---- names -----------------------------------------------------------------------------------------------


def _start(path: str, name: str) -> int:
    found = parse_log_name(name.partition(".")[0] + LOG_SUFFIX)
    if found is None:
        raise UnknownFile(f"{path} has no position in its name.")
    return found.start


def _partition(slot_id: SlotId | None) -> tuple[bytes, int] | None:
    return None if slot_id is None else (slot_id.topic_id, slot_id.partition)


def _wanted(disk: Disk, path: str, options: Options) -> tuple[bytes, int] | None:
    """The partition to show; None for all."""
    if options.partition is None:
        return None
    topic, _, number = options.partition.rpartition("-")
    log_dir = os.path.dirname(os.path.dirname(os.path.abspath(path)))
    for name, index, named_id, _ in partitions_without_directory(disk, log_dir):
        if (name, index) == (topic, int(number)):
            return named_id, index
    metadata = f"{log_dir}/{options.partition}/{PARTITION_METADATA}"
    if disk.exists(metadata) and (topic_id := read_topic_id(disk, metadata)) is not None:
        return topic_id, int(number)
    try:
        return uuid_from_text(topic), int(number)
    except ValueError:
        raise UnknownFile(f"{options.partition} is not in {log_dir}, and {topic} is no topic id.") from None
