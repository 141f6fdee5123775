"""One segment against itself: are its batches whole, do its indexes say what the batches say.

RULES    1. A segment is read once, its indexes beside it; memory holds what a read takes.
         2. An entry of the offset index names the first byte of a batch and that batch's last offset, one of the time index
            the greatest timestamp so far and the batch that brought it; so the engine writes them, and Kafka.
         3. A batch is damaged when recovery would cut the log before it.
NOT HERE How segments follow one another, and what lies beside them (partition_check.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from protocol.records import NO_TIMESTAMP
from storage.inspection.batches import FoundBatch, Tail, walk
from storage.inspection.indexes import ENTRY_SIZES, LOG, OFFSET_INDEX, TIME_INDEX, offset_entries, time_entries
from storage.inspection.issues import Finding, Severity
from storage.io.disk import Disk, File, StorageError
from storage.segments.segment import MAX_RELATIVE_OFFSET

_MOST_FINDINGS = 20  # of one file: who has more has the same one again

Visit = Callable[[FoundBatch], None]
"""Called for every batch that is whole and in its place."""


class SegmentCheck:
    """A look at one segment."""

    def __init__(self, disk: Disk, directory: str, base_offset: int, visit: Visit) -> None:
        self._disk = disk
        self._stem = f"{directory}/{base_offset:020d}"
        self._visit = visit
        self.base_offset = base_offset
        self.end_offset = base_offset
        """Behind the last batch, the damaged ones not counted."""
        self.first_damage: int | None = None
        """The offset from which the log cannot be believed."""
        self.tail: Tail | None = None
        self.has_bad_index = False
        self.findings: list[Finding] = []
        self._damaged = 0
        self._max_timestamp = NO_TIMESTAMP

    def run(self, *, is_last: bool, is_clean: bool) -> None:
        """Look at everything."""
        path = self._stem + LOG
        offsets = _Entries(self, OFFSET_INDEX)
        times = _Entries(self, TIME_INDEX)
        for found in walk(self._disk.open(path, write=False)):
            if isinstance(found, Tail):
                self._take_tail(path, found, is_last=is_last)
            elif (damage := self._damage(found)) is not None:
                self._take_damage(path, found, damage)
            else:
                self._take(found, offsets, times)
        if self.first_damage is None:
            offsets.end()
            times.end()
            if is_clean or not is_last:  # else nobody has finished it
                self._check_last_time(times)
        if self._damaged > _MOST_FINDINGS:
            self._add(Severity.LOSS, path, f"{self._damaged - _MOST_FINDINGS} more of its batches are damaged.")

    def add_bad_index(self, path: str, text: str) -> None:
        """An index that has to be built anew."""
        if not any(finding.path == path for finding in self.findings):
            self._add(Severity.HARMLESS, path, text)
        self.has_bad_index = True

    def _add(self, severity: Severity, path: str, text: str) -> None:
        self.findings.append(Finding(severity, path, text))

    def _damage(self, found: FoundBatch) -> str | None:
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

    def _take_damage(self, path: str, found: FoundBatch, damage: str) -> None:
        if self.first_damage is None:
            self.first_damage = self.end_offset
        self._damaged += 1
        if self._damaged <= _MOST_FINDINGS:
            where = f"position {found.position}, behind offset {self.end_offset - 1}"
            self._add(Severity.LOSS, path, f"The batch at {where}, is damaged: {damage}.")

    def _take_tail(self, path: str, tail: Tail, *, is_last: bool) -> None:
        self.tail = tail
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

    def _take(self, found: FoundBatch, offsets: _Entries, times: _Entries) -> None:
        header = found.header
        if self.first_damage is None:
            if header.base_offset > self.end_offset > self.base_offset:
                text = f"Offsets {self.end_offset} to {header.base_offset - 1} are missing, as compaction leaves it."
                self._add(Severity.NOTE, self._stem + LOG, text)
            self._max_timestamp = max(self._max_timestamp, header.max_timestamp)
            offsets.meet(found)
            times.meet(found)
        self.end_offset = header.next_offset
        self._visit(found)

    def _check_last_time(self, times: _Entries) -> None:
        if not times.is_missing and times.last_key < self._max_timestamp:
            text = f"The time index ends with {times.last_key}, but there is a record of {self._max_timestamp}."
            self.add_bad_index(self._stem + TIME_INDEX, text)

    def index_file(self, suffix: str) -> tuple[str, File | None]:
        """An index with its path, None where it is missing."""
        path = self._stem + suffix
        try:
            return path, self._disk.open(path, write=False)
        except StorageError:
            return path, None


class _Entries:
    """The entries of one index, each to be met when its batch comes by."""

    def __init__(self, check: SegmentCheck, suffix: str) -> None:
        self._check = check
        self._is_time = suffix == TIME_INDEX
        self.path, file = check.index_file(suffix)
        self.is_missing = file is None
        self._entries: Iterator[tuple[int, int]] = iter(())
        self.last_key = NO_TIMESTAMP
        if file is None:
            self._bad("It is missing.")
        elif file.size() % ENTRY_SIZES[suffix]:
            self._bad(f"Its {file.size()} bytes are no multiple of {ENTRY_SIZES[suffix]}.")
        else:
            entries = time_entries if self._is_time else offset_entries
            self._entries = entries(file, check.base_offset)
        self._next = next(self._entries, None)

    def meet(self, found: FoundBatch) -> None:
        """A batch comes by: the next entry is its, or a later one's."""
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
            self._bad(self._sentence())
            return
        self.last_key = key
        self._next = next(self._entries, None)

    def end(self) -> None:
        """No further batch comes."""
        if self._next is not None:
            self._bad(self._sentence())

    def _sentence(self) -> str:
        assert self._next is not None
        names = ("timestamp", "offset") if self._is_time else ("offset", "position")
        return "Its entry of {0} {2}, {1} {3}, names no batch.".format(*names, *self._next)

    def _bad(self, text: str) -> None:
        self._next, self._entries = None, iter(())
        self._check.add_bad_index(self.path, text)
        self.is_missing = True
