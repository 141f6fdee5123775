"""A segment without appends: it never changes, so threads read it without a copy. And an active segment at one moment.

RULES    1. Base offset, size and the contents of the files are constant. Truncation and replacement put another object into the
            engine's list.
         2. `files` is opened at the first use, by a thread: it builds the value, and the event loop adopts it if none is set
            (segments_view.py). The event loop drops it; threads and responses that use it keep it.
         3. Inconsistent indexes are rebuilt at once: they do not ascend, end beyond the log, or an entry points to a batch
            above the looked-up offset. A rebuild makes a new `files`; its size is smaller if the log has an invalid batch.
NOT HERE The search in the files (segment_files.py).
"""

from __future__ import annotations

from protocol.records import NO_TIMESTAMP
from storage.io.disk import Disk, File, StorageError
from storage.io.disk_lookup import NotResident, read_resident
from storage.io.file_handle_cache import USED
from storage.segments.active_segment import ActiveSegment
from storage.segments.directory_recovery import LOG, TIME_INDEX
from storage.segments.indexes import CorruptIndex, TimeIndex, TransactionIndex
from storage.segments.segment import Segment
from storage.segments.segment_files import BatchPosition, SegmentFiles


class SealedSegment(Segment):
    """A log file that does not change, and its indexes."""

    __slots__ = ("_last_time", "files", "size")

    has_pending_appends = False

    def __init__(self, disk: Disk, directory: str, base_offset: int, size: int, interval: int) -> None:
        """Opens no file."""
        super().__init__(disk, directory, base_offset, interval)
        self.size = size
        self.files: SegmentFiles | None = None
        """The opened files (rule 2)."""
        self._last_time: tuple[int, int] | None = None  # a fact about the files, which any thread may find out

    # ---- files -------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the files are open."""
        return self.files is not None

    @property
    def is_written(self) -> bool:
        """Whether the files have their final names."""
        return self.is_created

    @property
    def file(self) -> File:
        """The log file; opened for the caller if necessary."""
        self.usage = USED
        return self.files.log if self.files is not None else self.open_log()

    def adopt(self, files: SegmentFiles) -> None:
        """Use the files that a thread has opened, if none are open."""
        if self.files is None and not self.is_retired:
            self.files = files
            self.handles.files_opened(self)

    def close_files(self) -> None:
        """Drop the files; a later use opens them again."""
        self.files = None
        super().close_files()

    def open_files(self) -> SegmentFiles:
        """Open the files; any thread."""
        try:
            offset_index, time_index = self.open_indexes(self.size)
        except CorruptIndex as error:
            return self.rebuild(str(error))
        offset_index.open_file()
        return SegmentFiles(self.open_log(), self.size, offset_index, time_index, self.open_transactions())

    def rebuild(self, reason: str) -> SegmentFiles:
        """Rebuild the indexes; any thread."""
        if self.is_retired:  # and possibly appended to
            raise StorageError("rebuild the indexes of", self.path(LOG))
        rebuilt = ActiveSegment(self.disk, self.directory, self.base_offset, self.interval)
        rebuilt.rebuild(reason)
        rebuilt.offset_index.open_file()
        return SegmentFiles(
            rebuilt.file, rebuilt.size, rebuilt.offset_index, rebuilt.time_index, self.open_transactions()
        )

    # ---- read --------------------------------------------------------------------------------------------

    def find(self, offset: int) -> BatchPosition:
        """Position and size of the first batch whose last offset is at or above `offset`; the files are open then.

        Raises:
            NotResident: a thread must open or read a file.
        """
        files = self.files
        if files is None:
            if self.size:
                raise NotResident
            return None
        try:
            return files.find(offset, read_resident)
        except CorruptIndex:
            self.close_files()  # so that the rebuilt ones are adopted
            raise NotResident from None

    def offset_at_or_after(self, position: int) -> int | None:
        """The offset of the first index entry at or after a position, or None; raises NotResident."""
        if self.files is None:
            raise NotResident
        return self.files.offset_index.offset_at_or_after(position, read_resident)

    @property
    def max_timestamp(self) -> tuple[int, int]:
        """The greatest timestamp and the last offset of its batch; (-1, base offset) if there is none. Any thread."""
        files, last = self.files, self._last_time
        if files is not None:
            return files.time_index.last
        if last is None:
            last = TimeIndex.read_last(self.disk, self.path(TIME_INDEX), self.base_offset) if self.size else None
            self._last_time = last = last or self.open_files().time_index.last
        return last

    @property
    def known_max_timestamp(self) -> int:
        """The greatest timestamp; NO_TIMESTAMP if there is none, or a thread must read it."""
        files, last = self.files, self._last_time
        if files is not None:
            last = files.time_index.last
        return NO_TIMESTAMP if last is None else last[0]

    # ---- aborted transactions ----------------------------------------------------------------------------

    @property
    def transactions(self) -> TransactionIndex:
        """The aborted transactions; raises NotResident."""
        if self.files is None:
            raise NotResident
        return self.files.transactions


class ActiveView(SealedSegment):
    """An active segment at one moment, for another thread: later appends do not change it."""

    __slots__ = ("_indexes", "_log", "_segment")

    def __init__(self, segment: ActiveSegment) -> None:
        super().__init__(segment.disk, segment.directory, segment.base_offset, segment.size, segment.interval)
        self._segment = segment
        self._log = segment.file if segment.is_open else None
        self._indexes = segment.offset_index.copy(), segment.time_index.copy(), segment.transactions
        self._last_time = segment.max_timestamp

    def open_files(self) -> SegmentFiles:
        """The files; those that the segment has not open are opened."""
        offset_index, time_index, transactions = self._indexes
        offset_index.open_file()
        log = self._log or self.open_log()
        return SegmentFiles(log, self.size, offset_index, time_index, transactions, is_sealed=False)

    def adopt(self, files: SegmentFiles) -> None:
        """The segment takes over the opened files."""
        self._segment.adopt(files)


LogSegment = ActiveSegment | SealedSegment
