"""A replica's epoch, vote and role, and the transitions between roles (Kafka: QuorumState).

RULES    1. Election state is durable before any message that depends on it is sent: `Persist` precedes it in the effects.
         2. A leader that restarts resigns its epoch. A candidate that restarts is a candidate in the same epoch again.
         3. A resigned leader still reports itself as the leader of its epoch, so it grants no vote in it.
         4. A single voter becomes leader at startup without sending requests.
         5. A voter that loses its leader keeps its election deadline when its role changes (KIP-996).
         6. The voter with the lowest id that knows no leader starts a pre-vote at startup, and so does a restarted leader. A
            pre-vote disturbs no other replica, and a new cluster does not wait for an election timeout.
         7. The fetch timeout has a jitter: all followers fetched from a failed leader at about the same time, and simultaneous
            candidates split the vote. Apache Kafka has no jitter here.
         8. The parts of a replica (`elections.py` etc.) change the role only by the transitions here, and add effects in order.
NOT HERE The causes of transitions: votes (`elections.py`), responses of the leader (`follower_fetch.py`), time (`raft.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import Final, NamedTuple

from protocol.errors import ErrorCode
from replication.raft.events import AppendVoters, BecomeLeader, Effect, Persist, SendRequest, SendResponse
from replication.raft.follower_log_sync import FollowerLogSync
from replication.raft.raft_log import ElectionState, RaftLog
from replication.raft.replica_progress import ReplicaProgress
from replication.raft.request_tracker import RequestTracker
from replication.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Role, Unattached, VoteTally
from replication.raft.rpc_messages import LeaderAndEpoch, Request, Response, VoterChangeResponse
from replication.raft.voters import ListenerAddress, ReplicaKey, Voter, VoterSet

_FETCH_JITTER_DIVISOR: Final = 10
"""The jitter is at most the fetch timeout divided by this."""


class QuorumTimes(NamedTuple):
    """The controller.quorum.* timeouts, in milliseconds."""

    election_timeout_ms: int = 1000
    fetch_timeout_ms: int = 2000
    election_backoff_max_ms: int = 1000
    request_timeout_ms: int = 2000
    retry_backoff_ms: int = 20


@dataclass(eq=False, repr=False)
class QuorumState:
    """The state that the parts of one replica share."""

    local: Voter
    """This replica's key, its listeners (the first is the one for voters) and its kraft.version range."""
    log: RaftLog
    stored: InitVar[ElectionState]
    """The durable election state, with which the replica starts."""
    _: KW_ONLY
    times: QuorumTimes
    jitter: Callable[[int], int]
    """Returns a random number from 0 to below its argument."""
    mono_ms: int
    """The monotonic time of the current step."""

    def __post_init__(self, stored: ElectionState) -> None:
        self.effects: list[Effect] = []
        """The effects of the current step."""
        self.requests = RequestTracker(self.times.retry_backoff_ms)
        self.log_sync = FollowerLogSync(self.log)
        self.epoch = max(stored.epoch, self.log.end.epoch)
        self.leader_addresses: tuple[ListenerAddress, ...] = ()
        is_newest = stored.epoch == self.epoch
        self.voted_key = stored.voted_key if is_newest else None
        self.role: Role = self._initial_role(stored.leader_id if is_newest else -1)
        if len(self.voters) == 1 and self.is_voter:
            self._lead_as_only_voter()

    def _initial_role(self, leader_id: int) -> Role:
        """The role at startup, from the stored election state (rules 2 and 6)."""
        if leader_id == self.local.key.node_id:
            return Resigned(self.mono_ms, [], set())
        if leader_id < 0:
            is_candidate = self.is_voter and self.voted_key is not None and self.voted_key.matches(self.local.key)
            if is_candidate:
                return Candidate(self._new_tally(), self.new_election_deadline())
            is_first = self.is_voter and self.local.key.node_id == min(self.voters.node_ids)
            return Unattached(self.mono_ms if is_first else self.new_election_deadline())
        return self._follower_or_unattached(leader_id, self._voter_addresses(leader_id))

    def _lead_as_only_voter(self) -> None:
        """Become leader at once (rule 4)."""
        if isinstance(self.role, Candidate):
            self.become_leader(self.role.tally)
        else:
            self.become_prospective()

    # ------------------------------------------------------------ state
    @property
    def voters(self) -> VoterSet:
        """The latest voter set in the log, committed or not."""
        return self.log.voters.latest

    @property
    def high_watermark(self) -> int:
        """The offset after the last committed record."""
        return self.log_sync.high_watermark

    @property
    def is_voter(self) -> bool:
        """Whether this replica is in the voter set."""
        return self.local.key in self.voters

    @property
    def leader_id(self) -> int:
        """The leader of the current epoch, also after it resigned; -1 if unknown."""
        role = self.role
        if isinstance(role, Leader | Resigned):  # rule 3
            return self.local.key.node_id
        if isinstance(role, Follower | Unattached | Prospective) and role.leader_id is not None:
            return role.leader_id
        return -1

    @property
    def leader_and_epoch(self) -> LeaderAndEpoch:
        """The leader and epoch for responses."""
        leader_id = self.leader_id
        return LeaderAndEpoch(leader_id, self.epoch, None if leader_id < 0 else self.address_of(leader_id))

    @property
    def listener(self) -> str:
        """The name of the listener that voters use."""
        return self.local.addresses[0].listener if self.local.addresses else ""

    def address_of(self, node_id: int) -> ListenerAddress | None:
        """The address of a replica; None if unknown, or if it is configured outside (bootstrap servers)."""
        if node_id == self.local.key.node_id:
            known = self.local.addresses
        else:
            known = self.leader_addresses if node_id == self.leader_id else ()
        known = known or self._voter_addresses(node_id)
        return next((address for address in known if address.listener == self.listener), None)

    def _voter_addresses(self, node_id: int) -> tuple[ListenerAddress, ...]:
        voter = self.voters.get(node_id)
        return voter.addresses if voter is not None else ()

    def new_election_deadline(self) -> int:
        """The randomised end of an election timeout that begins now."""
        timeout_ms = self.times.election_timeout_ms
        return self.mono_ms + timeout_ms + self.jitter(timeout_ms)

    def new_fetch_deadline(self) -> int:
        """The randomised end of a fetch timeout that begins now (rule 7)."""
        timeout_ms = self.times.fetch_timeout_ms
        return self.mono_ms + timeout_ms + self.jitter(timeout_ms // _FETCH_JITTER_DIVISOR)

    def _new_tally(self) -> VoteTally:
        return VoteTally(self.voters, self.local.key)

    # ------------------------------------------------------------ messages
    def check_leader_epoch(self, epoch: int) -> ErrorCode:
        """The error for a request with this leader epoch; NONE if this replica leads that epoch."""
        if epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > self.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if isinstance(self.role, Leader) else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def send(self, peer: int, request: Request, address: ListenerAddress | None = None) -> None:
        """Send a request to a peer, at its known address unless one is given."""
        token = self.requests.start(peer, request)
        self.effects.append(SendRequest(peer, address or self.address_of(peer), request, token))

    def respond(self, request_id: int, response: Response) -> None:
        """Send the response to a received request."""
        self.effects.append(SendResponse(request_id, response))

    # ------------------------------------------------------------ transitions
    def transition_to(self, role: Role, epoch: int, vote: ReplicaKey | None = None) -> None:
        """Change the role, and possibly the epoch and the vote; the new election state precedes later effects (rule 1)."""
        assert epoch >= self.epoch, "the epoch must not decrease"
        before = (self.epoch, self.leader_id, self.voted_key)
        if isinstance(self.role, Leader) and (change := self.role.change) is not None and not change.is_answered:
            self.respond(change.request_id, VoterChangeResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        self.voted_key = vote or (self.voted_key if epoch == self.epoch else None)
        self.epoch, self.role = epoch, role
        self.requests.reset()
        self.log_sync.on_new_leader()
        if self.leader_id != before[1]:
            self.leader_addresses = ()
        if before == (self.epoch, self.leader_id, self.voted_key):
            return
        if self.effects and isinstance(self.effects[-1], Persist):  # no effect depends on it yet
            self.effects.pop()
        self.effects.append(Persist(ElectionState(self.epoch, self.leader_id, self.voted_key)))

    def become_unattached(self, epoch: int) -> None:
        """Leave the role without a known leader."""
        role = self.role
        is_rejected = isinstance(role, Prospective) and role.tally.is_rejected
        is_waiting = isinstance(role, Unattached | Candidate | Prospective | Resigned) and not is_rejected
        deadline_ms = role.deadline_ms if is_waiting else self.new_election_deadline()  # type: ignore[union-attr]
        self.transition_to(Unattached(deadline_ms), epoch)

    def become_follower(self, leader_id: int, epoch: int, addresses: tuple[ListenerAddress, ...]) -> None:
        """Follow a leader; without a known address the replica stays unattached."""
        known = addresses or self._voter_addresses(leader_id)
        self.transition_to(self._follower_or_unattached(leader_id, known), epoch)
        self.leader_addresses = known

    def _follower_or_unattached(self, leader_id: int, addresses: tuple[ListenerAddress, ...]) -> Follower | Unattached:
        if not addresses:
            return Unattached(self.new_election_deadline(), leader_id)
        patience_ms = self.times.fetch_timeout_ms
        return Follower(leader_id, self.new_fetch_deadline(), next_voter_request_ms=self.mono_ms + patience_ms)

    def become_prospective(self, vote: ReplicaKey | None = None) -> None:
        """Start a pre-vote."""
        known = None if self.leader_id < 0 else self.leader_id
        if known == self.local.key.node_id:
            known = None
        role = Prospective(self._new_tally(), self.new_election_deadline(), known)
        self.transition_to(role, self.epoch, vote)
        if role.tally.is_won:
            self.become_candidate()

    def become_candidate(self) -> None:
        """Start an election in the next epoch."""
        tally = self._new_tally()
        self.transition_to(Candidate(tally, self.new_election_deadline()), self.epoch + 1, self.local.key)
        if tally.is_won:
            self.become_leader(tally)

    def become_leader(self, tally: VoteTally) -> None:
        """Start leading; a voter set that is not in the log as it is now is appended with the first batch."""
        voters, local = self.voters, self.local
        progress = ReplicaProgress(local.key, epoch_start_offset=self.log.end.offset, mono_ms=self.mono_ms)
        known = voters.with_voter(local)
        role = Leader(progress, tally.granting_voters, known)
        append_voters = None
        if self.log.kraft_version.latest and (self.log.voters.latest_offset == -1 or known != voters):
            append_voters = AppendVoters(self.epoch, known, self.log.kraft_version.latest)
            role.appending_after = self.log.voters.latest_offset
        self.transition_to(role, self.epoch)
        self.effects.append(BecomeLeader(self.epoch, tally.granting_voters, append_voters))

    def resign(self) -> None:
        """Resign, and send EndQuorumEpoch so that followers need not wait for their fetch timeout."""
        assert isinstance(self.role, Leader), "only a leader resigns"
        preferred_successors = self.role.progress.by_end_offset(self.voters)
        unacked_voters = {key.node_id for key in preferred_successors}
        self.transition_to(Resigned(self.new_election_deadline(), preferred_successors, unacked_voters), self.epoch)

    def pre_vote_lost(self, role: Prospective) -> None:
        """A majority rejected the pre-vote: go back to the known leader, if any."""
        if role.leader_id is not None:
            self.become_follower(role.leader_id, self.epoch, self.leader_addresses)
        else:
            self.become_unattached(self.epoch)

    # ------------------------------------------------------------ the leader
    def learn_leader(self, epoch: int, leader_id: int, addresses: tuple[ListenerAddress, ...]) -> bool:
        """Apply an epoch and its leader; returns whether the role changed."""
        if epoch < self.epoch:
            return False
        if leader_id not in (-1, self.local.key.node_id) and (epoch > self.epoch or self._accepts_leader(addresses)):
            self.become_follower(leader_id, epoch, addresses)
            return True
        if epoch > self.epoch:
            self.become_unattached(epoch)
            return True
        if leader_id == self.leader_id and len(addresses) > len(self.leader_addresses):
            self.leader_addresses = addresses
        return False

    def _accepts_leader(self, addresses: tuple[ListenerAddress, ...]) -> bool:
        """Whether to follow a leader that is named for the current epoch."""
        role = self.role
        if isinstance(role, Unattached) and role.leader_id is not None:
            return bool(addresses)
        return isinstance(role, Unattached | Candidate | Prospective) and self.leader_id < 0
