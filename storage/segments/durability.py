"""The flushed end and recovery point of one partition, and the files of its next sync.

RULES    1. A sync covers the logs from the flushed end on, and the indexes of segments finished since the last sync.
            The active segment's indexes are rebuilt after a crash and need no sync.
         2. The recovery point stays at a finished segment until a sync has covered its indexes, which would otherwise not be
            rebuilt after a crash.
         3. Data truncated during a sync does not count when the sync completes.
         4. The directory is synced after files were created or renamed.
         5. A trimmed segment is still synced: a loss of power may bring it back, and a hole in it would truncate the
            log there. A few of them may wait for a sync, since each is open.
         6. There may be thousands of finished segments; a caller may limit a sync to the oldest ones.
         7. A finished segment with pending index writes (storage/io/deferred_file_ops.py) is left to a later sync.
NOT HERE Running a sync (storage/io/flush_task.py); when to run one (replication/partition/flushes.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from storage.engine import SyncWork
from storage.io.deferred_file_ops import FileOp
from storage.io.disk import Disk, File
from storage.segments.log_segments import slot_of
from storage.segments.sealed_segment import LogSegment

UNKNOWN = -1
TRIMMED_FILES: Final = 64
"""Files of trimmed segments that wait for a sync, of one log."""


@dataclass(slots=True)
class _PendingFlush:
    """A sync in progress."""

    end_offset: int
    valid_end: int  # lowered by a truncation
    finished: list[int]


class Durability:
    """The flushed end of one partition, and the segments to sync."""

    __slots__ = ("_disk", "_names_changed", "_pending", "_trimmed_files", "finished", "flushed_end")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.flushed_end = UNKNOWN
        self.finished: dict[int, None] = {}
        """Base offsets of segments whose indexes are complete, written and not synced yet; there may be thousands."""
        self._pending: list[_PendingFlush] = []
        self._names_changed = False
        self._trimmed_files: list[File] = []  # rule 5

    def before_trim(self, segment: LogSegment, end_offset: int, *, keep_open: bool) -> list[FileOp] | None:
        """The operations before the trim of a segment that ends at `end_offset`; `keep_open`: a later sync may use its file.

        None if that sync must come first: it has as many files as it may have.
        """
        operations: list[FileOp] = []
        if segment.size and 0 <= self.flushed_end < end_offset:
            if not keep_open:
                operations.append(segment.file.sync)
            elif len(self._trimmed_files) < TRIMMED_FILES:
                self._trimmed_files.append(segment.file)
            else:
                return None
        self.finished.pop(segment.base_offset, None)
        return operations

    def forget_trimmed(self) -> None:
        """Close the trimmed segments: the log is deleted."""
        self._trimmed_files = []

    def mark_names_changed(self) -> None:
        """Record that files were created or renamed."""
        self._names_changed = True

    def truncate(self, end_offset: int) -> None:
        """Lower the flushed end to `end_offset`."""
        self.flushed_end = min(self.flushed_end, end_offset)
        for flush in self._pending:
            flush.valid_end = min(flush.valid_end, end_offset)

    def recovery_point(self) -> int:
        """The start of a recovery after a crash."""
        syncing = [base_offset for flush in self._pending for base_offset in flush.finished]
        return min([self.flushed_end, *self.finished, *syncing])

    def collect(
        self,
        directory: str,
        end_offset: int,
        segments: Sequence[LogSegment],
        unflushed: Iterable[LogSegment],
        limit: int | None = None,
    ) -> SyncWork:
        """The files to sync so that all before `end_offset` is durable: the finished segments and those in `unflushed`.

        `segments`: all; `limit`: only this number of finished segments.
        """
        finished = list(islice(self._written(segments), limit))
        for segment in finished:
            del self.finished[segment.base_offset]
        bases = [segment.base_offset for segment in finished]
        self._pending.append(_PendingFlush(end_offset, end_offset, bases))
        files, self._trimmed_files = self._trimmed_files, []
        for segment in finished:
            files += segment.index_files()
        with_data = [segment for segment in (*finished, *unflushed) if segment.size]
        files += {segment.base_offset: segment.file for segment in with_data}.values()
        if self._names_changed:
            self._names_changed = False
            files.append(self._disk.open_directory(directory))
        return SyncWork(end_offset, files, next(self._written(segments), None) is None)

    def _written(self, segments: Sequence[LogSegment]) -> Iterator[LogSegment]:
        """The finished segments without pending writes (rule 7)."""
        for base_offset in self.finished:
            segment = segments[slot_of(segments, base_offset)]
            if segment.is_written:
                yield segment

    def mark_flushed(self, end_offset: int) -> None:
        """Record that the sync with this end offset has succeeded, and with it those that started before."""
        for number, flush in enumerate(self._pending):
            if flush.end_offset == end_offset:
                del self._pending[: number + 1]
                self.flushed_end = max(self.flushed_end, flush.valid_end)
                break
