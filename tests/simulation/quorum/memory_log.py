"""A metadata log in memory that forgets what was not synced when its node crashes.

RULES    1. An entry is an epoch and a value; its offset is its place. What lies before `start_offset` is in a snapshot.
         2. A crash keeps what was synced and a random part of what was not, from the front.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from replication.raft.replica_log import EpochEnd
from replication.raft.voters import VoterHistory, VoterSet


class Entry(NamedTuple):
    """A record of the log: a number that was never given before, or the beginning of an epoch (-1)."""

    epoch: int
    value: int


class MemoryLog:
    """`ReplicaLog`, as it stands in memory and on the disk."""

    def __init__(self, voters: VoterSet) -> None:
        self.voters = VoterHistory(voters)
        self.entries: list[Entry] = []
        """From offset 0 on, those of the snapshot among them: what a snapshot stands for is known to the test."""
        self.start_offset = 0
        self.flushed_offset = 0
        self.oldest_snapshot: EpochEnd | None = None
        self._loaded: list[Entry] = []

    @property
    def newest_snapshot(self) -> EpochEnd | None:
        """There is one at a time."""
        return self.oldest_snapshot

    @property
    def end(self) -> EpochEnd:
        """Where it ends."""
        return EpochEnd(self.entries[-1].epoch if self.entries else 0, len(self.entries))

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """The largest epoch up to that one, and where it ends; before a snapshot nothing is known."""
        for offset in range(len(self.entries), max(self.start_offset - 1, 0), -1):
            if self.entries[offset - 1].epoch <= epoch:
                return EpochEnd(self.entries[offset - 1].epoch, offset)
        return self.oldest_snapshot or EpochEnd(0, 0)

    def read(self, offset: int, max_bytes: int) -> list[Entry]:
        """At most five entries at a time."""
        assert offset >= self.start_offset, "what is in a snapshot is not in the log"
        return self.entries[offset : offset + min(max_bytes, 5)]

    def read_snapshot(self, snapshot: EpochEnd, position: int, max_bytes: int) -> tuple[list[Entry], int] | None:
        """At most seven entries of it at a time."""
        if snapshot != self.oldest_snapshot:
            return None
        return self.entries[position : min(snapshot.offset, position + min(max_bytes, 7))], snapshot.offset

    # ------------------------------------------------------------ changes
    def append(self, entries: Sequence[Entry]) -> None:
        """Behind the end; not synced."""
        self.entries.extend(entries)

    def flush(self, end_offset: int) -> None:
        """What lies before was synced."""
        self.flushed_offset = max(self.flushed_offset, min(end_offset, len(self.entries)))

    def truncate(self, offset: int) -> None:
        """Cut; synced at once."""
        del self.entries[offset:]
        self.flushed_offset = min(self.flushed_offset, offset)

    def keep_piece(self, snapshot: EpochEnd, position: int, piece: Sequence[Entry], *, is_last: bool) -> None:
        """Load a snapshot; after the last piece the log is what it says."""
        del self._loaded[position:]
        assert len(self._loaded) == position, "pieces come one after the other"
        self._loaded.extend(piece)
        if is_last:
            self.entries, self._loaded = self._loaded, []
            self.start_offset = self.flushed_offset = snapshot.offset
            self.oldest_snapshot = snapshot

    def summarize(self, offset: int) -> None:
        """Take a snapshot and drop what lies before."""
        self.oldest_snapshot = EpochEnd(self.entries[offset - 1].epoch, offset)
        self.start_offset = offset

    def crash(self, random: Random) -> None:
        """Rule 2."""
        kept = random.randint(self.flushed_offset, len(self.entries))
        self.truncate(kept)
        self._loaded = []
        self.flushed_offset = kept
