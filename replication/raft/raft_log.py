"""The interface between Raft and the metadata log: what Raft reads, and the effects that it returns.

RULES    1. Raft performs no I/O. It returns effects; the caller carries them out one after another, and sends a response only
            after the effects before it.
         2. Records that a leader appends count as part of the log at once, control records too. The writes of a follower count
            when `Raft.on_written` reports them.
         3. The log rejects batches that a leader cannot have sent: corrupt ones, gaps, and epochs above the leader's.
            `Raft.on_written` follows then too, and the follower fetches the same offset again.
NOT HERE The implementation (`metadata_log.py`), the decisions (`raft.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from protocol.schema import Message
from replication.raft.control_state_history import ControlStateHistory
from replication.raft.voters import ListenerAddress, ReplicaKey, VoterSet


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


class Persist(NamedTuple):
    """Make the election state durable."""

    state: ElectionState


class SendRequest(NamedTuple):
    """Send a request to a replica; `Raft.on_response` follows. Ids from -2 down are bootstrap servers."""

    to: int
    address: ListenerAddress | None
    request: Message
    token: int


class SendResponse(NamedTuple):
    """Send the response to a request for which `Raft.handle_request` returned None."""

    request: Message
    response: Message


class AppendBatches(NamedTuple):
    """Append fetched batches unchanged, with epochs up to this one, and flush them."""

    records: Any
    epoch: int


class Truncate(NamedTuple):
    """Truncate the log to an offset."""

    offset: int


class WriteSnapshotChunk(NamedTuple):
    """Write a chunk of a snapshot; after the last chunk, the log restarts at the snapshot's end."""

    snapshot: EpochEnd
    position: int
    piece: Any
    is_last: bool


class AppendVoters(NamedTuple):
    """Append a control batch with a VotersRecord, after a KRaftVersionRecord if the version is given.

    Dropped, like `BecomeLeader`, if this replica no longer leads that epoch.
    """

    epoch: int
    voters: VoterSet
    kraft_version: int | None = None


class BecomeLeader(NamedTuple):
    """Start a leader epoch: append its LeaderChange record, and the voters in the same batch if given."""

    epoch: int
    granting_voters: list[int]
    append_voters: AppendVoters | None = None


Effect = (
    Persist | SendRequest | SendResponse | AppendBatches | Truncate | WriteSnapshotChunk | AppendVoters | BecomeLeader
)
