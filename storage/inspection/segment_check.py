"""Checks one segment: its batches, and its indexes against the batches.

RULES    1. A segment and its indexes are read once, in one pass; memory is limited to one read.
         2. An offset index entry has the first byte and the last offset of a batch, a time index entry the greatest
            timestamp so far and its batch, as written by the engine and by Kafka.
         3. A batch is damaged if a recovery would truncate the log before it.
NOT HERE The sequence of segments, and the other files (partition_check.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from protocol.records import NO_TIMESTAMP
from storage.inspection.batches import StoredBatch, Tail, read_stored_batches
from storage.inspection.indexes import ENTRY_SIZES, LOG, OFFSET_INDEX, TIME_INDEX, offset_entries, time_entries
from storage.inspection.issues import Issue, Severity
from storage.io.disk import Disk, File, StorageError
from storage.segments.segment import MAX_RELATIVE_OFFSET

_MAX_ISSUES_PER_FILE = 20  # per file: further ones repeat the same problem

OnBatch = Callable[[StoredBatch], None]
"""Called for every valid batch."""


class SegmentCheck:
    """The check of one segment."""

    def __init__(self, disk: Disk, directory: str, base_offset: int, on_batch: OnBatch) -> None:
        self._disk = disk
        self._stem = f"{directory}/{base_offset:020d}"
        self._visit = on_batch
        self.base_offset = base_offset
        self.end_offset = base_offset
        """The offset after the last batch, damaged ones excluded."""
        self.first_damage: int | None = None
        """The offset of the first damage."""
        self.has_bad_index = False
        self.issues: list[Issue] = []
        self._damaged = 0
        self._max_timestamp = NO_TIMESTAMP

    def run(self, *, is_last: bool, is_clean: bool) -> None:
        """Run all checks."""
        path = self._stem + LOG
        offsets = _IndexEntries(self, OFFSET_INDEX)
        times = _IndexEntries(self, TIME_INDEX)
        for found in read_stored_batches(self._disk.open(path, write=False)):
            if isinstance(found, Tail):
                self._report_tail(path, found, is_last=is_last)
            elif (damage := self._damage(found)) is not None:
                self._report_damage(path, found, damage)
            else:
                self._accept(found, offsets, times)
        if self.first_damage is None:
            offsets.end()
            times.end()
            if is_clean or not is_last:  # the active segment of a running broker is not finished
                self._check_last_time(times)
        if self._damaged > _MAX_ISSUES_PER_FILE:
            self._add(Severity.LOSS, path, f"{self._damaged - _MAX_ISSUES_PER_FILE} more of its batches are damaged.")

    def add_bad_index(self, path: str, text: str) -> None:
        """Report an index that must be rebuilt."""
        if not any(issue.path == path for issue in self.issues):
            self._add(Severity.HARMLESS, path, text)
        self.has_bad_index = True

    def _add(self, severity: Severity, path: str, text: str) -> None:
        self.issues.append(Issue(severity, path, text))

    def _damage(self, found: StoredBatch) -> str | None:
        header = found.header
        if not found.is_valid:
            return "its bytes do not match its CRC"
        if header.base_offset < self.end_offset:
            return f"its offset {header.base_offset} is below {self.end_offset}, which comes next"
        if header.last_offset_delta < 0:
            return "it ends before it begins"
        if header.last_offset - self.base_offset > MAX_RELATIVE_OFFSET:
            return f"its offset {header.base_offset} is too far from the segment's"
        return None

    def _report_damage(self, path: str, found: StoredBatch, damage: str) -> None:
        if self.first_damage is None:
            self.first_damage = self.end_offset
        self._damaged += 1
        if self._damaged <= _MAX_ISSUES_PER_FILE:
            where = f"position {found.position}, behind offset {self.end_offset - 1}"
            self._add(Severity.LOSS, path, f"The batch at {where}, is damaged: {damage}.")

    def _report_tail(self, path: str, tail: Tail, *, is_last: bool) -> None:
        if self.first_damage is None:
            self.first_damage = self.end_offset
        where = f"from position {tail.position} on, behind offset {self.end_offset - 1}"
        if tail.reason is not None:
            self._add(Severity.LOSS, path, f"No batch can be found in {tail.length} bytes {where}: {tail.reason}.")
        elif is_last:
            text = f"The {tail.length} bytes {where}, are a batch that is not whole, as a write that was cut short leaves it."
            self._add(Severity.HARMLESS, path, text)
        else:
            self._add(Severity.LOSS, path, f"The {tail.length} bytes {where}, are a batch that is cut off.")

    def _accept(self, found: StoredBatch, offsets: _IndexEntries, times: _IndexEntries) -> None:
        header = found.header
        if self.first_damage is None:
            if header.base_offset > self.end_offset > self.base_offset:
                text = f"Offsets {self.end_offset} to {header.base_offset - 1} are missing, as compaction leaves it."
                self._add(Severity.NOTE, self._stem + LOG, text)
            self._max_timestamp = max(self._max_timestamp, header.max_timestamp)
            offsets.compare(found)
            times.compare(found)
        self.end_offset = header.next_offset
        self._visit(found)

    def _check_last_time(self, times: _IndexEntries) -> None:
        if not times.is_missing and times.last_key < self._max_timestamp:
            text = f"The time index ends with {times.last_key}, but there is a record of {self._max_timestamp}."
            self.add_bad_index(self._stem + TIME_INDEX, text)

    def index_file(self, suffix: str) -> tuple[str, File | None]:
        """An index's path and file; None if it is missing."""
        path = self._stem + suffix
        try:
            return path, self._disk.open(path, write=False)
        except StorageError:
            return path, None


class _IndexEntries:
    """The entries of one index, compared with the batches in order."""

    def __init__(self, check: SegmentCheck, suffix: str) -> None:
        self._check = check
        self._is_time = suffix == TIME_INDEX
        self.path, file = check.index_file(suffix)
        self.is_missing = file is None
        self._entries: Iterator[tuple[int, int]] = iter(())
        self.last_key = NO_TIMESTAMP
        if file is None:
            self._report("It is missing.")
        elif file.size() % ENTRY_SIZES[suffix]:
            self._report(f"Its {file.size()} bytes are no multiple of {ENTRY_SIZES[suffix]}.")
        else:
            entries = time_entries if self._is_time else offset_entries
            self._entries = entries(file, check.base_offset)
        self._next = next(self._entries, None)

    def compare(self, found: StoredBatch) -> None:
        """Compare with a batch: the next entry is for this batch or a later one."""
        if self._next is None:
            return
        header, (key, value) = found.header, self._next
        if self._is_time:
            if value > header.last_offset:
                return
            fits = key == header.max_timestamp and key > self.last_key and value >= header.base_offset
        else:
            if value > found.position:
                return
            fits = value == found.position and key == header.last_offset
        if not fits:
            self._report(self._sentence())
            return
        self.last_key = key
        self._next = next(self._entries, None)

    def end(self) -> None:
        """Report an entry after the last batch."""
        if self._next is not None:
            self._report(self._sentence())

    def _sentence(self) -> str:
        assert self._next is not None
        names = ("timestamp", "offset") if self._is_time else ("offset", "position")
        return "Its entry of {0} {2}, {1} {3}, names no batch.".format(*names, *self._next)

    def _report(self, text: str) -> None:
        self._next, self._entries = None, iter(())
        self._check.add_bad_index(self.path, text)
        self.is_missing = True
