"""Locks on files against other processes, as Java's FileChannel.tryLock takes them."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass

_locked: set[tuple[int, int]] = set()
"""Device and inode of the files that this process has locked."""


@dataclass(slots=True, eq=False)
class FileLock:
    """A lock on a file, until it is released or the process ends."""

    path: str
    _descriptor: int
    _device_and_inode: tuple[int, int]

    def release(self) -> None:
        """Release the lock; harmless when repeated."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            _locked.discard(self._device_and_inode)
            os.close(descriptor)


def lock_file(path: str) -> FileLock:
    """Lock a file, which is created if it is missing.

    Raises:
        OSError: it cannot be opened; or another process or this one holds the lock.
    """
    # A process can take a POSIX lock twice, and closing any descriptor of the file releases it.
    if os.path.exists(path) and _device_and_inode(os.stat(path)) in _locked:
        raise OSError(0, "this process holds it already")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise OSError(error.errno, "another process holds it") from error
    device_and_inode = _device_and_inode(os.fstat(descriptor))
    _locked.add(device_and_inode)
    return FileLock(path, descriptor, device_and_inode)


def _device_and_inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
