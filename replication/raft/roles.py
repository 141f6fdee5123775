"""The roles of a replica and the state that belongs to each role.

RULES    1. A role holds the state that is discarded with it. Epoch, vote and log outlive roles (`quorum_state.py`).
         2. Deadlines are monotonic milliseconds. Only voters act on election deadlines.
NOT HERE The transitions (`quorum_state.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from replication.raft.replica_progress import ReplicaProgress
from replication.raft.rpc_messages import AddVoter, RemoveVoter
from replication.raft.voters import ReplicaKey, Voter, VoterSet


class VoteTally:
    """The votes of one election (Kafka: EpochElection)."""

    __slots__ = ("_granted", "_rejected", "_voters")

    def __init__(self, voters: VoterSet, local: ReplicaKey) -> None:
        self._voters = voters
        self._granted = {local.node_id}
        self._rejected: set[int] = set()

    def record(self, node_id: int, *, is_granted: bool) -> None:
        """Record a voter's answer; later answers of the same voter are ignored."""
        if node_id in self._voters.node_ids and node_id not in self._granted | self._rejected:
            (self._granted if is_granted else self._rejected).add(node_id)

    @property
    def unanswered(self) -> list[Voter]:
        """The voters that have not answered."""
        return [voter for voter in self._voters if voter.key.node_id not in self._granted | self._rejected]

    @property
    def granting_voters(self) -> list[int]:
        """The node ids that granted their vote, the local one among them."""
        return sorted(self._granted)

    @property
    def is_won(self) -> bool:
        """Whether a majority granted its vote."""
        return len(self._granted) >= self._voters.majority

    @property
    def is_rejected(self) -> bool:
        """Whether a majority is no longer possible."""
        return len(self._voters) - len(self._rejected) < self._voters.majority


@dataclass(slots=True)
class Unattached:
    """No leader to fetch from; a voter starts a pre-vote at the deadline."""

    deadline_ms: int
    leader_id: int | None = None
    """The leader if its id is known but not its address."""


@dataclass(slots=True)
class Follower:
    """Fetches from the leader; a voter starts a pre-vote at the deadline unless a fetch succeeds before."""

    leader_id: int
    deadline_ms: int
    next_voter_request_ms: int
    """The next time to check for an own voter request (`follower_fetch.py`)."""
    has_fetched: bool = False
    """Whether the leader has answered; from then on pre-votes are rejected (KIP-996)."""
    has_updated_leader: bool = False
    """Whether the leader received this replica's kraft.version range; with kraft.version 0 it is not in the log."""


@dataclass(slots=True)
class Prospective:
    """In a pre-vote: asks whether an election would succeed, in the current epoch (KIP-996)."""

    tally: VoteTally
    deadline_ms: int
    leader_id: int | None = None
    """The leader whose fetch timeout expired."""


@dataclass(slots=True)
class Candidate:
    """In an election, in a new epoch."""

    tally: VoteTally
    deadline_ms: int


@dataclass(slots=True)
class PendingVoterChange:
    """An AddVoter or RemoveVoter request in progress."""

    request_id: int
    request: AddVoter | RemoveVoter
    deadline_ms: int
    new_voter: Voter | None = None
    """The voter to add, until its ApiVersions response arrives."""
    is_answered: bool = False


@dataclass(slots=True)
class Leader:
    """The leader of the epoch."""

    progress: ReplicaProgress
    granting_voters: list[int]
    known_voters: VoterSet
    """The voters with their endpoints and versions; with kraft.version 0 this is not in the log."""
    next_begin_epoch_ms: dict[int, int] = field(default_factory=dict)
    """When to send the next BeginQuorumEpoch, by voter id."""
    change: PendingVoterChange | None = None
    appending_after: int | None = None
    """The offset of the latest voter set when a new one was queued; the same as the log's until the new one is appended."""


@dataclass(slots=True)
class Resigned:
    """Led this epoch; sends EndQuorumEpoch until all voters have acknowledged it."""

    deadline_ms: int
    preferred_successors: list[ReplicaKey]
    unacked_voters: set[int]


Role = Unattached | Follower | Prospective | Candidate | Leader | Resigned
