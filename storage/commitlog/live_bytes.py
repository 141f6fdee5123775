"""The live bytes of each sealed file: those of batches that a partition still has.

RULES    1. A batch is live if its slot exists, its file is not before the slot's `begin`, it reaches to the slot's start
            offset, and no truncation in a later file removed it (slots.py rule 3).
         2. Live bytes are computed from the rows of the queue file and from the slots as they are: nothing is added up over
            time. A file is measured again when a slot with batches in it has changed since.
         3. A file has dead bytes since it was found to have some. For a file that the process finds with dead bytes, since it
            was sealed or written: a restart must not begin the time again.
NOT HERE Which files are rewritten (run_choice.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from storage.commitlog.log_file import LogFile
from storage.commitlog.queue_file import QueueRun, Row, queue_run, read_row, read_rows, unpack_entries
from storage.commitlog.slots import Slot, valid_end
from storage.io.disk import Disk, File
from storage.io.disk_lookup import read_waiting


class Extent(NamedTuple):
    """What a slot has of its entries."""

    begin: int
    start_offset: int
    cuts: tuple[tuple[int, int], ...]

    def live_range(self, file_start: int, row: Row, entries: QueueRun) -> range:
        """The live entries, by number, among those of the slot in one file (rule 1)."""
        if self.begin > file_start or row.end_offset <= self.start_offset:
            return range(0)
        numbers, last_offset = range(entries.count), entries.last_offset
        end_offset = valid_end(self.cuts, file_start, row.end_offset)
        end = bisect_left(numbers, end_offset, key=last_offset) if end_offset < row.end_offset else len(numbers)
        has_all = self.start_offset <= 0 or last_offset(0) >= self.start_offset
        return range(0 if has_all else bisect_left(numbers, self.start_offset, hi=end, key=last_offset), end)


def extents_of(slots: Mapping[int, Slot]) -> dict[int, Extent]:
    """The extents of all slots that are not dropped; any thread.

    Read in this order, none contains more than it did when this was called.
    """
    found: dict[int, Extent] = {}
    for number, slot in list(slots.items()):
        cuts = slot.cuts
        start_offset = slot.start_offset
        if not slot.is_dropped:
            found[number] = Extent(slot.begin, start_offset, cuts)
    return found


@dataclass(slots=True)
class FileSpace:
    """The use of one sealed file."""

    live: int
    data: int
    """Of all batches, live or dead, with an entry or without."""
    written_ms: int
    """When the newest batch was written."""
    dead_since_ms: int | None

    @property
    def dead(self) -> int:
        """The bytes of batches that no partition has."""
        return self.data - self.live


class LiveBytes:
    """The use of all sealed files of a commit log; used by one thread at a time."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._extents: dict[int, Extent] = {}
        self._spaces: dict[str, FileSpace] = {}  # by path

    @property
    def spaces(self) -> list[FileSpace]:
        """The use of the files as of the last update."""
        return list(self._spaces.values())

    def update(self, files: Sequence[LogFile], extents: dict[int, Extent], wall_ms: int) -> list[FileSpace]:
        """The use of these sealed files, which are all of the log, oldest first."""
        before, self._extents = self._extents, extents
        known, self._spaces = self._spaces, {}
        stale = self._stale(files, before) if known else set()
        for file in files:
            space = known.get(file.path)
            if space is None or file.path in stale:
                space = self._measure(file, space, wall_ms)
            self._spaces[file.path] = space
        return self.spaces

    def _measure(self, file: LogFile, before: FileSpace | None, wall_ms: int) -> FileSpace:
        queue, slot_count = opened_queue(file)
        live, data = 0, file.queue_file.header.removed if file.queue_file is not None else 0
        for number, row in enumerate(read_rows(queue, slot_count, read_waiting)):
            if row.entry_count:
                data += row.size
                live += self._live(file.start, queue, slot_count, number, row)
        if live == data:
            dead_since = None
        elif before is None:
            dead_since = self._disk.modified_ms(file.queue_file.path) if file.queue_file is not None else wall_ms
        else:
            dead_since = wall_ms if before.dead_since_ms is None else before.dead_since_ms
        written_ms = self._disk.modified_ms(file.path) if before is None else before.written_ms
        return FileSpace(live, data, written_ms, dead_since)

    def _live(self, file_start: int, queue: File, slot_count: int, number: int, row: Row) -> int:
        extent = self._extents.get(number)
        if extent is None:
            return 0
        entries = queue_run(queue, slot_count, row, read_waiting)
        live = extent.live_range(file_start, row, entries)
        if len(live) == entries.count:
            return row.size
        return sum([entry.size for entry in unpack_entries(entries.get(live.start, len(live)))])

    # ---- what changed ------------------------------------------------------------------------------------

    def _stale(self, files: Sequence[LogFile], before: Mapping[int, Extent]) -> set[str]:
        """The paths of files in which the live bytes of a slot may have changed (rule 2)."""
        stale: set[str] = set()
        for number, old in before.items():
            new = self._extents.get(number)
            if new != old:
                stale.update(self._changed(files, number, old, new))
        return stale

    @staticmethod
    def _changed(files: Sequence[LogFile], number: int, old: Extent, new: Extent | None) -> Iterator[str]:
        def row_of(file: LogFile) -> Row:
            queue, slot_count = opened_queue(file)
            return read_row(queue, number, slot_count, read_waiting)

        own = [file for file in files if file.start >= old.begin]
        is_trimmed = new is not None and (new.begin, new.cuts) == (old.begin, old.cuts)
        first = 0
        if is_trimmed:
            first = bisect_left(
                own, old.start_offset + 1, key=lambda file: valid_end(old.cuts, file.start, row_of(file).end_offset)
            )
        for file in own[first:]:
            row = row_of(file)
            if row.entry_count:
                yield file.path
            if is_trimmed and new is not None and row.end_offset > new.start_offset:
                break


def opened_queue(file: LogFile) -> tuple[File, int]:
    """The open queue file of a sealed file, and its number of rows."""
    assert file.queue_file is not None
    return file.queue_file.get(read_waiting), file.queue_file.header.slot_count
