"""A disk that fails on request.

RULES    1. Faults are system errors below `File`, so its loops and messages are tested too.
         2. Everything is real until `fail_writes`, `fail_reads`, `space_left` or `write_limit` is set.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from protocol.primitives import Buffer
from storage.io.disk import Disk, File, StorageError


class FaultyFile(File):
    """A file whose system calls may fail or be short."""

    __slots__ = ()
    _disk: FaultyDisk

    def _write_some(self, buffer: Buffer, position: int) -> int:
        disk = self._disk
        disk.writes.append((self.path, position, len(buffer)))
        if disk.space_left is not None:
            if not disk.space_left:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            buffer = memoryview(buffer)[: disk.space_left]
        if disk.fail_writes and not disk.space_left:
            raise OSError(disk.fail_writes, os.strerror(disk.fail_writes))
        if disk.write_limit:
            buffer = memoryview(buffer)[: disk.write_limit]
        written = super()._write_some(buffer, position)
        if disk.space_left is not None:
            disk.space_left -= written
        return written

    def _write_some_of(self, buffers: Sequence[Buffer], position: int) -> int:
        return self._write_some(b"".join(buffers), position)

    def _read_some(self, length: int, position: int) -> bytes:
        disk = self._disk
        disk.reads.append((self.path, position, length))
        if disk.fail_reads:
            raise OSError(disk.fail_reads, os.strerror(disk.fail_reads))
        if disk.read_limit:
            length = min(length, disk.read_limit)
        return super()._read_some(length, position)

    def sync_once(self) -> None:
        disk = self._disk
        disk.syncs.append(self.path)
        if disk.fail_syncs:
            raise StorageError("sync", self.path, OSError(disk.fail_syncs, os.strerror(disk.fail_syncs)))
        super().sync_once()


class FaultyDisk(Disk):
    """Counts reads, writes and syncs, and fails on request."""

    def __init__(self) -> None:
        super().__init__()
        self.fail_writes = 0
        self.fail_reads = 0
        self.fail_syncs = 0
        self.write_limit = 0
        self.read_limit = 0
        self.space_left: int | None = None
        self.reads: list[tuple[str, int, int]] = []
        self.writes: list[tuple[str, int, int]] = []
        self.syncs: list[str] = []

    def open(self, path: str, *, write: bool, create: bool = False) -> File:
        plain = super().open(path, write=write, create=create)
        descriptor = os.dup(plain.fileno())
        plain.close()
        return FaultyFile(self, path, descriptor)

    def reset_counters(self) -> None:
        self.reads.clear()
        self.writes.clear()
        self.syncs.clear()
