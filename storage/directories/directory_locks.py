"""Lock files: one process per log directory.

FORMAT   `.lock` in each log directory, empty; Apache Kafka locks the same file
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from storage.io.disk import Disk, Lock, StorageError

LOCK: Final = ".lock"


def lock_directories(disk: Disk, directories: Sequence[str]) -> list[Lock]:
    """Lock all existing log directories, or none.

    Raises:
        StorageError: another process holds one of the locks.
    """
    locks: list[Lock] = []
    try:
        for directory in directories:
            locks.append(disk.lock(f"{directory}/{LOCK}"))  # noqa: PERF401  # released below on failure
    except StorageError:
        for lock in locks:
            lock.release()
        raise
    return locks
