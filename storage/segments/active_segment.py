"""A segment with appends: its indexes grow in memory, and the event loop owns it.

RULES    1. Bytes before `size` are published and never change; bytes between `size` and `reserved` are being
            written and are not read.
         2. A batch gets an index entry if it starts more than `interval` bytes after the batch of the last entry; the
            time index gets the greatest timestamp so far at that moment, and once more when the segment is finished. A
            rebuilt index is identical to the original one.
         3. The last published batches are in memory, so a lookup among them reads nothing.
         4. Files are created and renamed and indexes written through a `Submit` (storage/io/deferred_file_ops.py); until
            then the state in memory is used.
         5. Only `write` may run in another thread. Readers there use an `ActiveView` (sealed_segment.py).
         6. Inconsistent indexes are rebuilt by `load`; an entry that turns out to be wrong later is bypassed.
NOT HERE Selecting a segment, rolling, flushing (segment_engine.py).
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from protocol.errors import KafkaError
from protocol.primitives import Buffer
from protocol.records import BATCH_OVERHEAD, NO_TIMESTAMP, BatchHeader, crc_is_valid, parse_header
from storage.engine import BatchInfo, OnBatch, batch_info
from storage.io.deferred_file_ops import Submit, run_now
from storage.io.disk import Disk, File
from storage.io.disk_lookup import NotResident, read_resident, read_waiting
from storage.io.file_handle_cache import USED
from storage.segments.directory_recovery import LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX
from storage.segments.indexes import CorruptIndex, OffsetIndex, TimeIndex, TransactionIndex
from storage.segments.segment import MAX_RELATIVE_OFFSET, Segment
from storage.segments.segment_files import (
    LARGEST_BATCH_BYTES,
    BatchPosition,
    SegmentFiles,
    header_at,
    headers_from,
    refuse_old_message,
)

_RECOVERY_READ_BYTES = 1 << 20
_RECENT_BATCHES = 64

_log = logging.getLogger("barnabas.storage")


class ActiveSummary(NamedTuple):
    """What a segment is continued from without reading its files."""

    size: int
    end_offset: int
    first_timestamp: int
    max_timestamp: int
    max_timestamp_offset: int
    unindexed: int
    offset_index: list[int]
    """`OffsetIndex.summary`; empty for a segment without files."""
    time_index: list[int]


def _summary_of_empty(base_offset: int) -> ActiveSummary:
    return ActiveSummary(0, base_offset, NO_TIMESTAMP, NO_TIMESTAMP, base_offset, 0, [], [])


class ActiveSegment(Segment):
    """A log file that grows, and its indexes."""

    __slots__ = (
        "_recent_ends", "_recent_positions", "_recent_start", "_unindexed", "created_ms", "end_offset",
        "first_timestamp", "max_timestamp", "offset_index", "open_file", "reserved", "size", "time_index", "transactions",
    )  # fmt: skip

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        interval: int,
        name_suffix: str = "",
        summary: ActiveSummary | None = None,
    ) -> None:
        """An empty segment; `create`, `load` or `recover` is called next.

        With a summary an existing segment, whose files are unchanged since; no file is opened.
        """
        super().__init__(disk, directory, base_offset, interval, name_suffix)
        self.open_file: File | None = None
        """The log file, if it is open."""
        self.created_ms = -1
        self.transactions = TransactionIndex(disk, self.path(TRANSACTION_INDEX), base_offset, is_new=True)
        self._resume(summary or _summary_of_empty(base_offset))

    def _resume(self, summary: ActiveSummary) -> None:
        disk, base_offset, is_new = self.disk, self.base_offset, not summary.offset_index
        self.size = self.reserved = summary.size
        self.end_offset = self._recent_start = summary.end_offset
        self.offset_index = OffsetIndex(
            disk, self.path(OFFSET_INDEX), base_offset, is_new=is_new, summary=summary.offset_index
        )
        self.time_index = TimeIndex(disk, self.path(TIME_INDEX), base_offset, is_new=is_new, summary=summary.time_index)
        self._recent_ends = array("q")
        self._recent_positions = array("Q")
        self.first_timestamp = summary.first_timestamp
        """The max timestamp of the first batch, from which the segment's age counts; -1 if there is none."""
        self.max_timestamp = summary.max_timestamp, summary.max_timestamp_offset
        """The greatest timestamp and the last offset of its batch; (-1, base offset) if there is none."""
        self._unindexed = summary.unindexed

    # ---- files -------------------------------------------------------------------------------------------

    @property
    def file(self) -> File:
        """The log file; opened if necessary."""
        file = self.open_file
        if file is None:
            file = self.open_log()
            self._set_file(file)
        self.usage = USED
        return file

    @property
    def is_open(self) -> bool:
        """Whether the log file is open."""
        return self.open_file is not None

    @property
    def is_written(self) -> bool:
        """Whether the files exist and have everything that is in memory."""
        return (
            self.is_created
            and self.offset_index.is_written
            and self.time_index.is_written
            and self.transactions.is_written
        )

    @property
    def has_pending_appends(self) -> bool:
        """Whether bytes are reserved and not published."""
        return self.reserved != self.size

    def _set_file(self, file: File) -> None:
        self.open_file = file
        self.handles.files_opened(self)

    def sync(self) -> None:
        """Sync the log and its indexes now."""
        for file in (self.file, *self.index_files()):
            file.sync()

    def close_if_written(self, submit: Submit) -> None:
        """Write the indexes, and close the files if nothing is pending; a later use opens them again."""
        self.write_indexes(submit)
        if self.is_written:
            self.close_files()

    def close_files(self) -> None:
        """Close the files and write nothing more; a later use opens them again."""
        self.open_file = None
        self.offset_index.close_file()
        self.time_index.close_file()
        super().close_files()

    # ---- creation, loading and recovery ------------------------------------------------------------------

    def create(self, wall_ms: int, submit: Submit = run_now) -> None:
        """Start a new segment; creating its files truncates existing ones of the same name."""
        self.created_ms = wall_ms
        self.is_created = False
        submit(self._create_files)

    def _create_files(self) -> None:
        self.disk.unlink(self.path(TRANSACTION_INDEX), missing_ok=True)
        for suffix in (OFFSET_INDEX, TIME_INDEX, LOG):
            file = self.disk.open(self.path(suffix), write=True, create=True)
            if file.size():
                file.truncate(0)
        if not self.is_retired:
            self._set_file(file)
        self.is_created = True

    def create_log(self) -> None:
        """Create the log file now, before the operation of `create`, in any thread; does nothing if it exists."""
        self.disk.open(self.path(LOG), write=True, create=True).close()

    def summary(self) -> ActiveSummary:
        """What the segment is continued from; everything is written."""
        return ActiveSummary(
            self.size,
            self.end_offset,
            self.first_timestamp,
            *self.max_timestamp,
            self._unindexed,
            self.offset_index.summary(),
            self.time_index.summary(),
        )

    def load(self, size: int) -> None:
        """Continue an existing segment of `size` bytes; inconsistent indexes are rebuilt."""
        self.size = self.reserved = size
        try:
            self.offset_index, self.time_index = self.open_indexes(size)
            self._load()
        except (CorruptIndex, KafkaError) as error:
            self.rebuild(str(error))
        self.transactions = self.open_transactions()

    def _load(self) -> None:
        _, start = self.offset_index.last
        end_offset = self.base_offset
        greatest, greatest_offset = self.time_index.last
        ends, positions = array("q"), array("Q")
        self._recent_start = self.base_offset
        position = start
        for at, header in headers_from(self.file, self.size, start):
            if at == start > 0:
                self._recent_start = header.base_offset
            if not self._follows(header, end_offset):
                raise CorruptIndex(f"{self.path(LOG)} is damaged at position {at}")
            end_offset, position = header.next_offset, at + header.size
            ends.append(end_offset - 1)
            positions.append(at)
            if header.max_timestamp > greatest:
                greatest, greatest_offset = header.max_timestamp, end_offset - 1
        if position != self.size:
            raise CorruptIndex(f"{self.path(LOG)} does not end with a whole batch")
        self._recent_ends, self._recent_positions = ends, positions
        self.first_timestamp = header_at(self.file, 0).max_timestamp if self.size else NO_TIMESTAMP
        self.max_timestamp = greatest, greatest_offset
        self._unindexed = self.size - start
        self.end_offset = end_offset

    def rebuild(self, reason: str) -> None:
        """Rebuild the indexes, durably."""
        _log.warning("Rebuilding the indexes of %s: %s", self.path(LOG), reason)
        self.recover(None)
        self.sync()

    def recover(self, on_batch: OnBatch | None) -> None:
        """Check every batch, rebuild the indexes and truncate the log after the last valid batch.

        The index files may be wrong until it ends; a repetition gives the same result. Aborted transactions are not changed.

        Raises:
            KafkaError: UNSUPPORTED_FOR_MESSAGE_FORMAT; the files are unchanged.
        """
        self._resume(_summary_of_empty(self.base_offset))
        position = 0
        file = self.file
        end = file.size()
        while position < end:
            data = file.pread(min(_RECOVERY_READ_BYTES, end - position), position)
            needed = self._accept(data, on_batch)
            if self.size == position and len(data) < needed <= min(end - position, LARGEST_BATCH_BYTES):
                self._accept(file.pread(needed, position), on_batch)
            if self.size == position:
                break
            position = self.size
        if position < end:
            refuse_old_message(file, position)
            _log.warning("Truncating %s from %d to %d bytes: no valid batch follows", self.path(LOG), end, position)
            file.truncate(position)
            file.sync()
        self.time_index.append(*self.max_timestamp)
        self.offset_index.end_comparison()
        self.time_index.end_comparison()

    def _accept(self, data: bytes, on_batch: OnBatch | None) -> int:
        """Publish the valid batches at the start of `data`; the size of the next one if it is incomplete, else 0."""
        at = 0
        while at + BATCH_OVERHEAD <= len(data):
            try:
                header = parse_header(data, at)
            except KafkaError:
                return 0
            size = header.size
            if at + size > len(data):
                return size
            if not self._follows(header, self.end_offset) or not crc_is_valid(data, at, header):
                return 0
            info = batch_info(at, header)
            self.reserve((info,), size)
            self.publish((info,))
            if on_batch is not None:
                on_batch(data, at, header)
            at += size
        return 0

    def _follows(self, header: BatchHeader, end_offset: int) -> bool:
        base_offset, delta = header.base_offset, header.last_offset_delta
        return (
            base_offset >= end_offset and delta >= 0 and base_offset + delta - self.base_offset <= MAX_RELATIVE_OFFSET
        )

    def truncate(self, offset: int) -> None:
        """Truncate at the batch that contains `offset`, durably; the end is its base offset then, or `offset`."""
        found = self._files(self.file).find(offset, read_waiting)
        end_offset = offset
        if found is not None:
            position, _ = found
            end_offset = min(offset, header_at(self.file, position).base_offset)
            self.offset_index.truncate(offset)
            self.time_index.truncate(offset)
            self.transactions.truncate(offset)
            self.file.truncate(position)
            self.file.sync()
            self.size = self.reserved = position
            self._load()
        self.end_offset = end_offset

    # ---- append ------------------------------------------------------------------------------------------

    def reserve(self, batches: Sequence[BatchInfo], size: int) -> int:
        """Reserve `size` bytes after the reserved ones; returns their position."""
        position = self.reserved
        if not position:
            self.first_timestamp = batches[0].max_timestamp
        self.reserved = position + size
        return position

    def write(self, buffer: Buffer, position: int) -> None:
        """Write to the log in any thread; a no-op for a retired segment."""
        if not self.is_retired:
            self.usage = USED
            file = self.open_file or self.file  # may open the path, which another file may have after the deletion
            if not self.is_retired:
                file.pwrite(buffer, position)

    def publish(self, batches: Sequence[BatchInfo], submit: Submit = run_now) -> None:
        """Make the batches written at `size` readable. They are readable even if this raises."""
        ends, positions = self._recent_ends, self._recent_positions
        at = self.size
        unindexed, interval = self._unindexed, self.interval
        greatest, _ = self.max_timestamp
        is_behind = False
        for _, size, _, last_offset, timestamp, _ in batches:
            if timestamp > greatest:
                greatest = timestamp
                self.max_timestamp = timestamp, last_offset
            if unindexed > interval:
                self.offset_index.append(last_offset, at)
                self.time_index.append(*self.max_timestamp)
                unindexed = 0
                is_behind = self.offset_index.is_behind
            ends.append(last_offset)
            positions.append(at)
            unindexed += size
            at += size
        self._unindexed = unindexed
        self.size = at
        self.end_offset = last_offset + 1
        if len(ends) >= 2 * _RECENT_BATCHES:
            self._recent_start = ends[-_RECENT_BATCHES - 1] + 1
            del ends[:-_RECENT_BATCHES], positions[:-_RECENT_BATCHES]
        if is_behind:
            self.write_indexes(submit)

    def finish(self, submit: Submit = run_now) -> None:
        """Complete the indexes: no append follows for a while, or ever."""
        self.time_index.append(*self.max_timestamp)
        self.write_indexes(submit)

    def write_indexes(self, submit: Submit = run_now) -> None:
        """Write the new index entries."""
        for index in (self.offset_index, self.time_index):
            op = index.take_write()
            if op is not None:
                submit(op)

    # ---- read --------------------------------------------------------------------------------------------

    def find(self, offset: int) -> BatchPosition:
        """Position and size of the first batch whose last offset is at or above `offset`; the log file is open then.

        Raises:
            NotResident: a thread must open or read a file.
        """
        file = self.open_file
        if file is None:
            if self.size:
                raise NotResident
            return None
        if offset < self._recent_start:
            return self._files(file).find(offset, read_resident)
        positions = self._recent_positions
        slot, count = bisect_left(self._recent_ends, offset), len(positions)
        if slot == count:
            return None
        position = positions[slot]
        slot += 1
        return position, (positions[slot] if slot < count else self.size) - position

    def files_to_seal(self) -> SegmentFiles | None:
        """The open files for the sealed segment that takes this one's place; None if a lookup there had to open one."""
        if self.open_file is None or not self.offset_index.is_searchable:
            return None
        return self._files(self.open_file)._replace(offset_index=self.offset_index.copy(), is_sealed=True)

    def _files(self, log: File) -> SegmentFiles:
        return SegmentFiles(log, self.size, self.offset_index, self.time_index, self.transactions, is_sealed=False)

    def offset_at_or_after(self, position: int) -> int | None:
        """The offset of the first index entry at or after a position, or None; raises NotResident."""
        return self.offset_index.offset_at_or_after(position, read_resident)

    def adopt(self, files: SegmentFiles) -> None:
        """Take over the files that a thread has opened for an `ActiveView`."""
        if self.is_retired:
            return
        if self.open_file is None:
            self._set_file(files.log)
        if self.offset_index.file is None:
            self.offset_index.file = files.offset_index.file
