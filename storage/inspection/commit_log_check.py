"""Checks the files of a commit log: frames, the chain of each slot, queue files against the frames, the catalog.

RULES    1. Each file is read once. A frame names the end offset of its slot before it: what is missing in this chain is lost.
         2. An invalid range is damage if it is proven durable, as for a recovery: a DURABLE frame or a sealed file follows.
            Else the next start removes it.
            The end of a sealed file that is missing counts as such a range.
         3. Of a sealed file, the entries of each slot are those of its frames, below the slot's end in that file.
NOT HERE The batches of a partition and its other files (partition_check.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Final

from storage.commitlog.catalog import CATALOG, read_catalog
from storage.commitlog.commit_log import DIRECTORY
from storage.commitlog.frames import (
    CUT_PAYLOAD,
    FILE_HEADER,
    FOLLOWS_PAYLOAD,
    LONG,
    RUN_PAYLOAD,
    Frame,
    FrameKind,
    InvalidRange,
)
from storage.commitlog.queue_file import Entry, Row, last_batch_end
from storage.commitlog.run_recovery import lost_files, partitions_in, survey
from storage.commitlog.sealing import queue_path
from storage.commitlog.slots import SlotId
from storage.inspection.catalog_check import catalog_problem
from storage.inspection.commit_log_files import FrameScan, StoredQueue, partition_text, read_queue_file
from storage.inspection.issues import Issue, Severity
from storage.io.disk import Disk

_MAX_ISSUES_PER_FILE: Final = 20


def has_commit_log(disk: Disk, directory: str) -> bool:
    """Whether a log directory has a commit log."""
    return disk.is_dir(f"{directory}/{DIRECTORY}")


class CommitLogCheck:
    """The check of one commit log."""

    def __init__(self, disk: Disk, directory: str, names: Mapping[tuple[bytes, int], str]) -> None:
        """`directory`: the log directory; `names`: of partitions, by topic id and number."""
        self._disk = disk
        self.path = f"{directory}/{DIRECTORY}"
        self._names = names
        self.issues: list[Issue] = []
        self.rebuildable: list[str] = []
        """Files that a start makes again if they are missing, without a loss: the catalog, and queue files if all frames of
        their log files are valid."""
        self._proof = 0
        self._ends: dict[int, int] = {}  # by slot
        self._partitions: dict[int, SlotId] = {}
        self._invalid: list[tuple[str, InvalidRange, StoredQueue | None, int, bool]] = []
        self._previous: tuple[int, int] | None = None  # start and end of the file before

    def run(self) -> None:
        """Check all files, oldest first."""
        found = survey(self._disk, self.path)
        for name in lost_files(self._disk, self.path, found, read_catalog(self._disk, self.path).files):
            path = f"{self.path}/{name}"
            lost = partitions_in(self._disk, path)
            self._add(Severity.LOSS, path, f"It is missing: the records of {lost} in it are lost.")
        for name in chain(*found.replaced, found.unfinished):
            text = "A start removes it: a run replaces it, or it is an unfinished run."
            self._add(Severity.HARMLESS, f"{self.path}/{name}", text)
        for name in found.kept:
            self._check_file(f"{self.path}/{name}", name.start, is_run=name.generation > 0)
        for path, invalid, queue, start, is_run in self._invalid:
            self._report_invalid(path, invalid, queue, start, is_run=is_run)
        problem = catalog_problem(self._disk, self.path, found.kept)
        if problem is not None:
            self._add(Severity.HARMLESS, f"{self.path}/{CATALOG}", problem)
            self.rebuildable.append(f"{self.path}/{CATALOG}")

    def _add(self, severity: Severity, path: str, text: str) -> None:
        self.issues.append(Issue(severity, path, text))

    def _name(self, slot: int) -> str:
        slot_id = self._partitions.get(slot)
        known = None if slot_id is None else self._names.get((slot_id.topic_id, slot_id.partition))
        return known or partition_text(slot_id)

    # ---- one file ----------------------------------------------------------------------------------------

    def _check_file(self, path: str, start: int, *, is_run: bool) -> None:
        scanned = FrameScan(self._disk.open(path, write=False), start)
        queue = self._queue(path, start)
        if scanned.file_id is None:
            self._report_header(path, scanned.size, queue, is_run=is_run)
            return
        frames = _FileFrames(self._ends, is_run=is_run)
        for found in scanned:
            if isinstance(found, InvalidRange):
                self._invalid.append((path, found, queue, start, is_run))
                frames.is_whole = False
            else:
                self._proof = max(self._proof, frames.apply(found, start))
        self._partitions.update(scanned.partitions)
        sealed_size = 0 if queue is None else _sealed_size(queue, is_run=is_run)
        if scanned.size < sealed_size:
            missing = InvalidRange(start + scanned.size, start + sealed_size)
            self._invalid.append((path, missing, queue, start, is_run))
            frames.is_whole = False
        if queue is not None and not frames.is_whole:
            frames.gaps.clear()  # the invalid ranges are reported
        for slot, gap in frames.gaps.items():
            if queue is not None and slot < queue.header.slot_count and queue.row(slot).end_offset <= gap[0]:
                continue  # a CUT in a later file removes it, too
            text = (
                f"{self._name(slot)} lost its records from offset {gap[0]} to {gap[1] - 1}: their frames are missing."
            )
            self._add(Severity.LOSS, path, text)
        end = scanned.end if queue is None else queue.header.end
        if queue is not None and frames.is_whole:
            self._compare(queue_path(path), queue, frames)
        elif queue is not None:
            self._follow(queue)
        if frames.first is not None:
            if not is_run:
                self._check_order(path, frames.first)
            elif queue is None and frames.first.kind == FrameKind.RUN:
                _, end = RUN_PAYLOAD.unpack_from(frames.first.payload)
            self._previous = start, end

    def _report_header(self, path: str, size: int, queue: StoredQueue | None, *, is_run: bool) -> None:
        if queue is not None and size >= _sealed_size(queue, is_run=is_run):
            self._add(Severity.HARMLESS, path, "It has no valid header: its batches are read by its queue file.")
            self._follow(queue)
            self._previous = queue.header.start, queue.header.end
            return
        if queue is None and size <= FILE_HEADER.size:
            text = "It has no header and no frames: its creation was interrupted, or it was emptied. A start skips it."
            self._add(Severity.HARMLESS, path, text)
            return
        text = f"It has no valid header; a start skips its {size} bytes"
        end = size if queue is None else _sealed_size(queue, is_run=is_run)  # its end may be lost too
        self._add(Severity.LOSS, path, f"{text}: {self._affected(queue, 0, end)}.")

    def _check_order(self, path: str, first: Frame) -> None:
        is_next = first.kind == FrameKind.FOLLOWS and FOLLOWS_PAYLOAD.unpack(first.payload) == self._previous
        if self._previous is not None and not is_next:
            self._add(Severity.LOSS, path, f"It does not follow the file before, which ends at {self._previous[1]}.")

    def _queue(self, path: str, start: int) -> StoredQueue | None:
        name = queue_path(path)
        if not self._disk.exists(name):
            return None
        queue = read_queue_file(self._disk, name, start)
        if queue is None:
            self._add(Severity.HARMLESS, name, "It is invalid: a start makes it again from the log file.")
        else:
            self._proof = max(self._proof, queue.header.end)  # also the end of what a run replaces
            for slot in queue.states:
                slot_id = queue.slot_id(slot)
                if slot_id is not None:
                    self._partitions[slot] = slot_id
        return queue

    def _compare(self, path: str, queue: StoredQueue, frames: _FileFrames) -> None:
        """Compare the queue of a sealed file with its frames, which are all valid (rule 3)."""
        wrong = kept = 0
        for slot in range(queue.header.slot_count):
            row = queue.row(slot)
            expected = [entry for entry in frames.entries.get(slot, []) if entry.last_offset < row.end_offset]
            found = queue.entries(row)
            kept += sum([entry.size for entry in found])
            problem = _difference(row, found, expected)
            if problem is not None:
                wrong += 1
                if wrong <= _MAX_ISSUES_PER_FILE:
                    self._add(Severity.HARMLESS, path, f"{problem.format(self._name(slot))} A repair makes it again.")
        if not wrong and kept + queue.header.removed != frames.batch_bytes:
            text = f"It counts {queue.header.removed} bytes of removed batches, the frames have {frames.batch_bytes - kept}."
            self._add(Severity.HARMLESS, path, f"{text} A repair makes it again.")
            wrong += 1
        if wrong:
            self.rebuildable.append(path)
        self._follow(queue)

    def _follow(self, queue: StoredQueue) -> None:
        """Continue with the end offsets of a sealed file."""
        for slot in range(queue.header.slot_count):
            row = queue.row(slot)
            if slot in self._ends or row.entry_count:
                self._ends[slot] = row.end_offset

    # ---- invalid ranges ----------------------------------------------------------------------------------

    def _report_invalid(
        self, path: str, invalid: InvalidRange, queue: StoredQueue | None, start: int, *, is_run: bool
    ) -> None:
        begin, end = invalid.start - start, invalid.end - start
        where = f"Its bytes {begin} to {end} are no valid frame"
        if not is_run and queue is not None and invalid.start >= queue.header.end:
            self._add(Severity.NOTE, path, f"{where}; they are behind its end.")
        elif not is_run and invalid.start >= self._proof:
            self._add(Severity.HARMLESS, path, f"{where}: a write that was not durable. A start removes them.")
        else:
            self._add(Severity.LOSS, path, f"{where}: {self._affected(queue, begin, end)}.")

    def _affected(self, queue: StoredQueue | None, begin: int, end: int) -> str:
        """The partitions with batches in a range of a log file."""
        affected = [] if queue is None else [self._name(slot) for slot in _touching(queue, begin, end)]
        return ", ".join(affected) or "damaged"


class _FileFrames:
    """What the frames of one file say."""

    def __init__(self, ends: dict[int, int], *, is_run: bool) -> None:
        self._ends = ends
        self._is_run = is_run
        self.first: Frame | None = None
        self.is_whole = True
        self.entries: dict[int, list[Entry]] = {}
        self.batch_bytes = 0
        """Of all BATCHES."""
        self.gaps: dict[int, tuple[int, int]] = {}
        """By slot, the first lost offset and the first one after them."""

    def apply(self, frame: Frame, start: int) -> int:
        """Apply a frame of the file with this start; returns the position before which it proves all durable."""
        self.first = self.first or frame
        if frame.kind == FrameKind.DURABLE:
            return int(LONG.unpack(frame.payload)[0])
        if frame.kind == FrameKind.RUN:
            of_slots = enumerate(LONG.iter_unpack(frame.payload[RUN_PAYLOAD.size :]))
            self._ends.update({slot: end for slot, (end,) in of_slots if end or slot in self._ends})
        if frame.kind in (FrameKind.FOLLOWS, FrameKind.RUN, FrameKind.STATE):
            return 0
        slot, ends = frame.slot, self._ends
        known = ends.get(slot, frame.previous_end)
        if frame.previous_end > known and not self._is_run:  # a run may begin later: the batches before are deleted
            self.gaps.setdefault(slot, (known, frame.previous_end))
        end_offset = max(known, frame.previous_end)  # a SNAPSHOT names the end before batches that are not published
        if frame.kind == FrameKind.BATCHES:
            self._truncate(slot, frame.previous_end)
            added = self.entries.setdefault(slot, [])
            position = frame.position - start
            for batch in frame.batches:
                added.append(Entry(position + batch.position, batch.size, batch.last_offset, batch.max_timestamp))
                self.batch_bytes += batch.size
            end_offset = frame.batches[-1].last_offset + 1
        elif frame.kind == FrameKind.CUT:
            end_offset = CUT_PAYLOAD.unpack(frame.payload)[0]
            self._truncate(slot, end_offset)
        elif frame.kind == FrameKind.RESET:
            (end_offset,) = LONG.unpack(frame.payload)
            self.entries.pop(slot, None)
        elif frame.kind == FrameKind.DROP:
            end_offset = 0
            self.entries.pop(slot, None)
        if not self._is_run:
            ends[slot] = end_offset
        return 0

    def _truncate(self, slot: int, end_offset: int) -> None:
        if slot in self.gaps and end_offset <= self.gaps[slot][0]:
            del self.gaps[slot]  # what is missing was cut off later
        kept = self.entries.get(slot)
        while kept and kept[-1].last_offset >= end_offset:
            kept.pop()


def _difference(row: Row, found: list[Entry], expected: list[Entry]) -> str | None:
    """How a row differs from the batches of its slot, with a place for the partition; None if it does not."""
    if found != expected:
        return f"Its {len(found)} entries of {{}} are not those of the {len(expected)} batches."
    size, greatest = sum([entry.size for entry in found]), max([entry.max_timestamp for entry in found], default=-1)
    if (row.size, row.max_timestamp) != (size, greatest):
        return f"Its row of {{}} says {row.size} bytes up to time {row.max_timestamp}, the entries {size} up to {greatest}."
    return None


def _sealed_size(queue: StoredQueue, *, is_run: bool) -> int:
    """The size of a log file when it was sealed; of a run, up to its last batch."""
    return last_batch_end(queue.file, queue.header) if is_run else queue.header.end - queue.header.start


def _touching(queue: StoredQueue, begin: int, end: int) -> list[int]:
    """The slots with batches in a range of the log file."""
    return [
        slot
        for slot in range(queue.header.slot_count)
        if any(entry.position < end and begin < entry.position + entry.size for entry in queue.entries(queue.row(slot)))
    ]
