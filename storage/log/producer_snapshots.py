"""The producer snapshot files of one partition.

RULES    1. The snapshot at an offset contains the effects of all batches before it. A corrupt snapshot is deleted and
            an earlier one is used, with a longer replay.
         2. There is one at the start of each segment but the first, and one at the end of a closed log. Snapshots of deleted
            segments and above the log end are deleted. Others are left from earlier closes: a few of them stay, more are
            deleted when the log is closed. If the log is opened from its files, they are renamed, and deleted later, because
            deletion can take longer than the rest of the open.
         3. A flush of the log makes its snapshots durable; a lost one is replaced by replaying batches.
         4. After an unclean stop, snapshots above the start of the recovery may be incomplete: they are invalid until
            they are written again.
         5. In an open log files are written and deleted through `submit` (deferred_file_ops.py), at a truncation at once.
         6. An engine may store the snapshots instead, with the batches (`StoredSnapshots`). It writes that of an append, and
            the transactions that this aborts, together with it.
NOT HERE The format (producer_state.py); when to write one (append_pipeline.py, open_log.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from storage.engine import AbortedTransaction, Reservation
from storage.io.deferred_file_ops import Submit, run_now, sequential
from storage.io.disk import DELETED, Disk, File, StorageError
from storage.log.producer_state import CorruptSnapshot, ProducerState, snapshot_name, snapshot_offset
from storage.stored_state import StoresState

_MAX_STRAYS: Final = 8


def snapshot_offsets(names: Iterable[str]) -> list[int]:
    """The offsets of the snapshots among the names in a directory, ascending."""
    return sorted(offset for name in names if (offset := snapshot_offset(name)) is not None)


class ProducerSnapshots:
    """The snapshots in one partition's directory."""

    __slots__ = ("_directory", "_disk", "_invalid", "_unsynced", "offsets", "submit")

    def __init__(self, disk: Disk, directory: str, offsets: list[int]) -> None:
        """`offsets`: of the snapshots in the directory, ascending."""
        self._disk = disk
        self._directory = directory
        self._unsynced: list[str] = []
        self._invalid: tuple[int, ...] = ()
        self.submit: Submit = run_now
        self.offsets = offsets

    def write(self, offset: int, data: bytes, *, sync: bool = False, is_last: bool = False) -> None:
        """Write the snapshot at an offset; `is_last`: of a log that is closed, which needs it."""
        if not self._store(offset, data, sync=sync, is_last=is_last):
            return
        self._invalid = tuple([known for known in self._invalid if known != offset])
        index = bisect_left(self.offsets, offset)
        if self.offsets[index : index + 1] != [offset]:
            self.offsets.insert(index, offset)

    def _store(self, offset: int, data: bytes, *, sync: bool, is_last: bool) -> bool:
        """Returns whether the snapshot is or will be stored."""
        del is_last  # a full disk delays the operation
        path = self._path(offset)

        def op() -> None:
            self._disk.replace_atomically(path, data, sync=sync)
            if not sync:
                self._unsynced.append(path)

        self.submit(op)
        return True

    def has(self, offset: int) -> bool:
        """Whether there is a valid snapshot at an offset."""
        return offset in self.offsets and offset not in self._invalid

    def invalidate(self, offset: int) -> None:
        """Invalidate the snapshots above an offset (rule 4)."""
        self._invalid += tuple([known for known in self.offsets if known > offset])

    def write_with(self, append: Reservation, snapshot: bytes | None, aborted: Sequence[AbortedTransaction]) -> None:
        """A reserved append will have this snapshot at its offset, and abort these transactions (rule 6).

        `write` follows when it is published.
        """

    @property
    def all_synced(self) -> bool:
        """Whether no snapshot is waiting for a sync."""
        return not self._unsynced

    def collect_sync(self, limit: int | None = None) -> list[File]:
        """The snapshot files to sync, or the oldest of them; the caller then syncs the directory."""
        # Opened here: a file may be deleted before the thread syncs it.
        unsynced = self._unsynced[:limit]
        del self._unsynced[: len(unsynced)]
        return [self._disk.open(path, write=True) for path in unsynced if self._disk.exists(path)]

    def restore(self, producers: ProducerState, end_offset: int) -> int | None:
        """Restore `producers` from the newest valid snapshot at or below `end_offset`; its offset, or None."""
        producers.clear()
        for offset in reversed([offset for offset in self.offsets if offset <= end_offset]):
            if offset in self._invalid:
                continue
            try:
                producers.restore(self._read(offset), wall_ms=0)  # expiration runs later
            except CorruptSnapshot:
                self._delete([offset])
            else:
                return offset
        return None

    def _read(self, offset: int) -> bytes:
        return self._disk.read(self._path(offset))

    def delete_after(self, end_offset: int) -> bool:
        """Delete the snapshots above the log end; whether there were any."""
        later = [offset for offset in self.offsets if offset > end_offset]
        self._delete(later, run_now)
        return bool(later)

    def delete_before(self, start_offset: int, submit_first: Submit | None = None) -> None:
        """Delete the snapshots below the first segment; `submit_first` runs before operations that were submitted earlier."""
        self._delete([offset for offset in self.offsets if offset < start_offset], submit_first)

    def delete(self, offsets: Iterable[int]) -> None:
        """Delete the snapshots of segments that were merged into the previous one."""
        self._delete(sorted(set(offsets).intersection(self.offsets)))

    def rename_strays(self, bases: set[int]) -> list[str]:
        """Keep the newest and those at a segment start; rename the others for deletion and return their new paths."""
        strays = self._strays(bases)
        paths = [self._path(offset) for offset in strays]
        for path in paths:
            self._disk.rename(path, path + DELETED)
        self.offsets = [offset for offset in self.offsets if offset not in strays]
        return [path + DELETED for path in paths]

    def delete_strays(self, bases: set[int]) -> None:
        """Delete those of earlier closes at once, if they are more than a few."""
        strays = self._strays(bases)
        if len(strays) > _MAX_STRAYS:
            self._delete(strays, run_now)

    def _strays(self, bases: set[int]) -> list[int]:
        return [offset for offset in self.offsets[:-1] if offset not in bases]

    def _delete(self, offsets: list[int], submit: Submit | None = None) -> None:
        self._remove(offsets, submit or self.submit)
        deleted = set(offsets)
        self.offsets = [offset for offset in self.offsets if offset not in deleted]

    def _remove(self, offsets: list[int], submit: Submit) -> None:
        if offsets:
            submit(sequential([partial(self._disk.unlink, self._path(offset), missing_ok=True) for offset in offsets]))

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{snapshot_name(offset)}"


class StoredSnapshots(ProducerSnapshots):
    """The snapshots of one partition that its engine stores."""

    __slots__ = ("_engine",)

    def __init__(self, disk: Disk, directory: str, engine: StoresState) -> None:
        """`engine` is open."""
        self._engine = engine
        super().__init__(disk, directory, sorted(engine.snapshots()))

    def write(self, offset: int, data: bytes, *, sync: bool = False, is_last: bool = False) -> None:
        """As `ProducerSnapshots.write`."""
        super().write(offset, data, sync=sync, is_last=is_last)
        self.offsets = sorted(self._engine.snapshots())  # the engine deletes those that this one replaces

    def write_with(self, append: Reservation, snapshot: bytes | None, aborted: Sequence[AbortedTransaction]) -> None:
        """As `ProducerSnapshots.write_with`."""
        self._engine.write_with(append, snapshot, aborted)

    def _store(self, offset: int, data: bytes, *, sync: bool, is_last: bool) -> bool:
        del sync  # the sync of the log follows
        try:
            self._engine.store_snapshot(offset, data)
        except StorageError as error:
            if is_last or not error.is_full:
                raise
            return False  # the batches are replayed
        return True

    def _read(self, offset: int) -> bytes:
        return self._engine.snapshots()[offset]

    def _remove(self, offsets: list[int], submit: Submit) -> None:
        del submit
        self._engine.forget_snapshots(offsets)

    def rename_strays(self, bases: set[int]) -> list[str]:
        """Delete them: that takes no time."""
        self._delete(self._strays(bases))
        return []
