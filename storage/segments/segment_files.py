"""The files of one segment: where they lie, made, opened, renamed, deleted.

NOT HERE What stands in them (segment.py), their names (directory_recovery.py), when they are closed (storage/io/file_handle_cache.py).
"""

from __future__ import annotations

from storage.io.disk import DELETED, Buffer, Disk, File
from storage.io.file_handle_cache import IDLE, USED
from storage.segments.directory_recovery import INDEXES, LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX


class SegmentFiles:
    """A log and its indexes; the log is opened when it is first used."""

    __slots__ = ("_disk", "_ending", "_file", "_is_copy", "base_offset", "directory", "is_gone", "is_made", "usage")

    def __init__(self, disk: Disk, directory: str, base_offset: int, ending: str) -> None:
        self._disk = disk
        self._ending = ending
        self._file: File | None = None
        self._is_copy = False
        self.directory = directory
        self.base_offset = base_offset
        self.is_gone = False
        """Deleted: a thread that still looks for it finds nothing, and that is all right."""
        self.is_made = True
        """Whether the files are there, under their names."""
        self.usage = IDLE

    def path(self, suffix: str) -> str:
        """Where one of the files lies."""
        return f"{self.directory}/{self.base_offset:020d}{suffix}{self._ending}"

    @property
    def file(self) -> File:
        """The log file, opened when it is not open."""
        file = self._file
        if file is None:
            file = self._disk.open(self.path(LOG), write=True)
            self._keep(file)
        self.usage = USED
        return file

    @property
    def is_open(self) -> bool:
        """Whether the log file is open."""
        return self._file is not None

    def write(self, buffer: Buffer, position: int) -> None:
        """Write to the log (in any thread), unless it is gone."""
        if not self.is_gone:
            file = self.file  # opened now, perhaps, by a name that may be another's from the moment when it is gone
            if not self.is_gone:
                file.pwrite(buffer, position)

    def index_files(self) -> list[File]:
        """The index files, opened to be synced."""
        paths = [self.path(suffix) for suffix in INDEXES]
        return [self._disk.open(path, write=True) for path in paths if self._disk.exists(path)]

    def sync(self) -> None:
        """Make what stands in the files durable, now."""
        for file in (self.file, *self.index_files()):
            file.sync()

    def drop(self) -> None:
        """Let go of everything and write nothing more."""
        self.is_gone = True
        self._close_file()

    def doom(self, doomed: list[str]) -> None:
        """Give the files their names for deletion; `doomed` gets those names, which are still to be unlinked."""
        for suffix in (LOG, *INDEXES):
            path = self.path(suffix)
            if self._disk.exists(path):
                self._disk.rename(path, path + DELETED)
                doomed.append(path + DELETED)

    def unlink(self) -> None:
        """Delete the files at once, the log first: an index without a log is deleted at the next start."""
        self.drop()
        for suffix in (LOG, *INDEXES):
            self._disk.unlink(self.path(suffix), missing_ok=True)

    def _make_files(self) -> None:
        self._disk.unlink(self.path(TRANSACTION_INDEX), missing_ok=True)
        for suffix in (OFFSET_INDEX, TIME_INDEX, LOG):
            file = self._disk.open(self.path(suffix), write=True, create=True)
            if file.size():
                file.truncate(0)
        if not self.is_gone:
            self._keep(file)
        self.is_made = True

    def _keep(self, file: File) -> None:
        self._file = file

    def _close_file(self) -> None:
        self._file = None
