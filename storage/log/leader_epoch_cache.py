"""The leader epochs of a log with their start offsets (Kafka: LeaderEpochFileCache).

RULES    1. Epochs and start offsets both ascend. A new entry removes the entries that contradict it.
         2. An entry covers the batches from its start offset up to the next entry's.
         3. The file may be older than the cache, but not older than the range that recovery scans: it is written before
            the recovery point advances, at a truncation and at a close. It is replaced only by durable data: after a loss of
            power a renamed file could be empty, and the batches would not be scanned.
         4. Two threads may write it: a flush, and the release of an idle log. The later snapshot wins; if both ran at the
            same time, the file is written again.
         5. An unreadable file is rebuilt from the batches (recovery.py).
NOT HERE OffsetForLeaderEpoch requests and fencing (replication/partition/partition.py).
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from storage.io.checkpoint_file import CorruptCheckpoint, epochs_text, read_epochs, write_epochs
from storage.io.disk import Disk

UNDEFINED: Final = -1

_log = logging.getLogger("barnabas.storage")


class LeaderEpochCache:
    """The leader epochs of one partition and their checkpoint file."""

    __slots__ = (
        "_disk", "_epochs", "_has_temporary", "_offsets", "_writes_started", "is_unreadable", "is_up_to_date",
        "latest", "path",
    )  # fmt: skip

    def __init__(self, disk: Disk | None, path: str, known: tuple[Sequence[int], Sequence[int]] | None = None) -> None:
        """`known`: the epochs and start offsets in the file, which are valid; None reads them.

        `disk`: None if the engine stores the epochs (`StoresState`): there is no file.
        """
        self._disk = disk
        self.path = path
        self._epochs: tuple[int, ...] = ()
        self._offsets: tuple[int, ...] = ()
        self._writes_started = 0  # number of writes
        self._has_temporary = False  # the temporary file is written, but not renamed
        self.latest = UNDEFINED
        """The last epoch; -1 if there is none."""
        self.is_unreadable = False
        """Whether the file is corrupt, so that the batches have to be scanned."""
        self.is_up_to_date = True
        """Whether the file has all epochs, or will have them after what was taken to be written."""
        if known is None:
            self._read()
        else:
            epochs, offsets = known
            self._epochs, self._offsets = tuple(epochs), tuple(offsets)
            self.latest = self._epochs[-1] if self._epochs else UNDEFINED

    def _read(self) -> None:
        assert self._disk is not None, "epochs without a file are known"
        try:
            entries = read_epochs(self._disk, self.path)
        except CorruptCheckpoint as error:
            _log.warning("%s Rebuilding the leader epochs from the batches", error)
            entries, self.is_unreadable = [], True
        for epoch, offset in entries:
            self.assign(epoch, offset)
        self.is_up_to_date = self.entries() == entries and not self.is_unreadable

    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset), ascending."""
        return list(zip(self._epochs, self._offsets, strict=True))

    def assign(self, epoch: int, start_offset: int) -> None:
        """Start an epoch at an offset; a no-op if it started there or before."""
        epochs, offsets = self._epochs, self._offsets
        if epoch < 0 or (epoch == self.latest and start_offset >= offsets[-1]):
            return
        keep = min(bisect_left(epochs, epoch), bisect_left(offsets, start_offset))
        self._epochs, self._offsets = (*epochs[:keep], epoch), (*offsets[:keep], start_offset)
        self.latest = epoch
        self.is_up_to_date = self._disk is None

    def replace(self, entries: list[tuple[int, int]]) -> None:
        """Replace all entries by those of another cache."""
        if entries != self.entries():
            self._set_entries(tuple([epoch for epoch, _ in entries]), tuple([offset for _, offset in entries]))

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest known epoch up to `epoch` and its end offset; (-1, -1) if unknown."""
        if epoch < 0:
            return UNDEFINED, UNDEFINED
        if epoch == self.latest:
            return epoch, log_end_offset
        above = bisect_right(self._epochs, epoch)
        if above == len(self._epochs):
            return UNDEFINED, UNDEFINED
        return (self._epochs[above - 1] if above else epoch), self._offsets[above]

    def epoch_at(self, offset: int) -> int:
        """The epoch of an offset; -1 before the first entry."""
        slot = bisect_right(self._offsets, offset) - 1
        return self._epochs[slot] if slot >= 0 else UNDEFINED

    def truncate(self, end_offset: int) -> None:
        """Remove the epochs that started at or above the new log end offset."""
        keep = bisect_left(self._offsets, end_offset)
        if keep < len(self._offsets):
            self._set_entries(self._epochs[:keep], self._offsets[:keep])

    def trim(self, start_offset: int) -> None:
        """Remove the epochs that ended at or below the new log start offset, where the current one now starts."""
        first = bisect_right(self._offsets, start_offset) - 1
        if first < 0 or self._offsets[first] == start_offset == self._offsets[0]:
            return
        self._set_entries(self._epochs[first:], (start_offset, *self._offsets[first + 1 :]))

    def write(self) -> None:
        """Write the file now if it is out of date."""
        if not self.is_up_to_date and self._disk is not None:
            write_epochs(self._disk, self.path, self.entries())
            self.is_up_to_date = True

    def write_temporary(self) -> None:
        """Write the temporary file without a sync if the file is out of date; the caller syncs it, then `commit_temporary`."""
        if not self.is_up_to_date and self._disk is not None:
            self._disk.write_temporary(self.path, epochs_text(self.entries())).close()
            self._has_temporary = True

    def commit_temporary(self) -> None:
        """Rename the temporary file, which is durable, into place; the new name is not durable yet."""
        if self._has_temporary and self._disk is not None:
            self._disk.commit_temporary(self.path)
            self._has_temporary, self.is_up_to_date = False, True

    def take_write(self) -> Callable[[], None] | None:
        """The write as self-contained work for a thread, or None. It counts as done: a failure takes the directory offline."""
        if self.is_up_to_date:
            return None
        self.is_up_to_date = True
        self._writes_started += 1
        return partial(self._write, self._writes_started, self.entries())

    def take_replacement(self) -> list[tuple[str, bytes]]:
        """The same as (path, new contents); empty if the file is up to date."""
        if self.is_up_to_date:
            return []
        self.is_up_to_date = True
        self._writes_started += 1
        return [(self.path, epochs_text(self.entries()))]

    def _write(self, number: int, entries: list[tuple[int, int]]) -> None:
        if number == self._writes_started and self._disk is not None:
            write_epochs(self._disk, self.path, entries, suffix=".released")
        if number != self._writes_started:
            self.is_up_to_date = False

    def _set_entries(self, epochs: tuple[int, ...], offsets: tuple[int, ...]) -> None:
        self._epochs, self._offsets = epochs, offsets
        self.latest = epochs[-1] if epochs else UNDEFINED
        self.is_up_to_date = self._disk is None
