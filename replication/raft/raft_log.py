"""The metadata log and the election state, as Raft reads them.

RULES    1. Records that a leader appends count as part of the log at once, control records too. The writes of a follower count
            when WRITE_COMPLETED reports them.
         2. The log rejects batches that a leader cannot have sent: corrupt ones, gaps, and epochs above the leader's.
            WRITE_COMPLETED follows then too, and the follower fetches the same offset again.
NOT HERE The implementation (`metadata_log.py`), writes (`events.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from replication.raft.control_state_history import ControlStateHistory
from replication.raft.voters import ReplicaKey, VoterSet


class EpochEnd(NamedTuple):
    """The end of a log, an epoch or a snapshot: the epoch of the last record, and the next offset."""

    epoch: int
    offset: int


class RaftLog(Protocol):
    """The metadata log of one replica (Kafka: ReplicatedLog)."""

    voters: ControlStateHistory[VoterSet]
    kraft_version: ControlStateHistory[int]
    """0: the voters are configured (controller.quorum.voters); 1: they are in the log."""

    @property
    def start_offset(self) -> int:
        """The log start offset."""

    @property
    def end(self) -> EpochEnd:
        """The log end offset and the last epoch; epoch 0 if the log is empty."""

    @property
    def flushed_offset(self) -> int:
        """The offset after the last durable record."""

    @property
    def oldest_snapshot(self) -> EpochEnd | None:
        """The snapshot that ends at the log start offset."""

    @property
    def newest_snapshot(self) -> EpochEnd | None:
        """The snapshot for replicas that are too far behind."""

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """The end of the largest epoch in the log that is not above `epoch`."""

    def read(self, offset: int, max_bytes: int) -> Any:
        """Whole batches from `offset` for a Fetch response; empty at the log end."""

    def read_snapshot(self, snapshot: EpochEnd, position: int, max_bytes: int) -> tuple[Any, int] | None:
        """A chunk of a snapshot and the snapshot's size in bytes; None if the snapshot does not exist."""


class ElectionState(NamedTuple):
    """The durable election state: the epoch, its leader, and the vote in it (quorum-state file)."""

    epoch: int = 0
    leader_id: int = -1
    voted_key: ReplicaKey | None = None
