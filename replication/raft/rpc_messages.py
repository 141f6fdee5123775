"""The requests and responses between the replicas of a quorum, and of administrators to its leader (KIP-595, 630, 853, 996).

RULES    1. All are immutable values. `code` is Kafka's error code; most responses name the leader and its epoch.
NOT HERE Their bytes (`metadata_log/raft_wire.py`), their meaning (`elections.py`, `leader_fetch.py`, `follower_fetch.py`,
         `voter_changes.py`).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from replication.raft.raft_log import EpochEnd
from replication.raft.voters import ListenerAddress, ReplicaKey, Voter

MAX_WAIT_MS: Final = 500
MAX_FETCH_BYTES: Final = 8 * 1024 * 1024


class LeaderAndEpoch(NamedTuple):
    """A leader (-1: unknown), its epoch and its address on the controller listener."""

    leader_id: int
    epoch: int
    address: ListenerAddress | None = None


# ---- elections -------------------------------------------------------------------------------------------------


class Vote(NamedTuple):
    """Asks for a vote, or a pre-vote, in an epoch; `end` is the end of the candidate's log."""

    candidate: ReplicaKey
    recipient: ReplicaKey
    epoch: int
    end: EpochEnd
    is_pre_vote: bool


class VoteResponse(NamedTuple):
    """Whether the vote is granted."""

    code: int
    leader: LeaderAndEpoch
    is_granted: bool = False


class BeginEpoch(NamedTuple):
    """A new leader asks a voter to follow it (BeginQuorumEpoch)."""

    leader_id: int
    epoch: int
    addresses: tuple[ListenerAddress, ...]
    recipient: ReplicaKey


class EndEpoch(NamedTuple):
    """The leader has resigned; the preferred candidates are in order (EndQuorumEpoch)."""

    leader_id: int
    epoch: int
    addresses: tuple[ListenerAddress, ...]
    preferred_candidates: tuple[ReplicaKey, ...]


class EpochResponse(NamedTuple):
    """The response to `BeginEpoch` and `EndEpoch`."""

    code: int
    leader: LeaderAndEpoch


# ---- replication -----------------------------------------------------------------------------------------------


class Fetch(NamedTuple):
    """Asks for records from the end of a replica's log; node id -1 is a consumer."""

    replica: ReplicaKey
    epoch: int
    end: EpochEnd
    high_watermark: int
    max_wait_ms: int = MAX_WAIT_MS
    max_bytes: int = MAX_FETCH_BYTES


class FetchResponse(NamedTuple):
    """Records; or where to continue instead: at a diverging epoch, or with a snapshot.

    The leader is None if the version of the response cannot name it.
    """

    code: int
    leader: LeaderAndEpoch | None
    high_watermark: int = -1
    log_start_offset: int = 0
    records: Any = b""
    diverging: EpochEnd | None = None
    snapshot: EpochEnd | None = None


class FetchSnapshot(NamedTuple):
    """Asks for the chunk of a snapshot at a position."""

    replica: ReplicaKey
    epoch: int
    snapshot: EpochEnd
    position: int
    max_bytes: int = MAX_FETCH_BYTES


class FetchSnapshotResponse(NamedTuple):
    """A chunk of a snapshot, and the snapshot's size in bytes."""

    code: int
    leader: LeaderAndEpoch | None
    snapshot: EpochEnd
    position: int
    size: int = 0
    chunk: Any = b""


# ---- voter changes ---------------------------------------------------------------------------------------------


class AddVoter(NamedTuple):
    """Asks the leader to add a voter; the response follows the commit, or else the append."""

    voter: Voter
    ack_when_committed: bool
    timeout_ms: int


class RemoveVoter(NamedTuple):
    """Asks the leader to remove a voter."""

    key: ReplicaKey


class VoterChangeResponse(NamedTuple):
    """The response to `AddVoter` and `RemoveVoter`."""

    code: int
    message: str | None = None


class UpdateVoter(NamedTuple):
    """Tells the leader of an epoch the sender's addresses and kraft.version range."""

    epoch: int
    voter: Voter


class UpdateVoterResponse(NamedTuple):
    """The response to `UpdateVoter`."""

    code: int
    leader: LeaderAndEpoch | None


class ApiVersions(NamedTuple):
    """Asks a new voter for its kraft.version range."""


class ApiVersionsResponse(NamedTuple):
    """The kraft.version range; (0, 0) if the replica does not know the feature."""

    code: int
    kraft_versions: tuple[int, int] = (0, 0)


class Rejection(NamedTuple):
    """The response to a request that was rejected as a whole."""

    code: int


Request = Vote | BeginEpoch | EndEpoch | Fetch | FetchSnapshot | AddVoter | RemoveVoter | UpdateVoter | ApiVersions
Response = (
    VoteResponse | EpochResponse | FetchResponse | FetchSnapshotResponse | VoterChangeResponse | UpdateVoterResponse
    | ApiVersionsResponse | Rejection
)  # fmt: skip
