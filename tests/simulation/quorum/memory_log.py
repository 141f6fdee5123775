"""A metadata log in memory that forgets what was not synced when its node crashes.

RULES    1. An entry is an epoch and a value; its offset is its place. What lies before `start_offset` is in a snapshot.
         2. A crash keeps what was synced and a random part of what was not, from the front.
         3. An entry that names voters counts while it is in the log; the checkpoint at offset 0 may name the first ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from replication.raft.control_state_history import History
from replication.raft.raft_log import EpochEnd, NameVoters
from replication.raft.voters import VoterSet


class Entry(NamedTuple):
    """A record of the log: a number that was never given before, the beginning of an epoch (-1), or voters (-2)."""

    epoch: int
    value: int
    naming: NameVoters | None = None


class MemoryLog:
    """`ReplicaLog`, as it stands in memory and on the disk."""

    def __init__(self, voters: VoterSet, kraft_version: int = 0) -> None:
        self._first = (voters, kraft_version)
        self.voters: History[VoterSet] = History(voters)
        self.kraft_version: History[int] = History(kraft_version)
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
        for entry in entries:
            self._note(len(self.entries), entry)
            self.entries.append(entry)

    def _note(self, offset: int, entry: Entry) -> None:
        """Rule 3."""
        if entry.naming is not None:
            self.voters.changed(offset, entry.naming.voters)
            if entry.naming.kraft_version is not None:
                self.kraft_version.changed(offset, entry.naming.kraft_version)

    def flush(self, end_offset: int) -> None:
        """What lies before was synced."""
        self.flushed_offset = max(self.flushed_offset, min(end_offset, len(self.entries)))

    def truncate(self, offset: int) -> None:
        """Cut; synced at once."""
        del self.entries[offset:]
        self.flushed_offset = min(self.flushed_offset, offset)
        self.voters.truncated(offset)
        self.kraft_version.truncated(offset)

    def keep_piece(self, snapshot: EpochEnd, position: int, piece: Sequence[Entry], *, is_last: bool) -> None:
        """Load a snapshot; after the last piece the log is what it says."""
        del self._loaded[position:]
        assert len(self._loaded) == position, "pieces come one after the other"
        self._loaded.extend(piece)
        if is_last:
            self.entries, self._loaded = self._loaded, []
            self.start_offset = self.flushed_offset = snapshot.offset
            self.oldest_snapshot = snapshot
            self.voters, self.kraft_version = History(self._first[0]), History(self._first[1])
            for offset, entry in enumerate(self.entries):
                self._note(offset, entry)
            self._begin_histories()

    def summarize(self, offset: int) -> None:
        """Take a snapshot and drop what lies before."""
        self.oldest_snapshot = EpochEnd(self.entries[offset - 1].epoch, offset)
        self.start_offset = offset
        self._begin_histories()

    def _begin_histories(self) -> None:
        start = self.start_offset
        self.voters.begins_with(start, self.voters.at(start))
        self.kraft_version.begins_with(start, self.kraft_version.at(start))

    def crash(self, random: Random) -> None:
        """Rule 2."""
        kept = random.randint(self.flushed_offset, len(self.entries))
        self.truncate(kept)
        self._loaded = []
        self.flushed_offset = kept
