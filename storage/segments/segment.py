"""One segment: a `.log` file of whole batches, named by the offset of its first, and the indexes beside it.

FORMAT   `<20-digit base offset>.log` is batches (protocol/records.py) one behind the other and nothing else; the
         indexes have the same stem.
RULES    1. Bytes before `size` are published and never change; those between `size` and `reserved` are being
            written, and nobody reads them.
         2. A batch gets an index entry when it starts more than `interval` bytes behind the start of the batch that
            the last entry names; the time index gets the greatest timestamp so far at that moment, and once more
            when the segment is finished. So an index built anew is the same as the one written first.
         3. The batches published last are remembered, so a look-up among them reads nothing. Any other look-up reads
            batch headers only: the stretch of one index interval, then header by header.
         4. Files open on first use; `release` forgets them, and who still sends from one keeps it open.
         5. Indexes that turn out not to fit are built anew on the spot: they do not ascend, they end behind the log, or an
            entry names a batch behind the offset that was looked up, so that what holds it would be missed.
         6. Files are made, indexes written out and names changed through a `Later` (storage/io/deferred_file_ops.py); what was not
            made yet is in memory, and nobody reads it from the disk.
         7. Its service is told of files that were opened and closed, and may close them between two
            uses (storage/io/file_handle_cache.py).
         8. What would wait for the disk is looked up by a thread in a copy; the answer is kept for who asks again, and
            the files that the copy has opened are taken over.
NOT HERE Its files (segment_files.py). Which segment to ask, when to roll, what to flush (segment_engine.py); names (directory_recovery.py).
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
from storage.engine import BatchInfo, Buffer, Visit
from storage.io.deferred_file_ops import Later, at_once
from storage.io.disk import Disk, File, StorageError
from storage.io.would_block import WouldBlock
from storage.segments.directory_recovery import LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX
from storage.segments.indexes import (
    NO_TIMESTAMP,
    CorruptIndex,
    CorruptTransactionIndex,
    OffsetIndex,
    TimeIndex,
    TransactionIndex,
)
from storage.segments.lookups import FIRST_READ_BYTES, LONG_READ_BYTES, Lookups, NotAtHand, Opened, Place, search
from storage.segments.segment_files import SegmentFiles
from storage.segments.service import Service

MAX_RELATIVE_OFFSET = 2**31 - 1

_RECOVERY_READ_BYTES = 1 << 20
_LARGEST_BATCH_BYTES = 1 << 27  # above what any request may carry: a length beyond it is garbage
_REMEMBERED_BATCHES = 64
_NOTHING_REMEMBERED = 1 << 63
_NOWHERE = -1
_NO_COPY, _COPY_OF_OPEN = -1, -2


_log = logging.getLogger("barnabas.storage")


class Segment(SegmentFiles):
    """A log file and its indexes."""

    __slots__ = (
        "_copied_size", "_first_timestamp", "_last_time", "_lookups", "_max_timestamp", "_offset_index", "_recent_ends",
        "_recent_positions", "_recent_start", "_time_index", "_transactions", "_unindexed", "created_ms", "end_offset",
        "interval", "is_loaded", "reserved", "service", "size",
    )  # fmt: skip

    def __init__(
        self, disk: Disk, directory: str, base_offset: int, size: int, interval: int, ending: str = ""
    ) -> None:
        """`ending`: of the files' names, while they are not in service."""
        super().__init__(disk, directory, base_offset, ending)
        self.size = size
        self.reserved = size
        self.interval = interval
        self.created_ms = -1
        self._copied_size = _NO_COPY
        self.service: Service | None = None
        """Told of files that are opened and closed; None for a copy."""
        self._lookups: Lookups | None = None
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._transactions: TransactionIndex | None = None
        self._recent_ends = array("q")
        self._recent_positions = array("Q")
        self._recent_start = _NOTHING_REMEMBERED
        self._max_timestamp = NO_TIMESTAMP, base_offset
        self._first_timestamp: int | None = None
        self._last_time: tuple[int, int] | None = None  # of the time index, where that is not open
        self._unindexed = 0
        self.end_offset = -1
        self.is_loaded = False

    def __repr__(self) -> str:
        return f"Segment({self.path(LOG)!r}, {self.size})"

    def _keep(self, file: File) -> None:
        super()._keep(file)
        if self.service is not None:
            self.service.has_opened(self)

    def _close_file(self) -> None:
        super()._close_file()
        if self.service is not None:
            self.service.has_closed(self)

    @property
    def offset_index(self) -> OffsetIndex:
        """From an offset to a position."""
        index = self._offset_index
        return index if index is not None else self._open_indexes()[0]

    @property
    def time_index(self) -> TimeIndex:
        """From a time to an offset."""
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
        """Whether the index of transactions cannot be read."""
        try:
            self.transactions  # noqa: B018
        except CorruptTransactionIndex as error:
            _log.warning("%s The log is checked from there on", error)
            return True
        return False

    # ---- appending ---------------------------------------------------------------------------------------

    def create(self, wall_ms: int, later: Later = at_once) -> None:
        """Begin a new segment; what an earlier one of that name left is cut off when the files are made."""
        self.created_ms = wall_ms
        self._offset_index = OffsetIndex(self._disk, self.path(OFFSET_INDEX), self.base_offset, anew=True)
        self._time_index = TimeIndex(self._disk, self.path(TIME_INDEX), self.base_offset, anew=True)
        self._recent_start = self.end_offset = self.base_offset
        self.is_loaded = True
        self.is_made = False
        later(self._make_files)

    def load(self) -> None:
        """Learn what an append has to know: end offset, greatest timestamp, bytes since the last entry."""
        if not self.is_loaded:
            try:
                self._load()
            except (CorruptIndex, KafkaError) as error:
                self._rebuild(str(error))

    def claim(self, batches: Sequence[BatchInfo], size: int) -> int:
        """Set `size` bytes aside behind what is reserved; return their position."""
        position = self.reserved
        if not position:
            self._first_timestamp = batches[0].max_timestamp
        self.reserved = position + size
        return position

    def publish(self, batches: Sequence[BatchInfo], later: Later = at_once) -> None:
        """Let batches that were written at `size` be read; when this raises, they can be read all the same."""
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
        if len(ends) >= 2 * _REMEMBERED_BATCHES:
            self._recent_start = ends[-_REMEMBERED_BATCHES - 1] + 1
            del ends[:-_REMEMBERED_BATCHES], positions[:-_REMEMBERED_BATCHES]
        if self.offset_index.is_behind:
            self.write_indexes(later)

    def finish(self, later: Later = at_once) -> None:
        """Complete the indexes: nothing is appended for a while, or ever again."""
        self.time_index.append(*self._max_timestamp)
        self.write_indexes(later)

    def write_indexes(self, later: Later = at_once) -> None:
        """Bring the index files up to date."""
        for index in (self._offset_index, self._time_index):
            change = None if index is None else index.collect()
            if change is not None:
                later(change)

    @property
    def is_written(self) -> bool:
        """Whether its files are there and hold all that is known of them in memory."""
        indexes = (self._offset_index, self._time_index, self._transactions)
        return self.is_made and all(index is None or index.is_written for index in indexes)

    def has_full_index(self, max_bytes: int) -> bool:
        """Whether an index has no place left; the time index keeps its last place for the end of the segment."""
        return self.offset_index.is_full(max_bytes) or self.time_index.is_full(max_bytes - TimeIndex.ENTRY.size)

    # ---- reading -----------------------------------------------------------------------------------------

    def find(self, offset: int, *, may_block: bool = True) -> Place:
        """Position and size of the first batch whose last offset is at or above `offset`."""
        if not may_block and self._file is None:
            if not self.size:
                return None
            raise self._elsewhere(offset)
        if offset < self._recent_start:
            return self._find_indexed(offset) if may_block else self._find_at_hand(offset)
        positions = self._recent_positions
        slot = bisect_left(self._recent_ends, offset)
        if slot == len(positions):
            return None
        position = positions[slot]
        slot += 1
        return position, (positions[slot] if slot < len(positions) else self.size) - position

    def _find_at_hand(self, offset: int) -> Place:
        lookups, index = self._lookups, self._offset_index
        if lookups is not None and lookups.has(offset):
            return lookups.answer(offset)
        if index is None or not index.is_at_hand(offset - self.base_offset):
            raise self._elsewhere(offset)
        try:
            return self._search(index.lookup(offset)[1], offset, self.file.pread_if_resident)
        except NotAtHand:
            pass
        except CorruptIndex:
            if not self.is_loaded:
                self._forget()  # so that what the thread builds anew is taken over
        raise self._elsewhere(offset)

    def _find_indexed(self, offset: int) -> Place:
        try:
            return self._search(self.offset_index.lookup(offset)[1], offset, self.file.pread)
        except CorruptIndex as error:
            if self.is_loaded:  # and perhaps appended to
                _log.warning("Searching %s from its start: %s", self.path(LOG), error)
                return self._search(0, offset, self.file.pread)
            self._rebuild(str(error))
            return self.find(offset)

    def header_at(self, position: int) -> BatchHeader:
        """The header of the batch that starts at `position`."""
        return parse_header(self.file.pread(BATCH_OVERHEAD, position))

    def find_timestamp(self, target_ms: int, offset: int) -> int | None:
        """Base offset of the first batch, at or behind `offset`, with a record as late as `target_ms`."""
        start = max(self.time_index.lookup(target_ms)[1], offset)
        for _, header in self._headers(self.offset_index.lookup(start)[1]):
            if header.max_timestamp >= target_ms and header.last_offset >= offset:
                return header.base_offset
        return None

    @property
    def max_timestamp(self) -> tuple[int, int]:
        """Greatest timestamp and last offset of the batch that brought it; (-1, base offset) when there is none."""
        if self.is_loaded:
            return self._max_timestamp
        if self.size and self._time_index is None and self._last_time is None:
            self._last_time = TimeIndex.read_last(self._disk, self.path(TIME_INDEX), self.base_offset)
        return self._last_time if self._time_index is None and self._last_time is not None else self.time_index.last

    @property
    def first_timestamp(self) -> int:
        """Greatest timestamp of the first batch, from which the age of the segment counts; -1 when there is none."""
        timestamp = self._first_timestamp
        if timestamp is None:
            timestamp = self._first_timestamp = self.header_at(0).max_timestamp if self.size else NO_TIMESTAMP
        return timestamp

    def _search(self, position: int, offset: int, read: Callable[[int, int], Buffer | None]) -> Place:
        return search(self.path(LOG), self.base_offset, self.size, position, offset, read)

    def _headers(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """Every whole published batch from `position` on."""
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

    # ---- looking in another thread -----------------------------------------------------------------------

    def be_ready_to_append(self) -> None:
        """Raise WouldBlock where the log file has to be opened first."""
        if self._file is None and self.is_made:
            raise self._elsewhere(_NOWHERE)

    @property
    def is_index_at_hand(self) -> bool:
        """Whether any look-up in the offset index waits for nothing."""
        return self._offset_index is not None and self._offset_index.is_at_hand(0)

    def drop_transactions(self) -> None:
        """Forget the aborted transactions: the batches tell them anew."""
        self._transactions = None
        self._disk.unlink(self.path(TRANSACTION_INDEX), missing_ok=True)

    def have_transactions(self) -> None:
        """Raise WouldBlock where the aborted transactions have to be read first."""
        if self._transactions is None:
            raise self._elsewhere(_NOWHERE)

    def copy(self) -> Segment:
        """What a thread may look things up in, while this one goes on."""
        twin = copy(self)
        twin.detach()
        return twin

    @property
    def has_indexes(self) -> bool:
        """Whether indexes are in memory, so that not all of them may be on the disk."""
        return self._offset_index is not None or self._transactions is not None

    def anew(self) -> Segment:
        """The same of a segment that has no indexes in memory: a copy that opens its own."""
        twin = Segment(self._disk, self.directory, self.base_offset, self.size, self.interval, self._ending)
        twin._is_copy, twin._copied_size = True, self.size
        twin._file, twin._last_time = self._file, self._last_time
        return twin

    def detach(self) -> None:
        """Become a copy: share with the original only what neither changes (rule 8)."""
        self.service, self._is_copy = None, True
        self._copied_size = self.size if self._offset_index is None else _COPY_OF_OPEN
        self._lookups = None
        self._recent_ends, self._recent_positions = self._recent_ends[:], self._recent_positions[:]
        if self._offset_index is not None and self._time_index is not None:
            self._offset_index, self._time_index = self._offset_index.copy(), self._time_index.copy()

    def opened(self) -> Opened:
        """What this copy has open."""
        offsets, times = self._offset_index, self._time_index
        indexes = (offsets, times) if offsets is not None and times is not None else None
        return Opened(self._file, indexes, self._transactions, self._copied_size, self.size, self._last_time)

    def learn(self, opened: Opened) -> None:
        """Take over what a copy has opened, where this segment has not done so itself meanwhile."""
        if self.is_gone:
            return
        file, indexes, transactions, copied_size, size, last_time = opened
        if self._file is None and file is not None:
            self._keep(file)
        self._transactions = self._transactions or transactions
        if size == self.size:
            self._last_time = last_time
        if indexes is None:
            return
        if self._offset_index is not None and self._time_index is not None:
            self._offset_index.learn(indexes[0])
            self._time_index.learn(indexes[1])
        elif copied_size == self.size:
            for index in indexes:
                index.attach()
            self._offset_index, self._time_index = indexes
            self.size = self.reserved = size

    def _elsewhere(self, offset: int) -> WouldBlock[Place]:
        """The look-up of an offset as work for a thread."""
        lookups = self._lookups
        if lookups is None:
            lookups = self._lookups = Lookups()
        blocked = lookups.under_way.get(offset)
        if blocked is None:
            twin = self.copy()
            blocked = WouldBlock(partial(self._look, twin, offset), partial(self._seen, lookups, twin, offset))
            lookups.under_way[offset] = blocked
        return blocked

    def _give_up_lookups(self) -> None:
        lookups, self._lookups = self._lookups, None
        if lookups is not None:
            lookups.give_up()

    def _look(self, twin: Segment, offset: int) -> Place:
        """In a thread."""
        try:
            return twin.open_and_find(offset)
        except StorageError:
            if self.is_gone:
                return None
            raise

    def open_and_find(self, offset: int) -> Place:
        """Open all files; find an offset, if it is one."""
        self.file  # noqa: B018
        self.offset_index  # noqa: B018
        self.transactions  # noqa: B018
        return None if offset == _NOWHERE else self.find(offset)

    def _seen(self, lookups: Lookups, twin: Segment, offset: int, place: Place | KafkaError) -> None:
        if lookups is self._lookups:  # else it was cut meanwhile
            del lookups.under_way[offset]
            self.learn(twin.opened())
            lookups.keep(offset, place)

    # ---- loading and recovering --------------------------------------------------------------------------

    def truncate(self, offset: int) -> None:
        """Cut off the batch that holds `offset` and all behind it, durably; the end is its base offset then, or `offset`."""
        self.load()
        found = self.find(offset)
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
            self._give_up_lookups()
            self._load()
        self.end_offset = end_offset

    def recover(self, visit: Visit | None) -> Iterator[int]:
        """Check every batch, build the indexes anew and cut the log behind the last valid batch.

        Yields the position now and then, so that the work can be done in slices; until it is done the index files
        may be wrong. Begun again, it does the same again. The aborted transactions are left alone.
        """
        self._forget()
        self._offset_index = OffsetIndex(self._disk, self.path(OFFSET_INDEX), self.base_offset, anew=True)
        self._time_index = TimeIndex(self._disk, self.path(TIME_INDEX), self.base_offset, anew=True)
        self.size = self.reserved = position = 0
        self._recent_start = self.end_offset = self.base_offset
        self.is_loaded = True
        file = self.file
        end = file.size()
        while position < end:
            data = file.pread(min(_RECOVERY_READ_BYTES, end - position), position)
            needed = self._accept(data, visit)
            if self.size == position and len(data) < needed <= min(end - position, _LARGEST_BATCH_BYTES):
                self._accept(file.pread(needed, position), visit)
            if self.size == position:
                break
            position = self.size
            yield position
        if position < end:
            _log.warning("Cutting %s from %d to %d bytes: no valid batch follows", self.path(LOG), end, position)
            file.truncate(position)
            file.sync()
        self._time_index.append(*self._max_timestamp)
        self._offset_index.end_comparison()
        self._time_index.end_comparison()

    def _accept(self, data: bytes, visit: Visit | None) -> int:
        """Publish the valid batches at the front of `data`; the size of the next one if it did not fit, else 0."""
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
            self.claim((info,), size)
            self.publish((info,))
            if visit is not None:
                visit(data, at, header)
            at += size
        return 0

    def _follows(self, header: BatchHeader, end_offset: int) -> bool:
        delta = header.last_offset_delta
        return header[0] >= end_offset and delta >= 0 and header[0] + delta - self.base_offset <= MAX_RELATIVE_OFFSET

    def _rebuild(self, reason: str) -> tuple[OffsetIndex, TimeIndex]:
        _log.warning("Reading %s again from its start: %s", self.path(LOG), reason)
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
            return self._rebuild(f"{offsets.path} points behind the end of the log")
        if self._copied_size != _NO_COPY:
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
        self.first_timestamp  # noqa: B018  (so that no append has to read for it)
        self._max_timestamp = max_timestamp
        self._unindexed = self.size - start
        self.end_offset = end_offset
        self.is_loaded = True

    # ---- letting go --------------------------------------------------------------------------------------

    def put_away(self, later: Later, *, forget: bool) -> None:
        """Let go as `release` does, once everything is written: now, or when it is asked again."""
        self.write_indexes(later)
        if self.is_written:
            self.release(forget=forget)

    def release(self, *, forget: bool) -> None:
        """Close descriptors; with `forget` drop also what is remembered, when nobody appends here."""
        for index in (self._offset_index, self._time_index):
            if index is not None:
                index.write_out()
                index.unmap()
        self._close_file()
        if forget:
            self._forget()

    def drop(self) -> None:
        """Let go of everything and write nothing more."""
        super().drop()
        self._forget()

    def _forget(self) -> None:
        for index in (self._offset_index, self._time_index):
            if index is not None:
                index.unmap()
        self._offset_index = self._time_index = self._transactions = None
        self._give_up_lookups()
        self._recent_ends = array("q")
        self._recent_positions = array("Q")
        self._recent_start = _NOTHING_REMEMBERED
        self._max_timestamp = NO_TIMESTAMP, self.base_offset
        self._first_timestamp = self._last_time = None
        self._unindexed = 0
        self.end_offset = -1
        self.is_loaded = False
