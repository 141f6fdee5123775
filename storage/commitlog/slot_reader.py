"""Reading the batches of a slot: the files of an offset, entries, regions, timestamps.

RULES    1. A slot's entries are in the queue files of sealed log files, then in the slot's slices of other files.
            `entries_from` finds the first one by bisection over the rows of the queue files, then over the entries of one file.
         2. With `read_resident` nothing waits for the disk: NotResident is raised instead, also if a file is not open.
         3. `locate` checks frames that this process has neither written nor checked (frame_check.py).
         4. Batches that touch are one range of a region: those of one frame. The ranges in one file are one region.
NOT HERE Which thread reads (commit_log_engine.py).
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Final, NamedTuple

from protocol.errors import ErrorCode, KafkaError
from protocol.file_region import FileRegion, Region, ScatteredRegion, file_regions
from protocol.primitives import Buffer
from storage.commitlog.frame_check import Damage, check_frames, covers, with_range
from storage.commitlog.frames import LONG
from storage.commitlog.log_file import LogFile, Slice
from storage.commitlog.queue_file import ENTRY, Entry, QueuePart, Row, queue_run, read_row, unpack_entries
from storage.commitlog.slots import UNBOUND, Cut, Slot, slot_text
from storage.config.config_def import MAX_LONG
from storage.engine import AbortedTransaction, LocatedBatches, SegmentInfo
from storage.io.disk import File
from storage.io.disk_lookup import NotResident, Read, read_waiting

_log = logging.getLogger("barnabas.storage")

_STEP: Final = 64  # entries per read
_LOADED: Final = 256  # entries of a sealed file that are read at once
_start = attrgetter("start")
_last_offset = attrgetter("last_offset")
_iter_entries = ENTRY.iter_unpack

FoundBatch = tuple[LogFile, Entry]


class _Piece(NamedTuple):
    """A slot's entries in one file."""

    file: LogFile
    entries: Slice | QueuePart
    max_timestamp: int
    """At or above those of the valid entries."""
    valid_end: int


class SlotReader:
    """The published batches of a slot; `EngineView` describes the methods."""

    __slots__ = ("_files", "_read", "_slot")

    def __init__(self, slot: Slot, files: Sequence[LogFile], read: Read) -> None:
        """`files`: of the log, oldest first."""
        self._slot = slot
        self._files = files
        self._read = read

    @property
    def start_offset(self) -> int:
        return self._slot.start_offset

    @property
    def end_offset(self) -> int:
        return self._slot.end_offset

    def segments(self, limit: int | None = None) -> list[SegmentInfo]:
        return self._slot.segment_infos(limit)

    def locate(self, offset: int, max_bytes: int, max_offset: int, *, min_one_batch: bool) -> LocatedBatches:
        """As `Engine.locate`; whole batches only."""
        regions: list[Region] = []
        size, end_offset = 0, offset
        for piece in self._pieces_from(offset):
            valid_end, before, is_last = piece.valid_end, size, False
            limit = min(valid_end, max_offset)
            spans: list[tuple[int, int]] = []
            position = length = 0  # of the next range
            for data in self._packed_from(piece, offset):
                for at, batch_size, last_offset, _ in _iter_entries(data):
                    if last_offset >= limit:
                        is_last = last_offset < valid_end
                        break
                    if size + batch_size > max_bytes and (size or not min_one_batch):
                        is_last = True
                        break
                    if at == position + length:
                        length += batch_size
                    else:
                        if length:
                            spans.append((position, length))
                        position, length = at, batch_size
                    size += batch_size
                    end_offset = last_offset + 1
                if is_last:
                    break
            if length:
                spans.append((position, length))
                regions.append(_region(piece.file.log.get(self._read), spans, size - before))
                if not piece.file.is_verified:
                    sound_end = self._sound_end(piece, offset, end_offset, is_first=not before)
                    if sound_end < end_offset:
                        return self.locate(offset, max_bytes, sound_end, min_one_batch=min_one_batch)
            if is_last:
                break
        return LocatedBatches(tuple(regions), size, end_offset)

    def read_batches(self, offset: int, max_bytes: int) -> Buffer:
        found = self.locate(offset, max_bytes, max(self.end_offset, offset), min_one_batch=True)
        return b"".join([self._read(r.file, r.length, r.position) for r in file_regions(found.regions)])  # type: ignore[arg-type]

    def find_timestamp(self, target_ms: int, offset: int) -> int | None:
        for piece in self._pieces_from(offset):
            if piece.max_timestamp >= target_ms:
                for entry in self._entries_of(piece, offset):
                    if entry.max_timestamp >= target_ms:
                        return self.base_offset(piece.file, entry)
        return None

    def max_timestamp(self) -> tuple[int, int] | None:
        greatest: Entry | None = None
        for piece in self._pieces_from(self.start_offset):
            if greatest is None or piece.max_timestamp > greatest.max_timestamp:
                for entry in self._entries_of(piece, self.start_offset):
                    if greatest is None or entry.max_timestamp > greatest.max_timestamp:
                        greatest = entry
        return None if greatest is None else (greatest.max_timestamp, greatest.last_offset)

    def segment_max_timestamp(self, base_offset: int) -> int:
        segment = next(some for some in self.segments() if some.base_offset == base_offset)
        greatest, file = -1, self._files[-1]
        for file_of_entry, entry in self.entries_from(base_offset):
            if entry.last_offset >= segment.end_offset:
                break
            greatest, file = max(greatest, entry.max_timestamp), file_of_entry
        return greatest if greatest >= 0 else file.log.get(self._read).modified_ms()  # its path may be gone

    def aborted(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        known, found = self._slot.aborted, []
        for number in range(bisect_left(known, start_offset, key=_last_offset), len(known)):
            transaction = known[number]
            if transaction.first_offset < end_offset:
                found.append(transaction)
            if transaction.last_stable_offset >= end_offset:
                break  # later ones begin behind the range
        return found

    def base_offset(self, file: LogFile, entry: Entry) -> int:
        """The base offset of a batch, from its header.

        Raises:
            KafkaError: CORRUPT_MESSAGE.
        """
        if not file.is_verified:
            self.locate(entry.last_offset, 1, entry.last_offset + 1, min_one_batch=True)
        found: int = LONG.unpack(self._read(file.log.get(self._read), LONG.size, entry.position))[0]
        return found

    def entries_from(self, offset: int) -> Iterator[FoundBatch]:
        """The batches that reach to `offset` or above, in order."""
        for piece in self._pieces_from(offset):
            for entry in self._entries_of(piece, offset):
                yield piece.file, entry

    def planned_cut(self, offset: int) -> Cut:
        """What a truncation to `offset` leaves."""
        end_offset = offset
        removed: dict[int, int] = {}
        segments = self._slot.segments
        number = -1
        for file, entry in self.entries_from(offset):
            if number < 0:
                with suppress(KafkaError):  # a damaged batch is removed, even if its base offset is unknown
                    end_offset = min(offset, self.base_offset(file, entry))
                number = max(sum(segment.base_offset <= end_offset for segment in segments) - 1, 0)
            if number + 1 < len(segments) and entry.last_offset >= segments[number + 1].base_offset:
                break
            removed[number] = removed.get(number, 0) + entry.size
        if number < 0:
            number = max(sum(segment.base_offset <= end_offset for segment in segments) - 1, 0)
        segment = segments[number]
        return Cut(end_offset, segment.base_offset, segment.size - removed.get(number, 0))

    # ---- private -----------------------------------------------------------------------------------------

    def _sound_end(self, piece: _Piece, offset: int, end_offset: int, *, is_first: bool) -> int:
        """The end of what may be served of the batches from `offset` to `end_offset`, of which this piece has the last ones.

        `is_first`: it has all of them.

        Raises:
            KafkaError: CORRUPT_MESSAGE: the first one is in a damaged frame.
            NotResident: the frames must be checked by a reader that may wait.
        """
        slot, file, part = self._slot.original or self._slot, piece.file, piece.entries
        if isinstance(part, Slice) or covers(slot.checked, offset, end_offset):
            return end_offset
        if self._read is not read_waiting:
            raise NotResident
        checked_end, damage = check_frames(file, slot.number, part, end_offset)
        if checked_end is not None:
            slot.checked = with_range(slot.checked, offset, checked_end)
        if damage is None:
            return end_offset
        self._report(slot, file, damage)
        if checked_end is not None:
            return min(checked_end, end_offset)
        if is_first:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{file.path} is damaged at byte {damage.first.position}")
        return damage.first.last_offset  # a bound that excludes this batch

    def _report(self, slot: Slot, file: LogFile, damage: Damage) -> None:
        """Log a damaged frame once."""
        first, next_offset = damage
        if first.position not in file.damaged:
            file.damaged = (*file.damaged, first.position)
            _log.error(
                "%s is damaged at byte %d: reads of %s there, up to offset %d, fail with CORRUPT_MESSAGE. If another broker "
                "has the records, move the replica away from this one; else consumers must continue at offset %d",
                file.path, first.position, slot_text(slot.slot_id, slot.topic), next_offset - 1, next_offset,
            )  # fmt: skip

    def _pieces_from(self, offset: int) -> Iterator[_Piece]:
        """The files with entries from `offset` on, in order."""
        slot = self._slot
        in_memory = slot.slices
        if in_memory and in_memory[0].file.is_sealed:  # not released yet; a run may have replaced the file meanwhile
            in_memory = tuple([some for some in in_memory if not some.file.is_sealed])
        sealed_end = in_memory[0].file.start if in_memory else MAX_LONG
        if not in_memory or self._is_before(offset, in_memory[0]):
            yield from self._sealed_from(offset, sealed_end)
        for some in in_memory:
            valid_end = slot.valid_end(some.file.start, MAX_LONG)
            yield _Piece(some.file, some, some.max_timestamp, valid_end)

    def _is_before(self, offset: int, first: Slice) -> bool:
        """Whether batches with `offset` may be in files before the first slice."""
        if first.file.start <= self._slot.begin:
            return False
        return not first.count or offset <= first.last_offset(0)

    def _sealed_from(self, offset: int, sealed_end: int) -> Iterator[_Piece]:
        slot, files = self._slot, self._files
        if slot.number == UNBOUND:  # it has no row
            return
        begin, end = bisect_left(files, slot.begin, key=_start), bisect_left(files, sealed_end, key=_start)
        while end > begin and not files[end - 1].is_sealed:
            end -= 1

        rows: dict[int, Row] = {}

        def valid_end_of(file: LogFile) -> int:
            queue = file.queue_file
            assert queue is not None
            row = rows[file.start] = read_row(queue.get(self._read), slot.number, queue.header.slot_count, self._read)
            return slot.valid_end(file.start, row.end_offset)

        for number in range(bisect_left(files, offset + 1, begin, end, key=valid_end_of), end):
            file = files[number]
            queue = file.queue_file
            assert queue is not None
            handle, slot_count = queue.get(self._read), queue.header.slot_count
            row = rows.get(file.start) or read_row(handle, slot.number, slot_count, self._read)
            if row.entry_count:
                run = queue_run(handle, slot_count, row, self._read)
                entries = run.part_from(offset, _LOADED)
                yield _Piece(file, entries, row.max_timestamp, slot.valid_end(file.start, row.end_offset))

    def _entries_of(self, piece: _Piece, offset: int) -> Iterator[Entry]:
        """The valid entries of a piece that reach to `offset` or above."""
        for data in self._packed_from(piece, offset):
            for entry in unpack_entries(data):
                if entry.last_offset >= piece.valid_end:
                    return
                yield entry

    def _packed_from(self, piece: _Piece, offset: int) -> Iterator[Buffer]:
        """The entries of a piece that reach to `offset` or above, packed, some at a time."""
        entries, count = piece.entries, piece.entries.count
        index = _first_reaching(entries, count, offset) if isinstance(entries, Slice) else 0
        while index < count:
            yield entries.get(index, min(_STEP, count - index))
            index += _STEP


def _region(file: File, spans: list[tuple[int, int]], size: int) -> Region:
    return ScatteredRegion(file, spans, size) if len(spans) > 1 else FileRegion(file, *spans[0])


def _first_reaching(entries: Slice, count: int, offset: int) -> int:
    """The number of the first entry that reaches to `offset`: most reads are near the end, so the search starts there."""
    end, step = count, 1
    begin = count - 1
    while begin >= 0 and entries.last_offset(begin) >= offset:
        end, begin, step = begin, begin - step, 2 * step
    begin = max(begin + 1, 0)
    while begin < end:
        middle = (begin + end) // 2
        if entries.last_offset(middle) >= offset:
            end = middle
        else:
            begin = middle + 1
    return begin


def frozen_reader(slot: Slot, files: Sequence[LogFile]) -> SlotReader:
    """A reader of the slot at this moment, for any thread; it waits for the disk."""
    return SlotReader(slot.copy(), files, read_waiting)
