"""What all segments have in common: the names of their files, and their place in the file handle cache (Kafka: LogSegment).

RULES    1. A segment is in its engine's list until it is retired: its files are deleted, or another object takes its place.
            A thread that still reads a retired segment finds nothing; that is not an error.
         2. The file handle cache is notified of opened and closed files, and may close them between two uses
            (storage/io/file_handle_cache.py). Responses that send from a file keep it open.
NOT HERE Segments with appends (active_segment.py), segments without (sealed_segment.py).
"""

from __future__ import annotations

import logging
from typing import Final

from storage.io.disk import DELETED, Disk, File
from storage.io.file_handle_cache import IDLE, HandleRegistration
from storage.segments.directory_recovery import INDEXES, LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX
from storage.segments.indexes import CorruptIndex, CorruptTransactionIndex, OffsetIndex, TimeIndex, TransactionIndex

MAX_RELATIVE_OFFSET: Final = 2**31 - 1

_log = logging.getLogger("barnabas.storage")

_UNREGISTERED: Final = HandleRegistration(None)


class Segment:
    """The files of a segment by name."""

    __slots__ = (
        "_name_suffix", "base_offset", "directory", "disk", "handles", "interval", "is_created", "is_retired", "usage",
    )  # fmt: skip

    def __init__(self, disk: Disk, directory: str, base_offset: int, interval: int, name_suffix: str = "") -> None:
        """`interval`: bytes between index entries; `name_suffix`: of the files' names while a compaction writes them."""
        self.disk = disk
        self._name_suffix = name_suffix
        self.directory = directory
        self.base_offset = base_offset
        self.interval = interval
        self.handles = _UNREGISTERED
        self.usage = IDLE
        self.is_created = True
        """Whether the files exist under their names."""
        self.is_retired = False
        """Whether it is not in the engine's list any more (rule 1)."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path(LOG)!r})"

    def path(self, suffix: str) -> str:
        """The path of one of the files."""
        return f"{self.directory}/{self.base_offset:020d}{suffix}{self._name_suffix}"

    def open_log(self) -> File:
        """Open the log file; any thread."""
        return self.disk.open(self.path(LOG), write=True)

    def open_indexes(self, size: int) -> tuple[OffsetIndex, TimeIndex]:
        """Open the indexes of a log of `size` bytes; any thread.

        Raises:
            CorruptIndex: they do not ascend, or end beyond the log.
        """
        offsets = OffsetIndex(self.disk, self.path(OFFSET_INDEX), self.base_offset)
        times = TimeIndex(self.disk, self.path(TIME_INDEX), self.base_offset)
        _, last_position = offsets.last
        if offsets.entries and last_position >= size:
            raise CorruptIndex(f"{offsets.path} points beyond the end of the log")
        return offsets, times

    def open_transactions(self) -> TransactionIndex:
        """Read the aborted transactions; any thread. Raises CorruptTransactionIndex."""
        return TransactionIndex(self.disk, self.path(TRANSACTION_INDEX), self.base_offset)

    def has_damaged_transactions(self) -> bool:
        """Whether the transaction index is corrupt."""
        try:
            self.open_transactions()
        except CorruptTransactionIndex as error:
            _log.warning("%s Recovering the log from this segment on", error)
            return True
        return False

    def delete_transactions(self) -> None:
        """Delete the transaction index; the batches rebuild it."""
        self.disk.unlink(self.path(TRANSACTION_INDEX), missing_ok=True)

    def modified_ms(self) -> int:
        """The time of the log file's last modification."""
        return self.disk.modified_ms(self.path(LOG))

    def close_files(self) -> None:
        """Close the files; a later use opens them again."""
        self.handles.files_closed(self)

    def retire(self) -> None:
        """Close the files: the segment is not in use any more."""
        self.is_retired = True
        self.close_files()

    def index_files(self) -> list[File]:
        """The index files, opened for a sync."""
        paths = [self.path(suffix) for suffix in INDEXES]
        return [self.disk.open(path, write=True) for path in paths if self.disk.exists(path)]

    def mark_deleted(self, deleted_paths: list[str]) -> None:
        """Rename the files for deletion; appends the new paths to `deleted_paths`."""
        for suffix in (LOG, *INDEXES):
            path = self.path(suffix)
            if self.disk.exists(path):
                self.disk.rename(path, path + DELETED)
                deleted_paths.append(path + DELETED)

    def unlink(self) -> None:
        """Delete the files at once, the log first: the next start deletes an index without a log."""
        for suffix in (LOG, *INDEXES):
            self.disk.unlink(self.path(suffix), missing_ok=True)
