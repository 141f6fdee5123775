"""The producer snapshots of one partition on disk: which there are, the newest that can be believed, which may go.

RULES    1. A snapshot of an offset holds what all batches before that offset have left behind; one that cannot be
            believed is deleted, and an earlier one with a longer replay takes its place.
         2. There is one where each segment but the first begins, and one at the end of a log that was closed. Those of
            segments that are gone, and those behind the end, are deleted. What an earlier end has left gets a name for
            deletion when the log is opened: deleting it may take longer than all the rest.
         3. A snapshot becomes durable with one of the log's next flushes; what is lost before is found by replaying batches.
         4. After an unclean stop those behind the recovery's beginning are doubted: they may not be written to their ends.
            Nobody reads them, until they are taken anew.
         5. While a log is in use, files are written and deleted through `later` (deferred_file_ops.py); when it is cut they go at once.
NOT HERE Its bytes (producer_state.py); when to take one (log.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from functools import partial

from storage.io.deferred_file_ops import Later, at_once
from storage.io.disk import DELETED, Disk, File
from storage.log.producer_state import CorruptSnapshot, ProducerState, snapshot_name, snapshot_offset


class Snapshots:
    """The snapshot files in one partition's directory."""

    __slots__ = ("_directory", "_disk", "_doubted", "_unsynced", "later", "offsets")

    def __init__(self, disk: Disk, directory: str, names: Iterable[str]) -> None:
        """`names`: what lies in the directory."""
        self._disk = disk
        self._directory = directory
        self._unsynced: list[str] = []
        self._doubted: set[int] = set()
        self.later: Later = at_once
        self.offsets: list[int] = sorted(offset for name in names if (offset := snapshot_offset(name)) is not None)

    def take(self, offset: int, data: bytes, *, sync: bool = False) -> None:
        """Write the snapshot of an offset."""
        path = self._path(offset)

        def change() -> None:
            self._disk.replace_atomically(path, data, sync=sync)
            if not sync:
                self._unsynced.append(path)

        self.later(change)
        self._doubted.discard(offset)
        place = bisect_left(self.offsets, offset)
        if self.offsets[place : place + 1] != [offset]:
            self.offsets.insert(place, offset)

    def has(self, offset: int) -> bool:
        """Whether there is one of an offset that is not doubted."""
        return offset in self.offsets and offset not in self._doubted

    def doubt(self, offset: int) -> None:
        """Believe none behind an offset (rule 4)."""
        self._doubted.update(known for known in self.offsets if known > offset)

    @property
    def are_synced(self) -> bool:
        """Whether there is none to be synced."""
        return not self._unsynced

    def collect_sync(self, most: int | None = None) -> list[File]:
        """What has to be synced, and then the directory, so that they are durable, or the oldest of them."""
        # Opened here: one may be deleted before the thread comes to it.
        unsynced = self._unsynced[:most]
        del self._unsynced[: len(unsynced)]
        return [self._disk.open(path, write=True) for path in unsynced if self._disk.exists(path)]

    def restore(self, producers: ProducerState, end_offset: int) -> int | None:
        """Make `producers` know what the newest snapshot at or before `end_offset` holds; its offset, or None."""
        producers.clear()
        for offset in reversed([offset for offset in self.offsets if offset <= end_offset]):
            if offset in self._doubted:
                continue
            try:
                producers.restore(self._disk.read(self._path(offset)), wall_ms=0)  # time, so expiry, comes later
            except CorruptSnapshot:
                self._delete([offset])
            else:
                return offset
        return None

    def truncate(self, end_offset: int) -> bool:
        """Delete those behind the log's end; whether there are any."""
        behind = [offset for offset in self.offsets if offset > end_offset]
        self._delete(behind, at_once)
        return bool(behind)

    def trim(self, start_offset: int, ahead: Later | None = None) -> None:
        """Delete those before the first segment; `ahead`: before changes that were handed in earlier."""
        self._delete([offset for offset in self.offsets if offset < start_offset], ahead)

    def drop(self, offsets: Iterable[int]) -> None:
        """Delete those of segments that were made one with the one before."""
        self._delete([offset for offset in offsets if offset in self.offsets])

    def clear(self) -> None:
        """Delete all."""
        self._delete(self.offsets.copy(), at_once)

    def set_strays_aside(self, bases: set[int]) -> list[str]:
        """Keep those where a segment begins and the newest; the others get names for deletion, which are told."""
        strays = [offset for offset in self.offsets[:-1] if offset not in bases]
        paths = [self._path(offset) for offset in strays]
        for path in paths:
            self._disk.rename(path, path + DELETED)
        self.offsets = [offset for offset in self.offsets if offset not in strays]
        return [path + DELETED for path in paths]

    def _delete(self, offsets: list[int], later: Later | None = None) -> None:
        for offset in offsets:
            (later or self.later)(partial(self._disk.unlink, self._path(offset), missing_ok=True))
        gone = set(offsets)
        self.offsets = [offset for offset in self.offsets if offset not in gone]

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{snapshot_name(offset)}"
