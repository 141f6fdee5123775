"""A metadata log in memory that loses unflushed entries in a crash.

RULES    1. An entry has an epoch and a value; its offset is its index. Entries below `start_offset` are in a snapshot.
         2. A crash keeps the flushed entries and a random prefix of the others.
         3. An entry with voters is effective while it is in the log; the bootstrap checkpoint may contain the first voters.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from replication.raft.control_state_history import ControlStateHistory
from replication.raft.events import AppendVoters
from replication.raft.raft_log import EpochEnd
from replication.raft.voters import VoterSet


class Entry(NamedTuple):
    """A record: a unique number, a leader change (-1), or voters (-2)."""

    epoch: int
    value: int
    append_voters: AppendVoters | None = None


class MemoryLog:
    """A `RaftLog` in memory."""

    def __init__(self, voters: VoterSet, kraft_version: int = 0) -> None:
        self._first = (voters, kraft_version)
        self.voters: ControlStateHistory[VoterSet] = ControlStateHistory(voters)
        self.kraft_version: ControlStateHistory[int] = ControlStateHistory(kraft_version)
        self.entries: list[Entry] = []
        """All entries from offset 0, also those in the snapshot."""
        self.start_offset = 0
        self.flushed_offset = 0
        self.oldest_snapshot: EpochEnd | None = None
        self._downloaded: list[Entry] = []

    @property
    def newest_snapshot(self) -> EpochEnd | None:
        return self.oldest_snapshot

    @property
    def end(self) -> EpochEnd:
        return EpochEnd(self.entries[-1].epoch if self.entries else 0, len(self.entries))

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """The end of the largest epoch up to `epoch`; unknown before the snapshot."""
        for offset in range(len(self.entries), max(self.start_offset - 1, 0), -1):
            if self.entries[offset - 1].epoch <= epoch:
                return EpochEnd(self.entries[offset - 1].epoch, offset)
        return self.oldest_snapshot or EpochEnd(0, 0)

    def read(self, offset: int, max_bytes: int) -> list[Entry]:
        """At most five entries."""
        assert offset >= self.start_offset, "entries in the snapshot are not in the log"
        return self.entries[offset : offset + min(max_bytes, 5)]

    def read_snapshot(self, snapshot: EpochEnd, position: int, max_bytes: int) -> tuple[list[Entry], int] | None:
        """At most seven entries of the snapshot."""
        if snapshot != self.oldest_snapshot:
            return None
        return self.entries[position : min(snapshot.offset, position + min(max_bytes, 7))], snapshot.offset

    # ------------------------------------------------------------ changes
    def append(self, entries: Sequence[Entry]) -> None:
        """Append entries, not flushed."""
        for entry in entries:
            self._apply_control_record(len(self.entries), entry)
            self.entries.append(entry)

    def _apply_control_record(self, offset: int, entry: Entry) -> None:
        if entry.append_voters is not None:
            self.voters.append(offset, entry.append_voters.voters)
            if entry.append_voters.kraft_version is not None:
                self.kraft_version.append(offset, entry.append_voters.kraft_version)

    def flush(self, end_offset: int) -> None:
        self.flushed_offset = max(self.flushed_offset, min(end_offset, len(self.entries)))

    def truncate(self, offset: int) -> None:
        del self.entries[offset:]
        self.flushed_offset = min(self.flushed_offset, offset)
        self.voters.truncate_to(offset)
        self.kraft_version.truncate_to(offset)

    def write_snapshot_chunk(self, snapshot: EpochEnd, position: int, chunk: Sequence[Entry], *, is_last: bool) -> None:
        """Add a chunk of a snapshot; the last one replaces the log."""
        del self._downloaded[position:]
        assert len(self._downloaded) == position, "chunks arrive in order"
        self._downloaded.extend(chunk)
        if is_last:
            self.entries, self._downloaded = self._downloaded, []
            self.start_offset = self.flushed_offset = snapshot.offset
            self.oldest_snapshot = snapshot
            self.voters, self.kraft_version = ControlStateHistory(self._first[0]), ControlStateHistory(self._first[1])
            for offset, entry in enumerate(self.entries):
                self._apply_control_record(offset, entry)
            self._reset_histories()

    def take_snapshot(self, offset: int) -> None:
        """Take a snapshot and drop the entries before it."""
        self.oldest_snapshot = EpochEnd(self.entries[offset - 1].epoch, offset)
        self.start_offset = offset
        self._reset_histories()

    def _reset_histories(self) -> None:
        start = self.start_offset
        self.voters.reset_to(start, self.voters.at(start))
        self.kraft_version.reset_to(start, self.kraft_version.at(start))

    def crash(self, random: Random) -> None:
        kept = random.randint(self.flushed_offset, len(self.entries))
        self.truncate(kept)
        self._downloaded = []
        self.flushed_offset = kept
