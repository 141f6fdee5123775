"""The lock files of log directories: no two processes use the same one.

FORMAT   `.lock` in each directory, empty; Apache Kafka takes the same
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from storage.io.disk import Disk, Lock, StorageError

LOCK: Final = ".lock"


def lock_directories(disk: Disk, directories: Sequence[str]) -> list[Lock]:
    """Take the lock file of every log directory, all or none; they exist.

    Raises:
        StorageError: another process has one of them.
    """
    locks: list[Lock] = []
    try:
        for directory in directories:
            locks.append(disk.lock(f"{directory}/{LOCK}"))  # noqa: PERF401  # those taken are let go of below
    except StorageError:
        for lock in locks:
            lock.release()
        raise
    return locks
