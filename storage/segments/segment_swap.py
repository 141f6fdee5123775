"""Replaces segments by their compacted segment.

RULES    1. The new segment is written with the suffix `.cleaned`; all its files are renamed to `.swap`, then the replaced
            files to `.deleted`, then the new ones to their final names. After a crash directory_recovery.py finds either
            the old segments or all files of the new one.
         2. At the end the new names are durable: only then may the first dirty offset be checkpointed. With that offset and the
            old segments, a tombstone would be removed as expired, and the records that it deletes would stay.
         3. The renames run later, possibly in a thread; the new segment is readable before. Names only advance
            in the order of the suffixes, so a lookup in this order finds each file.
NOT HERE Compaction (compaction/cleaner.py), recovery after a crash (directory_recovery.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from errno import ENOENT
from functools import partial
from typing import TypeVar

from storage.io.deferred_file_ops import FileOp, sequential
from storage.io.disk import Disk, File, StorageError
from storage.segments.directory_recovery import CLEANED, INDEXES, LOG, SWAP
from storage.segments.sealed_segment import SealedSegment
from storage.segments.segment import Segment

_SUFFIXES = (LOG, *INDEXES)
_TEMPORARY_SUFFIXES = (CLEANED, SWAP)

T = TypeVar("T")


class _RenameTrackingDisk(Disk):
    """Finds the files of one segment while they are renamed."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self._disk = disk
        self.is_renamed = False
        """Whether all files have their final names."""

    def open(self, path: str, *, write: bool, create: bool = False) -> File:
        return self._find(path, lambda name: self._disk.open(name, write=write, create=create and name == path))

    def exists(self, path: str) -> bool:
        return self._find(path, lambda name: name != path or self._disk.exists(path))

    def read(self, path: str) -> bytes:
        return self._find(path, self._disk.read)

    def modified_ms(self, path: str) -> int:
        return self._find(path, self._disk.modified_ms)

    def rename(self, source: str, target: str) -> None:
        self._disk.rename(source, target)

    def unlink(self, path: str, *, missing_ok: bool = False) -> None:
        self._disk.unlink(path, missing_ok=missing_ok)

    def _find(self, path: str, action: Callable[[str], T]) -> T:
        for suffix in () if self.is_renamed else _TEMPORARY_SUFFIXES:
            current = path + suffix
            if self._disk.exists(current):
                try:
                    return action(current)
                except StorageError:
                    if self._disk.exists(current):  # else it was renamed in between
                        raise
        return action(path)


def swap_segments(
    disk: Disk, old: Sequence[Segment], size: int, interval: int, deleted_paths: list[str]
) -> tuple[SealedSegment, FileOp]:
    """The segment that replaces `old`, and the operation that renames the files; `deleted_paths` as in Segment.mark_deleted."""
    tracking = _RenameTrackingDisk(disk)
    directory, base_offset = old[0].directory, old[0].base_offset

    steps: list[FileOp] = []  # a retry on a full disk resumes at the failed step

    def begin() -> None:
        paths = [f"{directory}/{base_offset:020d}{suffix}" for suffix in _SUFFIXES]
        existing = [path for path in paths if disk.exists(path + CLEANED)]
        if paths[0] not in existing:  # then the old segments stay
            raise StorageError("put a compacted segment in place of", paths[0], OSError(ENOENT, "it does not exist"))
        steps.extend(partial(disk.rename, path + CLEANED, path + SWAP) for path in existing)
        steps.extend(partial(segment.mark_deleted, deleted_paths) for segment in old)
        steps.extend(partial(disk.rename, path + SWAP, path) for path in existing)
        steps.append(partial(disk.sync_dir, directory))

    def op() -> None:
        names()
        tracking.is_renamed = new.is_created = True

    steps.append(begin)
    names = sequential(steps)
    new = SealedSegment(tracking, directory, base_offset, size, interval)
    new.is_created = False
    return new, op
