"""One segment: a `.log` file of whole batches, named by its base offset, and its indexes (Kafka: LogSegment).

FORMAT   `<20-digit base offset>.log` is a sequence of batches (protocol/records.py); the indexes have the same stem.
RULES    1. Bytes before `size` are published and never change; bytes between `size` and `reserved` are being
            written and are not read.
         2. A batch gets an index entry if it starts more than `interval` bytes after the batch of the last entry; the
            time index gets the greatest timestamp so far at that moment, and once more when the segment is finished. A
            rebuilt index is identical to the original one.
         3. The last published batches are in memory, so a lookup among them reads nothing. Any other lookup reads batch
            headers: one index interval first, then header by header.
         4. Files are opened at their first use; `release` closes them, while responses that send from one keep it open.
         5. Inconsistent indexes are rebuilt at once: they do not ascend, end beyond the log, or an
            entry points to a batch above the looked-up offset.
         6. Files are created and renamed and indexes written through a `Submit` (storage/io/deferred_file_ops.py); until
            then the state in memory is used.
         7. The file handle cache is notified of opened and closed files, and may close them between two
            uses (storage/io/file_handle_cache.py).
         8. A lookup that needs the disk (storage/io/disk_lookup.py) runs on a copy in another thread; its result is cached for
            the retry, and the segment adopts the files that the copy has opened.
NOT HERE Names (directory_recovery.py). Selecting a segment, rolling, flushing (segment_engine.py).
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial

from protocol.errors import KafkaError
from protocol.records import BATCH_OVERHEAD, BatchHeader, crc_is_valid, parse_header
from storage.engine import BatchInfo, Buffer, OnBatch
from storage.io.deferred_file_ops import Submit, run_now
from storage.io.disk import DELETED, Disk, File, StorageError
from storage.io.disk_lookup import DiskLookup
from storage.io.file_handle_cache import IDLE, USED, HandleRegistration
from storage.segments.directory_recovery import INDEXES, LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX
from storage.segments.indexes import (
    NO_TIMESTAMP,
    CorruptIndex,
    CorruptTransactionIndex,
    OffsetIndex,
    TimeIndex,
    TransactionIndex,
)
from storage.segments.lookups import (
    FIRST_READ_BYTES,
    LONG_READ_BYTES,
    BatchPosition,
    NotResident,
    OpenedFiles,
    PendingLookups,
    search,
)

MAX_RELATIVE_OFFSET = 2**31 - 1

_RECOVERY_READ_BYTES = 1 << 20
_LARGEST_BATCH_BYTES = 1 << 27  # larger than any request: a greater length is garbage
_RECENT_BATCHES = 64
_NO_RECENT_BATCHES = 1 << 63
_OPEN_ONLY = -1
_NOT_A_COPY, _COPY_WITH_INDEXES = -1, -2


_log = logging.getLogger("barnabas.storage")


class Segment:
    """A log file and its indexes."""

    __slots__ = (
        "_copied_size", "_disk", "_file", "_first_timestamp", "_is_copy", "_last_time", "_lookups", "_max_timestamp",
        "_name_suffix", "_offset_index", "_recent_ends", "_recent_positions", "_recent_start", "_time_index",
        "_transactions", "_unindexed", "base_offset", "created_ms", "directory", "end_offset", "handles", "interval",
        "is_created", "is_deleted", "is_loaded", "reserved", "size", "usage",
    )  # fmt: skip

    def __init__(
        self, disk: Disk, directory: str, base_offset: int, size: int, interval: int, name_suffix: str = ""
    ) -> None:
        """`name_suffix`: of the files' names while the segment is being written by a compaction."""
        self._disk = disk
        self._name_suffix = name_suffix
        self._file: File | None = None
        self._is_copy = False
        self.directory = directory
        self.base_offset = base_offset
        self.is_deleted = False
        """A thread that still looks for a deleted segment finds nothing; that is not an error."""
        self.is_created = True
        """Whether the files exist under their names."""
        self.usage = IDLE
        self.size = size
        self.reserved = size
        self.interval = interval
        self.created_ms = -1
        self._copied_size = _NOT_A_COPY
        self.handles: HandleRegistration | None = None
        """Notified of opened and closed files; None for a copy."""
        self._lookups: PendingLookups | None = None
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._transactions: TransactionIndex | None = None
        self._recent_ends = array("q")
        self._recent_positions = array("Q")
        self._recent_start = _NO_RECENT_BATCHES
        self._max_timestamp = NO_TIMESTAMP, base_offset
        self._first_timestamp: int | None = None
        self._last_time: tuple[int, int] | None = None  # of a time index that is not open
        self._unindexed = 0
        self.end_offset = -1
        self.is_loaded = False

    def __repr__(self) -> str:
        return f"Segment({self.path(LOG)!r}, {self.size})"

    # ---- files -------------------------------------------------------------------------------------------

    def path(self, suffix: str) -> str:
        """The path of one of the files."""
        return f"{self.directory}/{self.base_offset:020d}{suffix}{self._name_suffix}"

    @property
    def file(self) -> File:
        """The log file; opened if necessary."""
        file = self._file
        if file is None:
            file = self._disk.open(self.path(LOG), write=True)
            self._set_file(file)
        self.usage = USED
        return file

    @property
    def is_open(self) -> bool:
        """Whether the log file is open."""
        return self._file is not None

    def write(self, buffer: Buffer, position: int) -> None:
        """Write to the log in any thread; a no-op for a deleted segment."""
        if not self.is_deleted:
            file = self.file  # may open the path, which another file may have after the deletion
            if not self.is_deleted:
                file.pwrite(buffer, position)

    def index_files(self) -> list[File]:
        """The index files, opened for a sync."""
        paths = [self.path(suffix) for suffix in INDEXES]
        return [self._disk.open(path, write=True) for path in paths if self._disk.exists(path)]

    def sync(self) -> None:
        """Sync the log and its indexes now."""
        for file in (self.file, *self.index_files()):
            file.sync()

    def mark_deleted(self, deleted_paths: list[str]) -> None:
        """Rename the files for deletion; appends the new paths to `deleted_paths`."""
        for suffix in (LOG, *INDEXES):
            path = self.path(suffix)
            if self._disk.exists(path):
                self._disk.rename(path, path + DELETED)
                deleted_paths.append(path + DELETED)

    def unlink(self) -> None:
        """Delete the files at once, the log first: the next start deletes an index without a log."""
        self.drop()
        for suffix in (LOG, *INDEXES):
            self._disk.unlink(self.path(suffix), missing_ok=True)

    def _create_files(self) -> None:
        self._disk.unlink(self.path(TRANSACTION_INDEX), missing_ok=True)
        for suffix in (OFFSET_INDEX, TIME_INDEX, LOG):
            file = self._disk.open(self.path(suffix), write=True, create=True)
            if file.size():
                file.truncate(0)
        if not self.is_deleted:
            self._set_file(file)
        self.is_created = True

    def _set_file(self, file: File) -> None:
        self._file = file
        if self.handles is not None:
            self.handles.files_opened(self)

    def _close_file(self) -> None:
        self._file = None
        if self.handles is not None:
            self.handles.files_closed(self)

    # ---- indexes -----------------------------------------------------------------------------------------

    @property
    def offset_index(self) -> OffsetIndex:
        """Offset to position."""
        index = self._offset_index
        return index if index is not None else self._open_indexes()[0]

    @property
    def time_index(self) -> TimeIndex:
        """Timestamp to offset."""
        index = self._time_index
        return index if index is not None else self._open_indexes()[1]

    @property
    def transactions(self) -> TransactionIndex:
        """The aborted transactions."""
        index = self._transactions
        if index is None:
            path = self.path(TRANSACTION_INDEX)
            index = self._transactions = TransactionIndex(self._disk, path, self.base_offset)
        return index

    def has_damaged_transactions(self) -> bool:
        """Whether the transaction index is corrupt."""
        try:
            self.transactions  # noqa: B018
        except CorruptTransactionIndex as error:
            _log.warning("%s Recovering the log from this segment on", error)
            return True
        return False

    # ---- append ------------------------------------------------------------------------------------------

    def create(self, wall_ms: int, submit: Submit = run_now) -> None:
        """Start a new segment; creating its files truncates existing ones of the same name."""
        self.created_ms = wall_ms
        self._offset_index = OffsetIndex(self._disk, self.path(OFFSET_INDEX), self.base_offset, is_new=True)
        self._time_index = TimeIndex(self._disk, self.path(TIME_INDEX), self.base_offset, is_new=True)
        self._recent_start = self.end_offset = self.base_offset
        self.is_loaded = True
        self.is_created = False
        submit(self._create_files)

    def load(self) -> None:
        """Read the state that an append needs: end offset, greatest timestamp, bytes since the last index entry."""
        if not self.is_loaded:
            try:
                self._load()
            except (CorruptIndex, KafkaError) as error:
                self._rebuild(str(error))

    def reserve(self, batches: Sequence[BatchInfo], size: int) -> int:
        """Reserve `size` bytes after the reserved ones; returns their position."""
        position = self.reserved
        if not position:
            self._first_timestamp = batches[0].max_timestamp
        self.reserved = position + size
        return position

    def publish(self, batches: Sequence[BatchInfo], submit: Submit = run_now) -> None:
        """Make the batches written at `size` readable. They are readable even if this raises."""
        ends, positions = self._recent_ends, self._recent_positions
        at = self.size
        unindexed, interval = self._unindexed, self.interval
        for batch in batches:
            last_offset = batch[3]
            if batch[4] > self._max_timestamp[0]:
                self._max_timestamp = batch[4], last_offset
            if unindexed > interval:
                self.offset_index.append(last_offset, at)
                self.time_index.append(*self._max_timestamp)
                unindexed = 0
            ends.append(last_offset)
            positions.append(at)
            unindexed += batch[1]
            at += batch[1]
        self._unindexed = unindexed
        self.size = at
        self.end_offset = last_offset + 1
        if len(ends) >= 2 * _RECENT_BATCHES:
            self._recent_start = ends[-_RECENT_BATCHES - 1] + 1
            del ends[:-_RECENT_BATCHES], positions[:-_RECENT_BATCHES]
        if self.offset_index.is_behind:
            self.write_indexes(submit)

    def finish(self, submit: Submit = run_now) -> None:
        """Complete the indexes: no append follows for a while, or ever."""
        self.time_index.append(*self._max_timestamp)
        self.write_indexes(submit)

    def write_indexes(self, submit: Submit = run_now) -> None:
        """Write the new index entries."""
        for index in (self._offset_index, self._time_index):
            op = None if index is None else index.take_write()
            if op is not None:
                submit(op)

    @property
    def is_written(self) -> bool:
        """Whether the files exist and have everything that is in memory."""
        indexes = (self._offset_index, self._time_index, self._transactions)
        return self.is_created and all(index is None or index.is_written for index in indexes)

    def has_full_index(self, max_bytes: int) -> bool:
        """Whether an index is full; the time index reserves its last entry for the end of the segment."""
        return self.offset_index.is_full(max_bytes) or self.time_index.is_full(max_bytes - TimeIndex.ENTRY.size)

    # ---- read --------------------------------------------------------------------------------------------

    def find(self, offset: int) -> BatchPosition | DiskLookup:
        """Position and size of the first batch whose last offset is at or above `offset`; the log file is open then."""
        if self._file is None:
            return self._disk_lookup(offset) if self.size else None
        if offset < self._recent_start:
            return self._find_resident(offset)
        positions = self._recent_positions
        slot = bisect_left(self._recent_ends, offset)
        if slot == len(positions):
            return None
        position = positions[slot]
        slot += 1
        return position, (positions[slot] if slot < len(positions) else self.size) - position

    def find_on_disk(self, offset: int) -> BatchPosition:
        """The same, and read the disk if necessary."""
        if offset < self._recent_start:
            return self._find_indexed(offset)
        if self.size:
            self.file  # noqa: B018  (opens it)
        found = self.find(offset)
        assert not isinstance(found, DiskLookup)
        return found

    def _find_resident(self, offset: int) -> BatchPosition | DiskLookup:
        lookups, index = self._lookups, self._offset_index
        if lookups is not None and lookups.has(offset):
            return lookups.result(offset)
        if index is None or not index.is_lookup_resident(offset - self.base_offset):
            return self._disk_lookup(offset)
        try:
            return self._search(index.lookup(offset)[1], offset, self.file.pread_if_resident)
        except NotResident:
            pass
        except CorruptIndex:
            if not self.is_loaded:
                self._reset_state()  # so that the indexes that the thread rebuilds are adopted
        return self._disk_lookup(offset)

    def _find_indexed(self, offset: int) -> BatchPosition:
        try:
            return self._search(self.offset_index.lookup(offset)[1], offset, self.file.pread)
        except CorruptIndex as error:
            if self.is_loaded:  # and possibly appended to
                _log.warning("Searching %s from its start: %s", self.path(LOG), error)
                return self._search(0, offset, self.file.pread)
            self._rebuild(str(error))
            return self.find_on_disk(offset)

    def header_at(self, position: int) -> BatchHeader:
        """The header of the batch at `position`."""
        return parse_header(self.file.pread(BATCH_OVERHEAD, position))

    def find_timestamp(self, target_ms: int, offset: int) -> int | None:
        """The base offset of the first batch from `offset` on whose max timestamp is at least `target_ms`."""
        start = max(self.time_index.lookup(target_ms)[1], offset)
        for _, header in self._headers(self.offset_index.lookup(start)[1]):
            if header.max_timestamp >= target_ms and header.last_offset >= offset:
                return header.base_offset
        return None

    @property
    def max_timestamp(self) -> tuple[int, int]:
        """The greatest timestamp and the last offset of its batch; (-1, base offset) if there is none."""
        if self.is_loaded:
            return self._max_timestamp
        if self.size and self._time_index is None and self._last_time is None:
            self._last_time = TimeIndex.read_last(self._disk, self.path(TIME_INDEX), self.base_offset)
        return self._last_time if self._time_index is None and self._last_time is not None else self.time_index.last

    @property
    def first_timestamp(self) -> int:
        """The max timestamp of the first batch, from which the segment's age counts; -1 if there is none."""
        timestamp = self._first_timestamp
        if timestamp is None:
            timestamp = self._first_timestamp = self.header_at(0).max_timestamp if self.size else NO_TIMESTAMP
        return timestamp

    def _search(self, position: int, offset: int, read: Callable[[int, int], Buffer | None]) -> BatchPosition:
        return search(self.path(LOG), self.base_offset, self.size, position, offset, read)

    def _headers(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """The headers of all published batches from `position` on."""
        size, stride = self.size, FIRST_READ_BYTES
        while position + BATCH_OVERHEAD <= size:
            data = self.file.pread(min(stride, size - position), position)
            if len(data) < BATCH_OVERHEAD:
                return
            at = 0
            while at + BATCH_OVERHEAD <= len(data):
                header = parse_header(data, at)
                if position + at + header.size > size:
                    return
                yield position + at, header
                at += header.size
            stride = BATCH_OVERHEAD if at > 2 * stride else LONG_READ_BYTES
            position += at

    # ---- lookups in another thread -----------------------------------------------------------------------

    def prepare_append(self) -> DiskLookup | None:
        """The lookup that opens the files for an append; None if they are open."""
        return self._disk_lookup(_OPEN_ONLY) if self._file is None and self.is_created else None

    @property
    def is_index_resident(self) -> bool:
        """Whether no lookup in the offset index waits for the disk."""
        return self._offset_index is not None and self._offset_index.is_lookup_resident(0)

    def drop_transactions(self) -> None:
        """Delete the transaction index; the batches rebuild it."""
        self._transactions = None
        self._disk.unlink(self.path(TRANSACTION_INDEX), missing_ok=True)

    def load_transactions(self) -> DiskLookup | None:
        """The lookup that reads the aborted transactions; None if they are in memory."""
        return self._disk_lookup(_OPEN_ONLY) if self._transactions is None else None

    def copy(self) -> Segment:
        """A copy for lookups in another thread while this segment changes."""
        copied = copy(self)
        copied.detach()
        return copied

    @property
    def has_indexes(self) -> bool:
        """Whether indexes are in memory, so that the disk may lack entries."""
        return self._offset_index is not None or self._transactions is not None

    def reopened_copy(self) -> Segment:
        """A copy of a segment without indexes in memory; it opens its own files."""
        copied = Segment(self._disk, self.directory, self.base_offset, self.size, self.interval, self._name_suffix)
        copied._is_copy, copied._copied_size = True, self.size
        copied._file, copied._last_time = self._file, self._last_time
        return copied

    def detach(self) -> None:
        """Become a copy: share only immutable state with the original (rule 8)."""
        self.handles, self._is_copy = None, True
        self._copied_size = self.size if self._offset_index is None else _COPY_WITH_INDEXES
        self._lookups = None
        self._recent_ends, self._recent_positions = self._recent_ends[:], self._recent_positions[:]
        if self._offset_index is not None and self._time_index is not None:
            self._offset_index, self._time_index = self._offset_index.copy(), self._time_index.copy()

    def opened(self) -> OpenedFiles:
        """The files that this copy has opened."""
        offsets, times = self._offset_index, self._time_index
        indexes = (offsets, times) if offsets is not None and times is not None else None
        return OpenedFiles(self._file, indexes, self._transactions, self._copied_size, self.size, self._last_time)

    def adopt_files(self, opened: OpenedFiles) -> None:
        """Take over the files that a copy has opened, except those that this segment has opened itself."""
        if self.is_deleted:
            return
        file, indexes, transactions, copied_size, size, last_time = opened
        if self._file is None and file is not None:
            self._set_file(file)
        self._transactions = self._transactions or transactions
        if size == self.size:
            self._last_time = last_time
        if indexes is None:
            return
        if self._offset_index is not None and self._time_index is not None:
            self._offset_index.adopt_files(indexes[0])
            self._time_index.adopt_files(indexes[1])
        elif copied_size == self.size:
            for index in indexes:
                index.attach()
            self._offset_index, self._time_index = indexes
            self.size = self.reserved = size

    def _disk_lookup(self, offset: int) -> DiskLookup:
        """The lookup of an offset as work for a thread."""
        lookups = self._lookups
        if lookups is None:
            lookups = self._lookups = PendingLookups()
        pending = lookups.pending.get(offset)
        if pending is None:
            copied = self.copy()
            pending = lookups.pending[offset] = DiskLookup(
                partial(self._run_lookup, copied, offset), partial(self._on_lookup_done, lookups, copied, offset)
            )
        return pending

    def _cancel_lookups(self) -> None:
        lookups, self._lookups = self._lookups, None
        if lookups is not None:
            lookups.pending.clear()  # these would keep the results and their open files alive

    def _run_lookup(self, copied: Segment, offset: int) -> BatchPosition:
        """Runs in the other thread."""
        try:
            return copied.open_and_find(offset)
        except StorageError:
            if self.is_deleted:
                return None
            raise

    def open_and_find(self, offset: int) -> BatchPosition:
        """Open all files; find the offset unless it is _OPEN_ONLY."""
        self.file  # noqa: B018
        self.offset_index  # noqa: B018
        self.transactions  # noqa: B018
        return None if offset == _OPEN_ONLY else self.find_on_disk(offset)

    def _on_lookup_done(
        self, lookups: PendingLookups, copied: Segment, offset: int, position: BatchPosition | KafkaError
    ) -> None:
        if lookups is self._lookups:  # else the segment was truncated
            del lookups.pending[offset]
            self.adopt_files(copied.opened())
            lookups.store(offset, position)

    # ---- load and recovery -------------------------------------------------------------------------------

    def truncate(self, offset: int) -> None:
        """Truncate at the batch that contains `offset`, durably; the end is its base offset then, or `offset`."""
        self.load()
        found = self.find_on_disk(offset)
        end_offset = offset
        if found is not None:
            end_offset = min(offset, self.header_at(found[0]).base_offset)
            self.offset_index.truncate(offset)
            self.time_index.truncate(offset)
            self.transactions.truncate(offset)
            self.file.truncate(found[0])
            self.file.sync()
            self.size = self.reserved = found[0]
            self._first_timestamp = None
            self._cancel_lookups()
            self._load()
        self.end_offset = end_offset

    def recover(self, on_batch: OnBatch | None) -> Iterator[int]:
        """Check every batch, rebuild the indexes and truncate the log after the last valid batch.

        Yields the position regularly, so that the work can be sliced; the index files may be wrong until it ends. A repetition
        gives the same result. The aborted transactions are not changed.
        """
        self._reset_state()
        self._offset_index = OffsetIndex(self._disk, self.path(OFFSET_INDEX), self.base_offset, is_new=True)
        self._time_index = TimeIndex(self._disk, self.path(TIME_INDEX), self.base_offset, is_new=True)
        self.size = self.reserved = position = 0
        self._recent_start = self.end_offset = self.base_offset
        self.is_loaded = True
        file = self.file
        end = file.size()
        while position < end:
            data = file.pread(min(_RECOVERY_READ_BYTES, end - position), position)
            needed = self._accept(data, on_batch)
            if self.size == position and len(data) < needed <= min(end - position, _LARGEST_BATCH_BYTES):
                self._accept(file.pread(needed, position), on_batch)
            if self.size == position:
                break
            position = self.size
            yield position
        if position < end:
            _log.warning("Truncating %s from %d to %d bytes: no valid batch follows", self.path(LOG), end, position)
            file.truncate(position)
            file.sync()
        self._time_index.append(*self._max_timestamp)
        self._offset_index.end_comparison()
        self._time_index.end_comparison()

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
            info = BatchInfo(at, size, header[0], header.last_offset, header.max_timestamp, header.leader_epoch)
            self.reserve((info,), size)
            self.publish((info,))
            if on_batch is not None:
                on_batch(data, at, header)
            at += size
        return 0

    def _follows(self, header: BatchHeader, end_offset: int) -> bool:
        delta = header.last_offset_delta
        return header[0] >= end_offset and delta >= 0 and header[0] + delta - self.base_offset <= MAX_RELATIVE_OFFSET

    def _rebuild(self, reason: str) -> tuple[OffsetIndex, TimeIndex]:
        _log.warning("Rebuilding the indexes of %s: %s", self.path(LOG), reason)
        for _ in self.recover(None):
            pass
        self.sync()
        assert self._offset_index is not None
        assert self._time_index is not None
        return self._offset_index, self._time_index

    def _open_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        try:
            offsets = OffsetIndex(self._disk, self.path(OFFSET_INDEX), self.base_offset)
            times = TimeIndex(self._disk, self.path(TIME_INDEX), self.base_offset)
        except CorruptIndex as error:
            return self._rebuild(str(error))
        if offsets.entries and offsets.last[1] >= max(self.size, self.reserved):
            return self._rebuild(f"{offsets.path} points beyond the end of the log")
        if self._copied_size != _NOT_A_COPY:
            offsets.detach()
            times.detach()
        self._offset_index, self._time_index = offsets, times
        return offsets, times

    def _load(self) -> None:
        start, end_offset = self.offset_index.last[1], self.base_offset
        max_timestamp = self.time_index.last
        ends, positions = array("q"), array("Q")
        self._recent_start = self.base_offset
        position = start
        for at, header in self._headers(start):
            if at == start > 0:
                self._recent_start = header.base_offset
            if not self._follows(header, end_offset):
                raise CorruptIndex(f"{self.path(LOG)} is damaged at position {at}")
            end_offset, position = header.next_offset, at + header.size
            ends.append(end_offset - 1)
            positions.append(at)
            if header.max_timestamp > max_timestamp[0]:
                max_timestamp = header.max_timestamp, end_offset - 1
        if position != self.size:
            raise CorruptIndex(f"{self.path(LOG)} does not end with a whole batch")
        self._recent_ends, self._recent_positions = ends, positions
        self.first_timestamp  # noqa: B018  (read now, so that no append has to)
        self._max_timestamp = max_timestamp
        self._unindexed = self.size - start
        self.end_offset = end_offset
        self.is_loaded = True

    # ---- close -------------------------------------------------------------------------------------------

    def close_if_written(self, submit: Submit, *, forget: bool) -> None:
        """Write the indexes, and close the files as `release` if nothing is pending."""
        self.write_indexes(submit)
        if self.is_written:
            self.release(forget=forget)

    def release(self, *, forget: bool) -> None:
        """Close the files; `forget` also drops the state in memory of a segment without appends."""
        for index in (self._offset_index, self._time_index):
            if index is not None:
                index.write_out()
                index.unmap()
        self._close_file()
        if forget:
            self._reset_state()

    def drop(self) -> None:
        """Drop all state and write nothing more."""
        self.is_deleted = True
        self._close_file()
        self._reset_state()

    def _reset_state(self) -> None:
        for index in (self._offset_index, self._time_index):
            if index is not None:
                index.unmap()
        self._offset_index = self._time_index = self._transactions = None
        self._cancel_lookups()
        self._recent_ends = array("q")
        self._recent_positions = array("Q")
        self._recent_start = _NO_RECENT_BATCHES
        self._max_timestamp = NO_TIMESTAMP, self.base_offset
        self._first_timestamp = self._last_time = None
        self._unindexed = 0
        self.end_offset = -1
        self.is_loaded = False
