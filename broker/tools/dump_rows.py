"""The contents of files of a log directory as rows: a type and fields.

RULES    1. Rows are generated one at a time, so files may have any size; files are only read, and may grow meanwhile.
         2. A problem of a file is a row of the type `problem`; the rest of the file follows if it is readable.
NOT HERE The format of a row (dump_text.py, dump_log.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from itertools import islice

from broker.tools.dump_batches import Options, Row, UnknownFile, batch_rows, problem
from broker.tools.dump_commit_log import log_rows, queue_rows
from broker.tools.dump_producers import producer_rows
from protocol.primitives import uuid_text
from replication.metadata.metadata_records import snapshot_name
from replication.metadata_log.node_identity import (
    BOOTSTRAP_CHECKPOINT,
    META_PROPERTIES,
    UnusableDirectory,
    read_meta_properties,
)
from replication.metadata_log.quorum_state_store import QUORUM_STATE
from storage.directories.log_directory import CLEAN_SHUTDOWN
from storage.inspection.batches import StoredBatch, Tail, header_at, read_stored_batches
from storage.inspection.commit_log_files import LOG_SUFFIX, QUEUE_SUFFIX
from storage.inspection.indexes import (
    ENTRY_SIZES,
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    TRANSACTION_INDEX,
    offset_entries,
    time_entries,
    transaction_entries,
)
from storage.io.checkpoint_file import (
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_STARTS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    read_epochs,
    read_offsets,
    read_topic_id,
)
from storage.io.disk import Disk
from storage.log.producer_state import SNAPSHOT_SUFFIX

CHECKPOINT = ".checkpoint"
_SUFFIXES = (".deleted", ".cleaned", ".swap", ".part", ".corrupt")


def rows(disk: Disk, path: str, options: Options) -> Iterator[Row]:
    """The rows of a file.

    Raises:
        UnknownFile: there is no such file, or its name has no known format.
        StorageError: it is unreadable.
    """
    name = os.path.basename(path)
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    reader = _BY_NAME.get(name) or _BY_SUFFIX.get(os.path.splitext(name)[1])
    if not disk.exists(path):
        raise UnknownFile(f"{path} does not exist.")
    if disk.is_dir(path):
        raise UnknownFile(f"{path} is a directory: name the files in it.")
    if reader is None:
        raise UnknownFile(f"{path} is not a known file of a log directory: barnabas dump-log --help lists them.")
    return reader(disk, path, name, options)


def _base_offset(path: str, name: str) -> int:
    stem = name.partition(".")[0]
    if not (stem.isascii() and stem.isdigit()):
        raise UnknownFile(f"{path} has no base offset in its name.")
    return int(stem)


# ---- batches ---------------------------------------------------------------------------------------------


def _log(disk: Disk, path: str, name: str, options: Options) -> Iterator[Row]:
    base_offset = _base_offset(path, name)
    yield {"type": "log", "startOffset": base_offset}
    yield from _batches(disk, path, options)


def _snapshot(disk: Disk, path: str, name: str, options: Options) -> Iterator[Row]:
    snapshot_id = None if name == BOOTSTRAP_CHECKPOINT else snapshot_name(name)
    if name != BOOTSTRAP_CHECKPOINT and snapshot_id is None:
        raise UnknownFile(f"{path} has no end offset and epoch in its name, as snapshots have.")
    if snapshot_id is None:
        yield {"type": "bootstrapSnapshot"}
    else:
        yield {"type": "snapshot", "endOffset": snapshot_id.end_offset, "epoch": snapshot_id.leader_epoch}
    control: list[bool] = []  # whether the first and the last batch are control batches
    for row in _batches(disk, path, options):
        if row["type"] == "batch":
            control = [*control[:1], row["isControl"]]
        yield row
    if options.max_bytes is None and control != [True, True]:
        yield problem(f"{path} is incomplete: its header or footer is missing.")


def _batches(disk: Disk, path: str, options: Options) -> Iterator[Row]:
    file = disk.open(path, write=False)
    last_offset = -1
    for found in read_stored_batches(file, end=options.max_bytes):
        if isinstance(found, Tail):
            if options.max_bytes is None:
                yield from _tail(path, found)
            return
        for row in batch_rows(path, found, options):
            if row["type"] == "record":
                if -1 < last_offset != row["offset"] - 1:
                    yield problem(f"{path}: offset {last_offset} is followed by {row['offset']}")
                last_offset = row["offset"]
            yield row


def _tail(path: str, tail: Tail) -> Iterator[Row]:
    yield {"type": "tail", "position": tail.position, "size": tail.length, "name": os.path.basename(path)}
    if tail.reason is not None:
        yield problem(f"{path}: no valid batch from position {tail.position} on: {tail.reason}")


# ---- indexes ---------------------------------------------------------------------------------------------


def _offset_index(disk: Disk, path: str, name: str, options: Options) -> Iterator[Row]:
    base_offset = _base_offset(path, name)
    file = disk.open(path, write=False)
    log = disk.open(_log_beside(path), write=False)
    if file.size() < ENTRY_SIZES[OFFSET_INDEX]:
        yield {"type": "empty", "path": path}
    elif options.is_sanity_only:
        last = _last(offset_entries(file, base_offset))[0]
        faults = ["its last offset is not above its base offset"] if last <= base_offset else []
        yield from _sanity(path, file.size(), OFFSET_INDEX, faults)
    else:
        for slot, (offset, position) in enumerate(offset_entries(file, base_offset)):
            if slot and offset == base_offset:  # zeros after the last entry
                return
            header = header_at(log, position)
            if header is None:
                yield problem(f"{path}: offset {offset} is indexed at position {position}, where no batch starts")
            elif header.last_offset != offset:
                yield problem(f"{path}: Index offset: {offset}, log offset: {header.last_offset}")
            if not options.is_verify_only:
                yield {"type": "indexEntry", "offset": offset, "position": position}


def _time_index(disk: Disk, path: str, name: str, options: Options) -> Iterator[Row]:
    base_offset = _base_offset(path, name)
    file = disk.open(path, write=False)
    if options.is_sanity_only:
        entries = list(islice(time_entries(file, base_offset), 1))
        last = _last(time_entries(file, base_offset)) if entries else (0, 0)
        faults = []
        if entries and last[0] < entries[0][0]:
            faults.append("its last timestamp is below its first")
        if entries and last[1] < base_offset:
            faults.append("its last offset is below its base offset")
        yield from _sanity(path, file.size(), TIME_INDEX, faults)
        return
    log = disk.open(_log_beside(path), write=False)
    batches = read_stored_batches(log)
    batch = next(batches, None)
    previous = -1
    for slot, (timestamp, offset) in enumerate(time_entries(file, base_offset)):
        if slot and offset == base_offset:
            return
        while isinstance(batch, StoredBatch) and batch.header.last_offset < offset:
            batch = next(batches, None)
        if not isinstance(batch, StoredBatch) or batch.header.last_offset != offset:
            log_offset = batch.header.last_offset if isinstance(batch, StoredBatch) else -1
            yield problem(f"{path}: Indexed offset: {offset}, found log offset: {log_offset}")
        elif batch.header.max_timestamp != timestamp:
            log_timestamp = batch.header.max_timestamp
            yield problem(f"{path}: Index timestamp: {timestamp}, log timestamp: {log_timestamp}")
        if timestamp <= previous:
            yield problem(f"{path}: Index timestamp: {timestamp}, Previously indexed timestamp: {previous}")
        previous = timestamp
        if not options.is_verify_only:
            yield {"type": "timeIndexEntry", "timestamp": timestamp, "offset": offset}


def _transaction_index(disk: Disk, path: str, name: str, options: Options) -> Iterator[Row]:  # noqa: ARG001
    for version, transaction in transaction_entries(disk.open(path, write=False)):
        producer_id, first_offset, last_offset, last_stable_offset = transaction
        yield {
            "type": "abortedTransaction",
            "version": version,
            "producerId": producer_id,
            "firstOffset": first_offset,
            "lastOffset": last_offset,
            "lastStableOffset": last_stable_offset,
        }


def _last(entries: Iterator[tuple[int, int]]) -> tuple[int, int]:
    last = (0, 0)
    for entry in entries:
        last = entry
    return last


def _sanity(path: str, size: int, suffix: str, faults: list[str]) -> Iterator[Row]:
    entry_size = ENTRY_SIZES[suffix]
    if size % entry_size:
        faults.append(f"its {size} bytes are not a multiple of {entry_size}")
    for fault in faults:
        yield problem(f"{path} would be rebuilt: {fault}.")
    if not faults:
        yield {"type": "sanity", "path": path}


def _log_beside(path: str) -> str:
    name = os.path.basename(path)
    return os.path.join(os.path.dirname(path), name.partition(".")[0] + LOG)


# ---- small files -----------------------------------------------------------------------------------------


def _producers(disk: Disk, path: str, name: str, options: Options) -> Iterator[Row]:  # noqa: ARG001
    yield from producer_rows(disk.read(path), path)


def _offsets(disk: Disk, path: str, name: str, options: Options) -> Iterator[Row]:  # noqa: ARG001
    disk.size(path)
    for (topic, partition), offset in read_offsets(disk, path).items():
        yield {"type": "checkpoint", "topic": topic, "partition": partition, "offset": offset}


def _epochs(disk: Disk, path: str, name: str, options: Options) -> Iterator[Row]:  # noqa: ARG001
    disk.size(path)
    for epoch, start_offset in read_epochs(disk, path):
        yield {"type": "leaderEpoch", "epoch": epoch, "startOffset": start_offset}


def _partition_metadata(disk: Disk, path: str, name: str, options: Options) -> Iterator[Row]:  # noqa: ARG001
    disk.size(path)
    topic_id = read_topic_id(disk, path)
    if topic_id is None:
        yield problem(f"{path} is incomplete.")
    else:
        yield {"type": "partitionMetadata", "topicId": uuid_text(topic_id)}


def _properties(disk: Disk, path: str, name: str, options: Options) -> Iterator[Row]:  # noqa: ARG001
    for line in disk.read(path).decode("utf-8", "replace").splitlines():
        if line.strip() and not line.startswith("#"):
            key, _, value = line.partition("=")
            yield {"type": "property", "name": key.strip(), "value": value.strip().replace("\\", "")}
    try:
        read_meta_properties(disk, os.path.dirname(path) or ".")
    except UnusableDirectory as error:
        yield problem(str(error))


def _json(disk: Disk, path: str, name: str, options: Options) -> Iterator[Row]:  # noqa: ARG001
    data = disk.read(path)
    if not data and name == CLEAN_SHUTDOWN:  # as older versions of Kafka write it
        return
    try:
        yield {"type": "json", "content": json.loads(data)}
    except ValueError as error:
        yield problem(f"{path} is not JSON: {error}.")


_Reader = Callable[[Disk, str, str, Options], Iterator[Row]]

_BY_NAME: dict[str, _Reader] = {
    RECOVERY_POINTS: _offsets,
    LOG_STARTS: _offsets,
    HIGH_WATERMARKS: _offsets,
    "cleaner-offset-checkpoint": _offsets,
    LEADER_EPOCHS: _epochs,
    PARTITION_METADATA: _partition_metadata,
    META_PROPERTIES: _properties,
    QUORUM_STATE: _json,
    CLEAN_SHUTDOWN: _json,
}

_BY_SUFFIX: dict[str, _Reader] = {
    LOG: _log,
    CHECKPOINT: _snapshot,
    OFFSET_INDEX: _offset_index,
    TIME_INDEX: _time_index,
    TRANSACTION_INDEX: _transaction_index,
    SNAPSHOT_SUFFIX: _producers,
    LOG_SUFFIX: log_rows,
    QUEUE_SUFFIX: queue_rows,
}
