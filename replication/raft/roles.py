"""What a replica of the metadata log can be, and what it remembers while it is that.

RULES    1. A role holds what ends with it; what outlives roles (epoch, vote, log) is with `replica_state.py`.
         2. Deadlines are in mono_ms; only those of voters matter: nobody else stands for election.
NOT HERE What moves a replica from one role to another (`replica_state.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.messages.cluster import AddRaftVoterRequest, RemoveRaftVoterRequest
from replication.raft.replica_progress import Progress
from replication.raft.voters import ReplicaKey, Voter, VoterSet


class Ballot:
    """The votes of one election: this replica's own, and those of others as they come."""

    __slots__ = ("_granted", "_rejected", "_voters")

    def __init__(self, voters: VoterSet, own: ReplicaKey) -> None:
        self._voters = voters
        self._granted = {own.node_id}
        self._rejected: set[int] = set()

    def count(self, node_id: int, *, is_granted: bool) -> None:
        """Count a voter's answer; the first one stands."""
        if node_id in self._voters.node_ids and node_id not in self._granted | self._rejected:
            (self._granted if is_granted else self._rejected).add(node_id)

    @property
    def unanswered(self) -> list[Voter]:
        """Who did not answer yet."""
        return [voter for voter in self._voters if voter.key.node_id not in self._granted | self._rejected]

    @property
    def granting(self) -> list[int]:
        """Who voted for this replica, itself among them."""
        return sorted(self._granted)

    @property
    def is_won(self) -> bool:
        """Whether a majority is for this replica."""
        return len(self._granted) >= self._voters.majority

    @property
    def is_lost(self) -> bool:
        """Whether a majority can no longer be reached."""
        return len(self._voters) - len(self._rejected) < self._voters.majority


@dataclass(slots=True)
class Unattached:
    """Knows an epoch, and follows nobody in it; a voter stands for election at the deadline."""

    deadline_ms: int
    leader_id: int | None = None
    """The leader, when it is known but not where it is."""


@dataclass(slots=True)
class Follower:
    """Fetches from the leader; a voter that does not reach it until the deadline stands for election."""

    leader_id: int
    deadline_ms: int
    next_voter_request_ms: int
    """When to see whether the voters in the log are to be changed on this replica's behalf."""
    has_fetched: bool = False
    """Whether the leader has answered: from then on nobody else is helped to an election (KIP-996)."""
    has_updated_leader: bool = False
    """Whether the leader knows what this replica supports; with kraft.version 0 it does not stand in the log."""


@dataclass(slots=True)
class Prospective:
    """Asks whether it would be elected, without beginning an epoch (KIP-996)."""

    ballot: Ballot
    deadline_ms: int
    leader_id: int | None = None
    """The leader that it stopped hearing of."""


@dataclass(slots=True)
class Candidate:
    """Asks for votes in an epoch of its own."""

    ballot: Ballot
    deadline_ms: int


@dataclass(slots=True)
class Change:
    """A change of the voters that somebody waits for."""

    request: AddRaftVoterRequest | RemoveRaftVoterRequest
    deadline_ms: int
    new: Voter | None = None
    """Who is to be added, until it has said which kraft.versions it supports."""
    is_answered: bool = False


@dataclass(slots=True)
class Leader:
    """Was elected; its log is the log."""

    progress: Progress
    granting: list[int]
    known: VoterSet
    """The voters and what is known of them; with kraft.version 0 it does not stand in the log."""
    to_begin: dict[int, int] = field(default_factory=dict)
    """When to tell a voter of this epoch, by node: it does not fetch."""
    change: Change | None = None
    named_after: int | None = None
    """The offset of the voters that held when others were last named: until they are in the log."""


@dataclass(slots=True)
class Resigned:
    """Led this epoch, and tells the others that it does no longer."""

    deadline_ms: int
    preferred: list[ReplicaKey]
    untold: set[int]


Role = Unattached | Follower | Prospective | Candidate | Leader | Resigned
