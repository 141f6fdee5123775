"""The files of one segment: create, open, rename, delete.

NOT HERE Contents (segment.py), names (directory_recovery.py), closing unused files (storage/io/file_handle_cache.py).
"""

from __future__ import annotations

from storage.io.disk import DELETED, Buffer, Disk, File
from storage.io.file_handle_cache import IDLE, USED
from storage.segments.directory_recovery import INDEXES, LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX


def preallocate(disk: Disk, path: str, size: int) -> None:
    """Allocate disk space for a new segment; the file size does not change, so unwritten bytes are never read."""
    if disk.exists(path):  # else it is deleted
        disk.open(path, write=True).allocate(size)


def release_preallocated(disk: Disk, path: str, size: int) -> None:
    """Release the disk space after a finished segment's bytes."""
    if disk.exists(path):
        disk.open(path, write=True).truncate(size)


class SegmentFiles:
    """A log and its indexes; the log is opened at its first use."""

    __slots__ = (
        "_disk", "_file", "_is_copy", "_name_suffix", "base_offset", "directory", "is_created", "is_deleted",
        "usage",
    )  # fmt: skip

    def __init__(self, disk: Disk, directory: str, base_offset: int, name_suffix: str) -> None:
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

    def drop(self) -> None:
        """Close everything and write nothing more."""
        self.is_deleted = True
        self._close_file()

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

    def _close_file(self) -> None:
        self._file = None
