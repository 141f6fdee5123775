"""What Raft asks of the metadata log: where it ends, and what lies before; and what it asks to be done, in order.

RULES    1. Raft changes nothing itself. What is to be done comes as effects, which are carried out one after the other; an
            answer leaves when the effects before it are done.
         2. The log that Raft sees is the log as it will be: it ends behind what was begun to be appended as leader. What a
            follower appends, cuts or loads counts when `Raft.written` is told that it is durable.
NOT HERE How it is done (`metadata_log.py`), the decisions (`raft.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from protocol.schema import Message
from replication.raft.voters import ReplicaKey, VoterHistory


class EpochEnd(NamedTuple):
    """An end of a log or of a snapshot: the next offset, and the epoch of what lies before it."""

    epoch: int
    offset: int


class ReplicaLog(Protocol):
    """The metadata log of one replica."""

    voters: VoterHistory

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
    """Ask a replica; `Raft.answered` is told what it says. Ids below -1 are bootstrap servers: -2 is the first."""

    to: int
    request: Message
    token: int


class Append(NamedTuple):
    """Append batches of the leader's as they are, and sync them."""

    records: Any


class Truncate(NamedTuple):
    """Cut the log at an offset."""

    offset: int


class KeepSnapshot(NamedTuple):
    """A piece of a snapshot; after the last one the log begins anew where it ends."""

    snapshot: EpochEnd
    position: int
    piece: Any
    is_last: bool


class Lead(NamedTuple):
    """Begin an epoch: append its LeaderChange record."""

    epoch: int
    granting: list[int]


Effect = Persist | Send | Append | Truncate | KeepSnapshot | Lead
