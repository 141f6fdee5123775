"""What Raft asks of the metadata log: where it ends, and what lies before; and what it asks to be done, in order.

RULES    1. Raft changes nothing itself. What is to be done comes as effects, which are carried out one after the other; an
            answer leaves when the effects before it are done.
         2. The log that Raft sees is the log as it will be: it ends behind what was begun to be appended as leader, control
            records among it. What a follower appends, cuts or loads counts when `Raft.written` is told that it is durable.
         3. The log refuses what a leader could not have sent: batches that are damaged, do not follow each other or bear
            a newer epoch than the leader's. `Raft.written` is told then too, and the same is asked for again.
NOT HERE How it is done (`metadata_log.py`), the decisions (`raft.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from protocol.schema import Message
from replication.raft.control_state_history import History
from replication.raft.voters import Address, ReplicaKey, VoterSet


class EpochEnd(NamedTuple):
    """An end of a log or of a snapshot: the next offset, and the epoch of what lies before it."""

    epoch: int
    offset: int


class ReplicaLog(Protocol):
    """The metadata log of one replica."""

    voters: History[VoterSet]
    kraft_version: History[int]
    """0: the voters are a setting; 1: they stand in the log."""

    @property
    def start_offset(self) -> int:
        """The first offset that can be read."""

    @property
    def end(self) -> EpochEnd:
        """Where it ends; epoch 0 when it is empty."""

    @property
    def flushed_offset(self) -> int:
        """What lies before is durable."""

    @property
    def oldest_snapshot(self) -> EpochEnd | None:
        """The snapshot that the log begins behind."""

    @property
    def newest_snapshot(self) -> EpochEnd | None:
        """The one to send to who is too far behind."""

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """The largest epoch up to that one which the log knows, and where it ends."""

    def read(self, offset: int, max_bytes: int) -> Any:
        """Whole batches from an offset on, as a Fetch answers them; empty at the end."""

    def read_snapshot(self, snapshot: EpochEnd, position: int, max_bytes: int) -> tuple[Any, int] | None:
        """Bytes of a snapshot and how many it has in all; None: there is no such snapshot."""


class ElectionState(NamedTuple):
    """What a replica must not forget: the newest epoch, who leads it, and whom it voted for in it."""

    epoch: int = 0
    leader_id: int = -1
    voted: ReplicaKey | None = None


class Persist(NamedTuple):
    """Make this durable."""

    state: ElectionState


class Send(NamedTuple):
    """Ask a replica; `Raft.answered` is told what it says. From -2 downwards they are bootstrap servers: settings."""

    to: int
    address: Address | None
    request: Message
    token: int


class Answer(NamedTuple):
    """Answer a request for which `Raft.receive` had no answer yet."""

    request: Message
    response: Message


class Append(NamedTuple):
    """Append batches of the leader's as they are, none of a newer epoch than this, and sync them."""

    records: Any
    epoch: int


class Truncate(NamedTuple):
    """Cut the log at an offset."""

    offset: int


class KeepSnapshot(NamedTuple):
    """A piece of a snapshot; after the last one the log begins anew where it ends."""

    snapshot: EpochEnd
    position: int
    piece: Any
    is_last: bool


class NameVoters(NamedTuple):
    """Append a control batch that names the voters, after the version of the quorum's protocol if there is one.

    As `Lead`, it is left out if this replica does not lead that epoch any more.
    """

    epoch: int
    voters: VoterSet
    kraft_version: int | None = None


class Lead(NamedTuple):
    """Begin an epoch: append its LeaderChange record, and in the same batch what is to be named."""

    epoch: int
    granting: list[int]
    naming: NameVoters | None = None


Effect = Persist | Send | Answer | Append | Truncate | KeepSnapshot | NameVoters | Lead
