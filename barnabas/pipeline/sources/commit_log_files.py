"""Reads the files of a commit log: queue files, and the frames of log files that have none yet.

FORMAT   all big-endian; a file name is the start of the file in the log, in 20 digits; that of a run, which replaces files with
         deleted batches, continues with "-" and its generation:
         `.clog`   header of 40 bytes: "BCLG", u32 version 1, 16 bytes id, i64 start, u32 CRC-32C, u32 0; then frames: u16 magic
                   0xC10F, u8 kind, u8 flags, u32 slot, u32 length, u32 batches, i64 end offset of the slot before it, u32
                   CRC-32C; then the payload: whole batches, or the fields of its kind (`Kind`)
         `.queue`  header of 56 bytes: "BCLQ", u32 version 2, u32 slots, u32 entries, i64 start, i64 end, i64 start of the
                   first file that it replaces, i64 bytes without entries, u32 length of the states, u32 CRC-32C of the rest;
                   rows of 32 bytes by slot: i64 end offset, i64 greatest timestamp, u32 first entry, u32 entries, i64 bytes;
                   entries of 24 bytes; then the states of slots, as JSON
RULES    1. A frame's CRC covers the id, its position in the log, its head, and the payload; of each batch only the 21 bytes
            that the batch's own CRC does not cover.
         2. After invalid bytes the next valid frame follows. What is missing shows in the end offsets of the frames.
         3. A run with a valid queue file replaces all files of lower generations whose starts are in its range. One without
            is unfinished if there is a file of a lower generation with its start.
         4. Only the standard library and numpy are imported: workers read queue files.
NOT HERE The partitions (commit_log_slots.py), reading records (commit_log_reading.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from enum import IntEnum
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from barnabas.client.batch_header import CRC_START, MAGIC, OVERHEAD, header_at
from barnabas.pipeline.spark.py_files import import_shipped

DIRECTORY = "commitlog"
ENTRY = np.dtype([("position", ">u4"), ("size", ">u4"), ("last_offset", ">i8"), ("max_timestamp", ">i8")])

_FILE_HEADER = Struct(">4sI16sqII")
_HEAD = Struct(">HBBIIIqI")
_COVERED = Struct(">qHBBIIIq")
_FRAME_MAGIC = 0xC10F
_QUEUE_HEADER = Struct(">4sIIIqqqqII")
_ROW = Struct(">qqIIq")
_WINDOW = 1 << 20


class Kind(IntEnum):
    """The kinds of frames that say something about a partition, and their payloads."""

    BIND = 3
    """16 bytes topic id, i32 partition, i32 incarnation, i64 log start."""
    BATCHES = 4
    CUT = 5
    """i64 end offset, i64 base offset and i64 size of the last segment."""
    RESET = 6
    """i64 offset."""
    START = 7
    """i64 offset."""
    ROLL = 8
    """i64 offset."""
    ABORTED = 9
    """i64 producer id, first offset, last offset, last stable offset."""
    DROP = 10
    SNAPSHOT = 11
    """i64 offset, then a producer snapshot."""
    STATE = 21
    """JSON: a state, as in a queue file; in runs."""


class Frame(NamedTuple):
    """A valid frame."""

    kind: int
    is_rolled: bool
    """BATCHES begin a segment."""
    slot: int
    previous_end: int
    payload: bytes
    """Empty for BATCHES."""
    base_offset: int
    """Of the first batch."""
    entries: Any
    """Of the batches; an array of ENTRY."""


class Row(NamedTuple):
    """The entries of a slot in a queue file."""

    end_offset: int
    max_timestamp: int
    first: int
    entry_count: int
    size: int


class QueueFile(NamedTuple):
    """A queue file whose CRC is right."""

    path: Path
    slot_count: int
    first: int
    """The start of the first file that it replaces."""
    states_length: int

    def row(self, slot: int) -> Row:
        """Reads the row of a slot; an empty one if the slot is newer than the file."""
        if slot >= self.slot_count:
            return Row(0, -1, 0, 0, 0)
        with self.path.open("rb") as file:
            return Row(*_ROW.unpack(os.pread(file.fileno(), _ROW.size, _QUEUE_HEADER.size + _ROW.size * slot)))

    def read_states(self) -> list[list[Any]]:
        """Reads the states of the slots with frames in the log file; only the number if the partition was deleted."""
        with self.path.open("rb") as file:
            file.seek(-self.states_length, os.SEEK_END)
            states: list[list[Any]] = json.load(file)
        return states

    def entries_position(self, row: Row) -> int:
        """Returns the position of the entries of a row in the file."""
        return _QUEUE_HEADER.size + _ROW.size * self.slot_count + ENTRY.itemsize * row.first


class LogFile(NamedTuple):
    """A log file."""

    start: int
    path: Path
    queue: QueueFile | None
    """None until the broker has sealed the file."""
    generation: int
    """0, or that of a run."""


def list_files(folder: Path) -> list[LogFile]:
    """Returns the log files, oldest first, without those that runs replace."""
    found = [file for path in folder.glob("*.clog") if (file := _log_file(path)) is not None]
    return sorted(file for file in found if not any(_is_used_for(other, file) for other in found))


def _log_file(path: Path) -> LogFile | None:
    start, _, generation = path.stem.partition("-")
    if not start.isdigit() or (generation and not generation.isdigit()):
        return None
    return LogFile(int(start), path, _queue_file(path.with_suffix(".queue"), int(start)), int(generation or 0))


def is_replaced(path: Path, files: Iterable[LogFile]) -> bool:
    """Whether one of these files is a run that has replaced a log file."""
    file = _log_file(path)
    return file is not None and any(_replaces(other, file) for other in files)


def _is_used_for(other: LogFile, file: LogFile) -> bool:
    """Whether one file is used instead of another one (rule 3)."""
    if file.generation and file.queue is None:
        return other.start == file.start and other.generation < file.generation
    return _replaces(other, file)


def _replaces(other: LogFile, file: LogFile) -> bool:
    return (
        other.generation > file.generation
        and other.queue is not None
        and other.queue.first <= file.start <= other.start
    )


def _queue_file(path: Path, start: int) -> QueueFile | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(data) < _QUEUE_HEADER.size:
        return None
    *head, crc = _QUEUE_HEADER.unpack_from(data)
    magic, version, slot_count, _, log_start, _, first, _, states_length = head
    if (magic, version, log_start) != (b"BCLQ", 2, start):
        return None
    crc32c = import_shipped("crc32c").crc32c
    if crc32c(memoryview(data)[_QUEUE_HEADER.size :], crc32c(_QUEUE_HEADER.pack(*head, 0))) != crc:
        return None
    return QueueFile(path, slot_count, first, states_length)


def read_entries(path: Path, position: int, count: int) -> Any:
    """Reads entries of a queue file."""
    with path.open("rb") as file:
        return np.frombuffer(os.pread(file.fileno(), count * ENTRY.itemsize, position), ENTRY)


# ---- frames ------------------------------------------------------------------------------------------------


def read_frames(file: LogFile) -> Iterator[Frame]:
    """Yields the valid frames of a log file."""
    with file.path.open("rb") as opened:
        window = _Window(opened.fileno(), os.fstat(opened.fileno()).st_size)
        id_crc = _id_crc(window.get(0, _FILE_HEADER.size), file.start)
        at = _FILE_HEADER.size
        while id_crc is not None and at < window.size:
            found = _frame_at(window, id_crc, file.start, at)
            if found is None:
                at = window.find(_FRAME_MAGIC.to_bytes(2, "big"), at + 1)
                continue
            frame, at = found
            yield frame


class _Window:
    """The part of a file that is scanned."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self.size = size
        self._at = 0
        self._data = b""

    def get(self, at: int, length: int) -> memoryview:
        """Bytes of the file; fewer at its end."""
        if at < self._at or at + length > self._at + len(self._data):
            wanted = min(max(length, _WINDOW), max(self.size - at, 0))
            self._at, self._data = at, os.pread(self._descriptor, wanted, at)
        return memoryview(self._data)[at - self._at : at - self._at + length]

    def find(self, wanted: bytes, at: int) -> int:
        """The first position from `at` on with these bytes; the end of the file if there is none."""
        while at < self.size:
            part = bytes(self.get(at, _WINDOW))
            found = part.find(wanted)
            if found >= 0:
                return at + found
            at += max(len(part) - len(wanted) + 1, 1)
        return self.size


def _id_crc(header: memoryview, start: int) -> int | None:
    """The CRC-32C of the file's id; None if the header is not that of the log file with this start."""
    if len(header) < _FILE_HEADER.size:
        return None
    crc32c = import_shipped("crc32c").crc32c
    magic, version, file_id, log_start, crc, _ = _FILE_HEADER.unpack(header)
    expected = crc32c(_FILE_HEADER.pack(magic, version, file_id, log_start, 0, 0))
    return crc32c(file_id) if (magic, version, log_start, crc) == (b"BCLG", 1, start, expected) else None


def _frame_at(window: _Window, id_crc: int, start: int, at: int) -> tuple[Frame, int] | None:
    """The frame at a position and the position after it; None if there is none."""
    crc32c = import_shipped("crc32c").crc32c
    head = window.get(at, _HEAD.size)
    if len(head) < _HEAD.size:
        return None
    magic, kind, flags, slot, length, count, previous_end, crc = _HEAD.unpack(head)
    position = at + _HEAD.size
    if magic != _FRAME_MAGIC or position + length > window.size:
        return None
    payload = window.get(position, length)
    covered, base_offset, entries = bytes(payload), 0, np.empty(0, ENTRY)
    if kind == Kind.BATCHES:
        found = _batches(payload, count, position)
        if found is None:
            return None
        covered, base_offset, entries = found
    of_head = crc32c(_COVERED.pack(start + at, magic, kind, flags, slot, length, count, previous_end), id_crc)
    if crc32c(covered, of_head) != crc:
        return None
    frame = Frame(
        kind, bool(flags & 1), slot, previous_end, b"" if len(entries) else bytes(payload), base_offset, entries
    )
    return frame, position + length


def _batches(payload: memoryview, count: int, position: int) -> tuple[bytes, int, Any] | None:
    """What the frame's CRC covers, the first offset, and the entries; None unless valid batches fill the payload."""
    crc32c = import_shipped("crc32c").crc32c
    covered, entries = [], []
    base_offset = -1
    at = 0
    while at + OVERHEAD <= len(payload):
        header = header_at(payload, at)
        end = at + header.size
        if header.magic != MAGIC or header.size < OVERHEAD or end > len(payload):
            return None
        if crc32c(payload[at + CRC_START : end]) != header.crc:
            return None
        base_offset = header.base_offset if base_offset < 0 else base_offset
        covered.append(bytes(payload[at : at + CRC_START]))
        entries.append((position + at, header.size, header.last_offset, header.max_timestamp))
        at = end
    if at != len(payload) or len(entries) != count or not entries:
        return None
    return b"".join(covered), base_offset, np.array(entries, ENTRY)
