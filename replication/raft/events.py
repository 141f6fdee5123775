"""What happens to a replica, and what it decides: the events and effects of `Raft.step`.

RULES    1. The caller carries out the effects one after another. So a message is sent only after the effects before it are
            complete.
         2. Every `RequestReceived` is answered by one `SendResponse` with its id, now or in a later step.
         3. WRITE_COMPLETED follows each AppendBatches, Truncate and WriteSnapshotChunk, also if the log rejected it.
NOT HERE The decisions (`raft.py`), requests and responses (`rpc_messages.py`).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any, NamedTuple

from replication.raft.raft_log import ElectionState, EpochEnd
from replication.raft.rpc_messages import Request, Response
from replication.raft.voters import ListenerAddress, VoterSet

# ---- events ----------------------------------------------------------------------------------------------------


class Signal(Enum):
    """An event without values."""

    TICK = auto()
    """The time has passed `Raft.next_deadline_ms`, or the replica starts."""
    LOG_APPENDED = auto()
    """Records that this replica wrote as leader are readable."""
    LOG_FLUSHED = auto()
    """The log's flushed offset has advanced."""
    WRITE_COMPLETED = auto()
    """The log has completed, or rejected, the last write (rule 3)."""
    RESIGN = auto()
    """Give up the epoch that this replica leads, if it leads, for example before shutdown."""


class RequestReceived(NamedTuple):
    """A request, with an id that the caller chose."""

    request_id: int
    request: Request


class ResponseReceived(NamedTuple):
    """The response to a `SendRequest`; None after a timeout or a failed connection."""

    peer: int
    token: int
    response: Response | None


class UpgradeKraftVersion(NamedTuple):
    """Append a new kraft.version, unless `Raft.check_kraft_version` rejects it."""

    version: int


Event = Signal | RequestReceived | ResponseReceived | UpgradeKraftVersion

# ---- effects ---------------------------------------------------------------------------------------------------


class Persist(NamedTuple):
    """Make the election state durable."""

    state: ElectionState


class SendRequest(NamedTuple):
    """Send a request to a replica; `ResponseReceived` follows. Ids from -2 down are bootstrap servers."""

    to: int
    address: ListenerAddress | None
    request: Request
    token: int


class SendResponse(NamedTuple):
    """Send the response to a received request."""

    request_id: int
    response: Response


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


class Fail(NamedTuple):
    """The leader's log contradicts records that were committed here: the node must stop."""

    reason: str


Effect = (
    Persist | SendRequest | SendResponse | AppendBatches | Truncate | WriteSnapshotChunk | AppendVoters | BecomeLeader
    | Fail
)  # fmt: skip
