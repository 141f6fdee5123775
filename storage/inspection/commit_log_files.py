"""Reads the files of a commit log in any state, without its state in memory.

RULES    1. Read-only; a broker may be appending to the file.
         2. A log file explains itself: each slot is bound to its partition before its first frame in the file; in a run, by
            its state.
NOT HERE The formats (storage/commitlog), what an invalid range means (storage/commitlog/recovery.py), checks
         (commit_log_check.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from protocol.primitives import Buffer
from protocol.records import parse_header
from storage.commitlog.commit_log import DIRECTORY
from storage.commitlog.frames import (
    ABORTED_PAYLOAD,
    CUT_PAYLOAD,
    FILE_HEADER,
    FOLLOWS_PAYLOAD,
    HEAD_SIZE,
    LONG,
    ROLLED,
    RUN_PAYLOAD,
    SETTLED,
    Frame,
    FrameKind,
    InvalidRange,
    parse_bind,
    parse_file_header,
    scan,
)
from storage.commitlog.log_file import LOG_SUFFIX, QUEUE_SUFFIX, parse_log_name
from storage.commitlog.queue_file import Entry, QueueHeader, Row, parse_queue, queue_run, read_row, unpack_entries
from storage.commitlog.sealing import queue_path
from storage.commitlog.slots import SlotId, slot_id_of, slot_text, topic_of
from storage.inspection.batches import StoredBatch
from storage.io.disk import Disk, File
from storage.io.disk_lookup import read_waiting

_OF_THE_LOG = (FrameKind.FOLLOWS, FrameKind.DURABLE, FrameKind.RUN)
_PAYLOADS = {
    FrameKind.FOLLOWS: (FOLLOWS_PAYLOAD, ("previousStart", "previousEnd")),
    FrameKind.DURABLE: (LONG, ("durableEnd",)),
    FrameKind.CUT: (CUT_PAYLOAD, ("endOffset", "segmentBaseOffset", "segmentSize")),
    FrameKind.RESET: (LONG, ("offset",)),
    FrameKind.START: (LONG, ("offset",)),
    FrameKind.ROLL: (LONG, ("offset",)),
    FrameKind.ABORTED: (ABORTED_PAYLOAD, ("producerId", "firstOffset", "lastOffset", "lastStableOffset")),
}


class FrameScan:
    """The frames of one log file."""

    def __init__(self, file: File, start: int, size: int | None = None) -> None:
        """`start`: of the file in the log, by its name."""
        self.file = file
        self.start = start
        self.size = file.size() if size is None else min(size, file.size())
        self.file_id = parse_file_header(file.pread(FILE_HEADER.size, 0), start)
        """None if the header is invalid: there are no frames then."""
        self.partitions: dict[int, SlotId] = {}
        """By slot, as bound so far."""
        self.end = start + min(FILE_HEADER.size, self.size)
        """The position in the log after what was found so far; zeros behind the last frame do not count."""

    def __iter__(self) -> Iterator[Frame | InvalidRange]:
        """Every frame, and what is between them."""
        if self.file_id is None:
            return
        for found in scan(self.file, self.file_id, self.start, self.size):
            if isinstance(found, Frame) and found.kind == FrameKind.BIND:
                topic_id, partition, incarnation, _, _ = parse_bind(found.payload)
                self.partitions[found.slot] = SlotId(topic_id, partition, incarnation)
            elif isinstance(found, Frame) and found.kind == FrameKind.STATE:
                state = json.loads(bytes(found.payload))
                if len(state) > 1:
                    self.partitions[found.slot] = slot_id_of(state)
            self.end = found.end
            yield found

    def position(self, frame: Frame) -> int:
        """The position of a frame in the file."""
        return frame.position - HEAD_SIZE - self.start

    def batches(self, frame: Frame) -> Iterator[StoredBatch]:
        """The batches of a frame; positions are those in the file."""
        position = frame.position - self.start
        data = self.file.pread(frame.end - frame.position, position)
        for info in frame.batches:
            header = parse_header(data, info.position)
            yield StoredBatch(position + info.position, header, is_valid=True, buffer=data, at=info.position)


def is_of_a_slot(frame: Frame) -> bool:
    """Whether the frame belongs to a slot, not to the whole log."""
    return frame.kind not in _OF_THE_LOG


def frame_size(frame: Frame) -> int:
    """The size of a frame with its head."""
    return frame.end - frame.position + HEAD_SIZE


def frame_fields(frame: Frame) -> dict[str, Any]:
    """The fields of a frame's payload."""
    if frame.kind == FrameKind.BATCHES:
        return {"batches": len(frame.batches), "rolled": bool(frame.flags & ROLLED)}
    if frame.kind == FrameKind.BIND:
        _, _, incarnation, log_start, topic = parse_bind(frame.payload)
        return {"incarnation": incarnation, "startOffset": log_start, **({"topic": topic} if topic else {})}
    if frame.kind == FrameKind.SNAPSHOT:
        return {"offset": LONG.unpack_from(frame.payload)[0]}
    if frame.kind == FrameKind.RUN:
        first, end = RUN_PAYLOAD.unpack_from(frame.payload)
        return {"firstStart": first, "end": end, "settled": bool(frame.flags & SETTLED)}
    if frame.kind == FrameKind.STATE:
        return {"state": json.loads(bytes(frame.payload))}
    if frame.kind not in _PAYLOADS:
        return {}
    payload, names = _PAYLOADS[frame.kind]
    return dict(zip(names, payload.unpack(frame.payload), strict=True))


def snapshot_of(frame: Frame) -> Buffer:
    """The producer snapshot in a SNAPSHOT frame."""
    return frame.payload[LONG.size :]


class StoredQueue(NamedTuple):
    """The contents of a queue file."""

    file: File
    header: QueueHeader
    states: dict[int, list[Any]]
    """The state of each slot with frames in the log file, by its number; only the number if it was deleted."""

    def row(self, slot: int) -> Row:
        """The row of a slot."""
        return read_row(self.file, slot, self.header.slot_count, read_waiting)

    def entries(self, row: Row) -> list[Entry]:
        """The entries of a row."""
        return unpack_entries(queue_run(self.file, self.header.slot_count, row, read_waiting).get(0, row.entry_count))

    def slot_id(self, slot: int) -> SlotId | None:
        """The partition of a slot, if the file says it."""
        state = self.states.get(slot, [])
        return slot_id_of(state) if len(state) > 1 else None


def read_queue_file(disk: Disk, path: str, start: int) -> StoredQueue | None:
    """The queue file of the log file with this start; None if it is invalid."""
    file = disk.open(path, write=False)
    found = parse_queue(file.pread(file.size(), 0), start)
    if found is None:
        return None
    header, states = found
    return StoredQueue(file, header, {state[0]: state for state in json.loads(states)})


class StoredPartition(NamedTuple):
    """A partition that is only in a commit log."""

    topic: str
    partition: int
    topic_id: bytes
    created_before_ms: int
    """When the first file with its frames was last written."""


def partitions_without_directory(disk: Disk, directory: str) -> list[StoredPartition]:
    """The partitions that are only in the commit log of a log directory."""
    found: dict[int, StoredPartition] = {}
    path = f"{directory}/{DIRECTORY}"
    names = disk.listdir(path) if disk.exists(path) else []
    for name in sorted(name for name in names if name.endswith(LOG_SUFFIX)):  # runs too: <start>-<generation>
        log, start = f"{path}/{name}", int(name[:20])
        queue = read_queue_file(disk, queue_path(log), start) if disk.exists(queue_path(log)) else None
        bound = _bound_by_frames(disk, log, start) if queue is None else _bound_by_states(queue)
        for number, partition in bound:
            known = found.pop(number, None)
            if partition is not None and known is not None and known[:3] == partition:
                found[number] = known
            elif partition is not None and partition[0]:
                found[number] = StoredPartition(*partition, disk.modified_ms(log))
    return list(found.values())


_Bound = Iterator[tuple[int, tuple[str, int, bytes] | None]]


def _bound_by_states(queue: StoredQueue) -> _Bound:
    for number, state in queue.states.items():
        if len(state) == 1:
            yield number, None
        else:
            slot_id = slot_id_of(state)
            yield number, (topic_of(state), slot_id.partition, slot_id.topic_id)


def _bound_by_frames(disk: Disk, path: str, start: int) -> _Bound:
    for frame in FrameScan(disk.open(path, write=False), start):
        if isinstance(frame, Frame) and frame.kind == FrameKind.BIND:
            topic_id, partition, _, _, topic = parse_bind(frame.payload)
            yield frame.slot, (topic, partition, topic_id)
        elif isinstance(frame, Frame) and frame.kind == FrameKind.DROP:
            yield frame.slot, None


def partition_text(slot_id: SlotId | None) -> str:
    """Topic id and partition of a slot, as text."""
    return "unknown" if slot_id is None else slot_text(slot_id)


__all__ = [
    "DIRECTORY", "LOG_SUFFIX", "QUEUE_SUFFIX", "Entry", "Frame", "FrameKind", "FrameScan", "InvalidRange", "SlotId",
    "StoredQueue", "frame_fields", "frame_size", "is_of_a_slot", "parse_log_name", "partition_text",
    "partitions_without_directory", "read_queue_file", "snapshot_of",
]  # fmt: skip
