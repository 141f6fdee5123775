"""The partitions of a commit log: what the broker has of each, from queue files and frames.

RULES    1. The state of a partition is that of the last queue file that has one, then the frames of later files in order.
         2. Entries of a file are valid below the first truncation in a later file; files before `begin` belong to the time
            before a reset.
         3. A frame that names an end offset above that of its partition follows a loss: what it says is skipped, and
            everything from there on is missing (`lost_from`).
         4. The broker may replace or seal files while they are listed: a file that is gone makes the listing begin again.
            `entries` raises FileNotFoundError then.
"""

from __future__ import annotations

import json
from base64 import b64decode
from bisect import insort
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from barnabas.pipeline.sources.commit_log_files import (
    DIRECTORY,
    ENTRY,
    Frame,
    Kind,
    LogFile,
    is_replaced,
    list_files,
    read_entries,
    read_frames,
)
from barnabas.pipeline.sources.decoding import Aborted

_BIND = Struct(">16siiq")
_CUT = Struct(">qqq")
_ABORTED = Struct(">qqqq")
_OFFSET = Struct(">q")
_ATTEMPTS = 5
_EMPTY: Any = np.empty(0, ENTRY)


class Entries(NamedTuple):
    """The valid entries of a partition in one file."""

    file: LogFile
    position: int
    """Of the first one in the queue file."""
    found: Any
    """An array of ENTRY."""


class Slot:
    """One partition in a commit log."""

    def __init__(
        self, files: list[LogFile], number: int, topic_id: str, partition: int, incarnation: int, topic: str
    ) -> None:
        self._files = files
        self.number = number
        self.topic_id = topic_id
        """In hexadecimal digits."""
        self.partition = partition
        self.incarnation = incarnation
        self.topic = topic
        """Empty if the partition has a directory, which names it."""
        self.begin = self.end_offset = 0
        self.bases = [0]
        """The base offsets of its segments."""
        self.aborted: list[Aborted] = []
        self.snapshots: dict[int, bytes] = {}
        """Producer snapshots by offset."""
        self.lost_from: int | None = None
        self._cuts: list[tuple[int, int]] = []  # start of a file, offset
        self._unsealed: dict[int, list[Any]] = {}  # entries of each frame by start of the file

    def restore(self, state: list[Any]) -> None:
        """Takes over a state of a queue file."""
        _, _, _, _, self.begin, self.end_offset, segments, cuts, aborted, _, snapshots, _ = state
        self.snapshots = {offset: b64decode(data) for offset, data in snapshots}
        self.bases = [segment[0] for segment in segments]
        self._cuts = [(start, offset) for start, offset in cuts]
        self.aborted = [Aborted(producer_id, first, last) for producer_id, first, last, _ in aborted]

    def apply(self, frame: Frame, start: int) -> None:
        """Applies a frame of the file with this start."""
        match frame.kind:
            case Kind.BATCHES:
                self._append(frame, start)
            case Kind.CUT:
                end_offset, segment_base, _ = _CUT.unpack(frame.payload)
                if end_offset <= self.end_offset:
                    self._cut(start, end_offset, segment_base)
            case Kind.RESET:
                (self.end_offset,) = _OFFSET.unpack(frame.payload)
                self.begin, self.bases, self.lost_from = start, [self.end_offset], None
                self.aborted, self.snapshots, self._cuts, self._unsealed = [], {}, [], {}
            case Kind.ROLL:
                (offset,) = _OFFSET.unpack(frame.payload)
                if offset <= self.end_offset:  # else its batches are lost
                    self._begin_segment(offset)
            case Kind.START:
                (offset,) = _OFFSET.unpack(frame.payload)
                self.bases = [base for base in self.bases[:-1] if base >= offset] + self.bases[-1:]
                self.aborted = [transaction for transaction in self.aborted if transaction.last_offset >= self.bases[0]]
            case Kind.ABORTED:
                producer_id, first, last, _ = _ABORTED.unpack(frame.payload)
                self.aborted.append(Aborted(producer_id, first, last))
            case Kind.SNAPSHOT:
                (offset,) = _OFFSET.unpack_from(frame.payload)
                self.snapshots[offset] = frame.payload[_OFFSET.size :]

    def _append(self, frame: Frame, start: int) -> None:
        if frame.previous_end < self.end_offset:  # the truncation before it is missing
            below = [base for base in self.bases if base <= frame.previous_end]
            self._cut(start, frame.previous_end, below[-1] if below else frame.previous_end)
        if frame.previous_end > self.end_offset:
            self.lost_from = self.end_offset
            return
        if frame.is_rolled:
            self._begin_segment(frame.base_offset)
        self.add_entries(start, frame.entries)
        self.end_offset = int(frame.entries["last_offset"][-1]) + 1

    def add_entries(self, start: int, entries: Any) -> None:
        """Adds entries of a file without a queue file."""
        self._unsealed.setdefault(start, []).append(entries)

    def _cut(self, start: int, end_offset: int, segment_base: int) -> None:
        if start in self._unsealed:
            entries = self._unsealed_in(start)
            self._unsealed[start] = [entries[entries["last_offset"] < end_offset]]
        self._cuts = [cut for cut in self._cuts if cut[1] < end_offset]
        if self.begin < start:
            self._cuts.append((start, end_offset))
        self.bases = [base for base in self.bases if base <= segment_base] or [min(self.bases[0], end_offset)]
        self.bases[-1] = min(self.bases[-1], end_offset)
        self.aborted = [transaction for transaction in self.aborted if transaction.last_offset < end_offset]
        self.snapshots = {offset: data for offset, data in self.snapshots.items() if offset <= end_offset}
        self.end_offset, self.lost_from = end_offset, None

    def _begin_segment(self, base_offset: int) -> None:
        """A ROLL may follow appends to its segment, which may have begun others."""
        if base_offset > self.bases[0] and base_offset not in self.bases:
            insort(self.bases, base_offset)

    def entries(self, start_offset: int, end_offset: int) -> Iterator[Entries]:
        """Yields the batches with offsets in a range, by file; the last one may begin behind it."""
        for file in self._files:
            if file.start < self.begin:
                continue
            valid_end = min([offset for start, offset in self._cuts if start > file.start], default=self.end_offset)
            position, found = self._stored(file, start_offset)
            last_offsets = found["last_offset"].astype(np.int64)
            first, wanted, valid = np.searchsorted(last_offsets, [start_offset, end_offset, valid_end])
            stop = min(int(wanted) + 1, int(valid))
            if first < stop:
                yield Entries(file, position + int(first) * found.itemsize, found[first:stop])

    def _unsealed_in(self, start: int) -> Any:
        return np.concatenate([_EMPTY, *self._unsealed.get(start, [])], dtype=ENTRY)

    def _stored(self, file: LogFile, start_offset: int) -> tuple[int, Any]:
        """All entries in a file that may have offsets from one on, and their position in its queue file."""
        if file.queue is None:
            return 0, self._unsealed_in(file.start)
        row = file.queue.row(self.number)
        if not row.entry_count or row.end_offset <= start_offset:
            return 0, _EMPTY
        position = file.queue.entries_position(row)
        return position, read_entries(file.queue.path, position, row.entry_count)

    def is_replaced(self, path: Path) -> bool:
        """Whether a run has replaced a log file, which had batches of this partition."""
        return is_replaced(path, self._files)


def read_slots(log_dir: Path) -> dict[tuple[str, int], Slot]:
    """Returns the partitions in a log directory's commit log, by topic id (hexadecimal) and number."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return _slots(log_dir / DIRECTORY)
        except FileNotFoundError:
            continue  # rule 4
    return _slots(log_dir / DIRECTORY)


def _slots(folder: Path) -> dict[tuple[str, int], Slot]:
    files = list_files(folder) if folder.is_dir() else []
    numbered: dict[int, Slot] = {}
    for file in files:
        if file.queue is not None:
            for state in file.queue.read_states():
                _restore(files, numbered, state)
            continue
        for frame in read_frames(file):
            if file.generation:
                _apply_of_run(files, numbered, frame, file.start)
            elif frame.kind == Kind.BIND and frame.slot not in numbered:
                topic_id, partition, incarnation, _ = _BIND.unpack_from(frame.payload)
                topic = bytes(frame.payload[_BIND.size :]).decode()
                slot = numbered[frame.slot] = Slot(files, frame.slot, topic_id.hex(), partition, incarnation, topic)
                slot.begin = file.start
            elif frame.kind == Kind.DROP:
                numbered.pop(frame.slot, None)
            elif frame.slot in numbered and frame.kind != Kind.BIND:
                numbered[frame.slot].apply(frame, file.start)
    found: dict[tuple[str, int], Slot] = {}
    for slot in sorted(numbered.values(), key=lambda slot: slot.incarnation):
        found[slot.topic_id, slot.partition] = slot
    return found


def _apply_of_run(files: list[LogFile], numbered: dict[int, Slot], frame: Frame, start: int) -> None:
    """Applies a frame of a run whose queue file is damaged."""
    if frame.kind == Kind.STATE:
        _restore(files, numbered, json.loads(frame.payload))
    elif frame.kind == Kind.BATCHES and frame.slot in numbered:
        numbered[frame.slot].add_entries(start, frame.entries)


def _restore(files: list[LogFile], numbered: dict[int, Slot], state: list[Any]) -> None:
    number = state[0]
    if len(state) == 1:
        numbered.pop(number, None)
        return
    slot = numbered.get(number)
    _, topic_id, partition, incarnation, *_, topic = state
    if slot is None or (slot.topic_id, slot.partition, slot.incarnation) != (topic_id, partition, incarnation):
        slot = numbered[number] = Slot(files, number, topic_id, partition, incarnation, topic)
    slot.restore(state)
