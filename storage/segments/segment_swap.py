"""Compacted segments take the places of those that they were made of.

RULES    1. A segment is written under `.cleaned` names, then all its files are called `.swap`, then the files of those
            that it replaces get their names for deletion, then it gets its own. A crash leaves, for directory_recovery.py, either
            the old ones or all that is needed of the new one.
         2. Names are changed once for all, later, in a thread perhaps; the new segment can be read at once, wherever its
            files are just now: they only ever go forward, so who looks for them in this order finds them.
NOT HERE Making such a segment (compaction/cleaner.py), what a crash leaves (directory_recovery.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from errno import ENOENT
from functools import partial
from typing import TypeVar

from storage.io.deferred_file_ops import Change, in_order
from storage.io.disk import Disk, File, StorageError
from storage.segments.directory_recovery import CLEANED, INDEXES, LOG, SWAP
from storage.segments.segment import Segment

_SUFFIXES = (LOG, *INDEXES)
_ON_THE_WAY = (CLEANED, SWAP)

T = TypeVar("T")


class FollowingDisk(Disk):
    """Finds the files of one segment while they change their names."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self._real = disk
        self.has_arrived = False
        """Whether all of them have their own names."""

    def open(self, path: str, *, write: bool, create: bool = False) -> File:
        """Open a file under the name that it has now."""
        found = self._on_the_way(path, lambda now: self._real.open(now, write=write))
        return self._real.open(path, write=write, create=create) if found is None else found

    def exists(self, path: str) -> bool:
        """Whether there is such a file, under any of its names."""
        return self._on_the_way(path, lambda _: True) or self._real.exists(path)

    def read(self, path: str) -> bytes:
        """All of a file."""
        found = self._on_the_way(path, self._real.read)
        return self._real.read(path) if found is None else found

    def modified_ms(self, path: str) -> int:
        """When a file was last written."""
        found = self._on_the_way(path, self._real.modified_ms)
        return self._real.modified_ms(path) if found is None else found

    def rename(self, source: str, target: str) -> None:
        """Give a file that has arrived another name."""
        self._real.rename(source, target)

    def unlink(self, path: str, *, missing_ok: bool = False) -> None:
        """Remove a file that has arrived."""
        self._real.unlink(path, missing_ok=missing_ok)

    def _on_the_way(self, path: str, look: Callable[[str], T]) -> T | None:
        for ending in () if self.has_arrived else _ON_THE_WAY:
            now = path + ending
            if self._real.exists(now):
                try:
                    return look(now)
                except StorageError:
                    if self._real.exists(now):  # else it went on in between
                        raise
        return None


def replaced(disk: Disk, old: Sequence[Segment], size: int, interval: int, doomed: list[str]) -> tuple[Segment, Change]:
    """The segment that takes the places of `old`, and what changes the names; `doomed` is as in Segment.doom."""
    following = FollowingDisk(disk)
    directory, base_offset = old[0].directory, old[0].base_offset

    steps: list[Change] = []  # when there was no room for one, it goes on with that

    def begin() -> None:
        paths = [f"{directory}/{base_offset:020d}{suffix}" for suffix in _SUFFIXES]
        there = [path for path in paths if disk.exists(path + CLEANED)]
        if paths[0] not in there:  # then the old ones had better stay
            raise StorageError("put a compacted segment in place of", paths[0], OSError(ENOENT, "it is gone"))
        steps.extend(partial(disk.rename, path + CLEANED, path + SWAP) for path in there)
        steps.extend(partial(segment.doom, doomed) for segment in old)
        steps.extend(partial(disk.rename, path + SWAP, path) for path in there)

    def change() -> None:
        names()
        following.has_arrived = new.is_made = True

    steps.append(begin)
    names = in_order(steps)
    new = Segment(following, directory, base_offset, size, interval)
    new.is_made = False
    return new, change
