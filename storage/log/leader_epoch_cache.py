"""Which leader epoch began at which offset: where a replica that was cut off left the common history.

RULES    1. Epochs and start offsets both ascend. A new entry drops the entries that contradict it.
         2. The table follows the log: an entry stands for the batches from its start offset to the next entry's.
         3. The file may be behind the table, but not further than recovery reads the log again: it is written before
            the log's recovery point moves, when the log is cut, and on close. It is replaced by what is durable only: a
            name may survive a loss of power without its bytes, and nobody looks at the batches then.
         4. Two threads may write it, one with a sync and one for a log that is let go of. What was collected later wins:
            the other is left out, and where both were at it, it is written once more.
         5. A file that cannot be understood is replaced by what the batches tell (recovery.py).
NOT HERE Who asks for a diverging epoch, and what a leader's epoch permits (replication/partition/partition.py).
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import partial
from typing import Final

from storage.io.checkpoint_file import CorruptCheckpoint, epochs_text, read_epochs, write_epochs
from storage.io.disk import Disk

UNDEFINED: Final = -1

_log = logging.getLogger("barnabas.storage")


class LeaderEpochs:
    """The table of one partition and its checkpoint file."""

    __slots__ = ("_collected", "_disk", "_epochs", "_is_beside", "_is_written", "_offsets", "is_lost", "latest", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self._epochs: list[int] = []
        self._offsets: list[int] = []
        self._collected = 0  # how often
        self._is_beside = False  # written, but not in the file's place yet
        self.latest = UNDEFINED
        """The last epoch in the table; -1 when there is none."""
        self.is_lost = False
        """Whether nobody can understand the file: the batches have to tell."""
        try:
            entries = read_epochs(disk, path)
        except CorruptCheckpoint as error:
            _log.warning("%s The batches tell instead", error)
            entries, self.is_lost = [], True
        for epoch, offset in entries:
            self.assign(epoch, offset)
        self._is_written = self.entries() == entries and not self.is_lost

    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset), ascending."""
        return list(zip(self._epochs, self._offsets, strict=True))

    def assign(self, epoch: int, start_offset: int) -> None:
        """Begin an epoch at an offset, unless it has begun there or before."""
        epochs, offsets = self._epochs, self._offsets
        if epoch < 0 or (epoch == self.latest and start_offset >= offsets[-1]):
            return
        keep = min(bisect_left(epochs, epoch), bisect_left(offsets, start_offset))
        epochs[keep:] = [epoch]
        offsets[keep:] = [start_offset]
        self.latest = epoch
        self._is_written = False

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest epoch known that is not above `epoch`, and where it ended; (-1, -1) when that is unknown."""
        if epoch < 0:
            return UNDEFINED, UNDEFINED
        if epoch == self.latest:
            return epoch, log_end_offset
        above = bisect_right(self._epochs, epoch)
        if above == len(self._epochs):
            return UNDEFINED, UNDEFINED
        return (self._epochs[above - 1] if above else epoch), self._offsets[above]

    def epoch_at(self, offset: int) -> int:
        """The epoch that an offset belongs to; -1 before the first entry."""
        slot = bisect_right(self._offsets, offset) - 1
        return self._epochs[slot] if slot >= 0 else UNDEFINED

    def truncate(self, end_offset: int) -> None:
        """Forget the epochs that began at or behind the log's new end."""
        keep = bisect_left(self._offsets, end_offset)
        if keep < len(self._offsets):
            self._keep(self._epochs[:keep], self._offsets[:keep])

    def trim(self, start_offset: int) -> None:
        """Forget the epochs that ended at or before the log's new start; the one that holds it begins there now."""
        first = bisect_right(self._offsets, start_offset) - 1
        if first < 0 or self._offsets[first] == start_offset == self._offsets[0]:
            return
        self._keep(self._epochs[first:], [start_offset, *self._offsets[first + 1 :]])

    def clear(self) -> None:
        """Forget all."""
        if self._epochs:
            self._keep([], [])

    def write(self) -> None:
        """Bring the file up to date now."""
        if not self._is_written:
            write_epochs(self._disk, self.path, self.entries())
            self._is_written = True

    def write_beside(self) -> None:
        """Write what the file lacks beside it, without a sync: somebody makes it durable, and says `put_in_place` then."""
        if not self._is_written:
            self._disk.write_beside(self.path, epochs_text(self.entries())).close()
            self._is_beside = True

    def put_in_place(self) -> None:
        """What was written beside the file is durable; its new name is not yet."""
        if self._is_beside:
            self._disk.put_in_place(self.path)
            self._is_beside, self._is_written = False, True

    def collect_write(self) -> Callable[[], None] | None:
        """The write as closed work for a thread, or None; counts as done, since a failure takes the directory away."""
        if self._is_written:
            return None
        self._is_written = True
        self._collected += 1
        return partial(self._write, self._collected, self.entries())

    def collect(self) -> list[tuple[str, bytes]]:
        """The same as what is to be written, by its path."""
        if self._is_written:
            return []
        self._is_written = True
        self._collected += 1
        return [(self.path, epochs_text(self.entries()))]

    def _write(self, number: int, entries: list[tuple[int, int]]) -> None:
        if number == self._collected:
            write_epochs(self._disk, self.path, entries, beside=".let-go")
        if number != self._collected:
            self._is_written = False

    def _keep(self, epochs: list[int], offsets: list[int]) -> None:
        self._epochs, self._offsets = epochs, offsets
        self.latest = epochs[-1] if epochs else UNDEFINED
        self._is_written = False
