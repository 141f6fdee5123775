"""A disk that fails on request: the fault seam of `storage.disk`, used by tests.

RULES    1. Faults are system errors below `File`, so that its loops and its sentences are tested too.
         2. Everything is real until `fail_writes` or `fail_reads` is set or `write_limit` bounds one system call.
"""

from __future__ import annotations

import errno
import os

from storage.io.disk import Buffer, Disk, File, StorageError


class FaultyFile(File):
    """A file whose two system calls may fail, or do less than they are asked."""

    __slots__ = ()
    _disk: FaultyDisk

    def _write_some(self, buffer: Buffer, position: int) -> int:
        disk = self._disk
        disk.writes.append((self.path, position, len(buffer)))
        if disk.room is not None:
            if not disk.room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            buffer = memoryview(buffer)[: disk.room]
        if disk.fail_writes and not disk.room:
            raise OSError(disk.fail_writes, os.strerror(disk.fail_writes))
        if disk.write_limit:
            buffer = memoryview(buffer)[: disk.write_limit]
        written = super()._write_some(buffer, position)
        if disk.room is not None:
            disk.room -= written
        return written

    def _read_some(self, length: int, position: int) -> bytes:
        disk = self._disk
        disk.reads.append((self.path, position, length))
        if disk.fail_reads:
            raise OSError(disk.fail_reads, os.strerror(disk.fail_reads))
        if disk.read_limit:
            length = min(length, disk.read_limit)
        return super()._read_some(length, position)

    def sync(self) -> None:
        """Note the sync, then do it or fail."""
        disk = self._disk
        disk.syncs.append(self.path)
        if disk.fail_syncs:
            raise StorageError("sync", self.path, OSError(disk.fail_syncs, os.strerror(disk.fail_syncs)))
        super().sync()


class FaultyDisk(Disk):
    """Counts what is read, written and synced, and fails as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.fail_writes = 0
        self.fail_reads = 0
        self.fail_syncs = 0
        self.write_limit = 0
        self.read_limit = 0
        self.room: int | None = None
        self.reads: list[tuple[str, int, int]] = []
        self.writes: list[tuple[str, int, int]] = []
        self.syncs: list[str] = []

    def open(self, path: str, *, write: bool, create: bool = False) -> File:
        """Open a file that obeys this disk's faults."""
        plain = super().open(path, write=write, create=create)
        descriptor = os.dup(plain.fileno())
        plain.close()
        return FaultyFile(self, path, descriptor)

    def forget_history(self) -> None:
        """Start counting anew."""
        self.reads.clear()
        self.writes.clear()
        self.syncs.clear()
