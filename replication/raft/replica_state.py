"""What a replica is in the quorum: its epoch, its vote, its role, and how these change.

RULES    1. What must not be forgotten is durable before anything that rests on it leaves: `Persist` stands before it.
         2. A replica that led an epoch before it was started again does not lead it on; one that stood for election in an
            epoch stands for it again.
         3. A leader that stays leader of its epoch in the memory of others, having resigned, says so: it is not voted for anew.
         4. The only voter asks nobody: it leads as soon as it is started.
         5. Whoever goes on without a leader stands for election no later than it would have (KIP-996).
         6. The first voter that is started and knows no leader stands for election at once, and so does who led: nobody else
            is disturbed by a vote before the vote, and a cluster that is started need not miss a leader first.
         7. Who does without a silent leader draws when: its followers heard it at the same moment last, and two that stand for
            election at once split the vote and lose an election timeout. Apache Kafka's do not draw there.
NOT HERE What brings a change about: votes (`elections.py`), the leader's word (`follower_fetch.py`), time (`raft.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from protocol.errors import ErrorCode
from replication.raft import rpc_messages
from replication.raft.follower_log_sync import Pull
from replication.raft.raft_log import Answer, Effect, ElectionState, Lead, NameVoters, Persist, ReplicaLog
from replication.raft.replica_progress import Progress
from replication.raft.request_tracker import Asking
from replication.raft.roles import Ballot, Candidate, Follower, Leader, Prospective, Resigned, Role, Unattached
from replication.raft.rpc_messages import Who
from replication.raft.voters import Address, ReplicaKey, Voter, VoterSet

_APART: Final = 10
"""The part of a fetch timeout over which followers spread."""


class QuorumTimes(NamedTuple):
    """Kafka's controller.quorum.* settings, in milliseconds."""

    election_timeout_ms: int = 1000
    fetch_timeout_ms: int = 2000
    election_backoff_max_ms: int = 1000
    request_timeout_ms: int = 2000
    retry_backoff_ms: int = 20


class Standing:
    """One replica's place in the quorum."""

    def __init__(
        self,
        own: Voter,
        cluster_id: str,
        log: ReplicaLog,
        state: ElectionState,
        *,
        times: QuorumTimes,
        jitter: Callable[[int], int],
        mono_ms: int,
    ) -> None:
        self.own = own
        self.cluster_id = cluster_id
        self.log = log
        self.times = times
        self.effects: list[Effect] = []
        self.asking = Asking(self.effects, times.retry_backoff_ms)
        self.pull = Pull(log)
        self.epoch = max(state.epoch, log.end.epoch)
        self.leader_addresses: tuple[Address, ...] = ()
        self._jitter = jitter
        is_newest = state.epoch == self.epoch
        self.voted = state.voted if is_newest else None
        self.role: Role = self._first_role(state.leader_id if is_newest else -1, mono_ms)
        if len(self.voters) == 1 and self.is_voter:
            self._stand_alone(mono_ms)

    def _first_role(self, leader_id: int, mono_ms: int) -> Role:
        """Rule 2."""
        if leader_id == self.own.key.node_id:
            return Resigned(mono_ms, [], set())
        if leader_id < 0:
            is_candidate = self.is_voter and self.voted is not None and self.voted.matches(self.own.key)
            if is_candidate:
                return Candidate(self._ballot(), self.election_deadline(mono_ms))
            return Unattached(self._first_deadline(mono_ms))
        return self._beside(leader_id, self._addresses_of_voter(leader_id), mono_ms)

    def _stand_alone(self, mono_ms: int) -> None:
        """Rule 4."""
        if isinstance(self.role, Candidate):
            self.lead(self.role.ballot, mono_ms)
        else:
            self.prospective(mono_ms)

    # ------------------------------------------------------------ what it is
    @property
    def voters(self) -> VoterSet:
        """Who has a vote now."""
        return self.log.voters.latest

    @property
    def is_voter(self) -> bool:
        """Whether this replica has one."""
        return self.own.key in self.voters

    @property
    def leader_id(self) -> int:
        """The leader of this epoch; -1: not known."""
        role = self.role
        if isinstance(role, Leader | Resigned):  # rule 3
            return self.own.key.node_id
        if isinstance(role, Follower | Unattached | Prospective) and role.leader_id is not None:
            return role.leader_id
        return -1

    @property
    def who(self) -> Who:
        """What is told to others."""
        leader_id = self.leader_id
        return Who(leader_id, self.epoch, None if leader_id < 0 else self.address_of(leader_id))

    @property
    def listener(self) -> str:
        """The listener at which voters reach each other."""
        return self.own.addresses[0].listener if self.own.addresses else ""

    def address_of(self, node_id: int) -> Address | None:
        """Where a replica listens; None: it is not known, or a setting."""
        if node_id == self.own.key.node_id:
            known = self.own.addresses
        else:
            known = self.leader_addresses if node_id == self.leader_id else ()
        known = known or self._addresses_of_voter(node_id)
        return next((address for address in known if address.listener == self.listener), None)

    def _addresses_of_voter(self, node_id: int) -> tuple[Address, ...]:
        voter = self.voters.get(node_id)
        return voter.addresses if voter is not None else ()

    def election_deadline(self, mono_ms: int) -> int:
        """When to stand for election, drawn anew."""
        timeout_ms = self.times.election_timeout_ms
        return mono_ms + timeout_ms + self._jitter(timeout_ms)

    def fetch_deadline(self, mono_ms: int) -> int:
        """When to do without a leader that is silent from now on; rule 7."""
        timeout_ms = self.times.fetch_timeout_ms
        return mono_ms + timeout_ms + self._jitter(timeout_ms // _APART)

    def _first_deadline(self, mono_ms: int) -> int:
        """When to stand for election after the start (rule 6)."""
        is_first = self.is_voter and self.own.key.node_id == min(self.voters.node_ids)
        return mono_ms if is_first else self.election_deadline(mono_ms)

    def _ballot(self) -> Ballot:
        return Ballot(self.voters, self.own.key)

    # ------------------------------------------------------------ what it becomes
    def become(self, role: Role, epoch: int, vote: ReplicaKey | None = None) -> None:
        """Change the role, perhaps the epoch; what must not be forgotten of it comes before all that follows (rule 1)."""
        assert epoch >= self.epoch, "an epoch is not gone back to"
        before = (self.epoch, self.leader_id, self.voted)
        if isinstance(self.role, Leader) and (change := self.role.change) is not None and not change.is_answered:
            response = rpc_messages.change_response(change.request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self.effects.append(Answer(change.request, response))
        self.voted = vote or (self.voted if epoch == self.epoch else None)
        self.epoch, self.role = epoch, role
        self.asking.forget_all()
        self.pull.new_leader()
        if self.leader_id != before[1]:
            self.leader_addresses = ()
        if before == (self.epoch, self.leader_id, self.voted):
            return
        if self.effects and isinstance(self.effects[-1], Persist):  # nothing rests on it yet
            self.effects.pop()
        self.effects.append(Persist(ElectionState(self.epoch, self.leader_id, self.voted)))

    def unattached(self, epoch: int, mono_ms: int) -> None:
        """Follow nobody."""
        role = self.role
        is_lost = isinstance(role, Prospective) and role.ballot.is_lost
        is_waiting = isinstance(role, Unattached | Candidate | Prospective | Resigned) and not is_lost
        deadline_ms = role.deadline_ms if is_waiting else self.election_deadline(mono_ms)  # type: ignore[union-attr]
        self.become(Unattached(deadline_ms), epoch)

    def follow(self, leader_id: int, epoch: int, addresses: tuple[Address, ...], mono_ms: int) -> None:
        """Follow a leader, if it is known where that is."""
        known = addresses or self._addresses_of_voter(leader_id)
        self.become(self._beside(leader_id, known, mono_ms), epoch)
        self.leader_addresses = known

    def _beside(self, leader_id: int, addresses: tuple[Address, ...], mono_ms: int) -> Follower | Unattached:
        if not addresses:
            return Unattached(self.election_deadline(mono_ms), leader_id)
        patience_ms = self.times.fetch_timeout_ms
        return Follower(leader_id, self.fetch_deadline(mono_ms), next_voter_request_ms=mono_ms + patience_ms)

    def prospective(self, mono_ms: int, vote: ReplicaKey | None = None) -> None:
        """Find out whether an election would be won."""
        known = None if self.leader_id < 0 else self.leader_id
        if known == self.own.key.node_id:
            known = None
        role = Prospective(self._ballot(), self.election_deadline(mono_ms), known)
        self.become(role, self.epoch, vote)
        if role.ballot.is_won:
            self.candidate(mono_ms)

    def candidate(self, mono_ms: int) -> None:
        """Begin an epoch, and stand for its election."""
        ballot = self._ballot()
        self.become(Candidate(ballot, self.election_deadline(mono_ms)), self.epoch + 1, self.own.key)
        if ballot.is_won:
            self.lead(ballot, mono_ms)

    def lead(self, ballot: Ballot, mono_ms: int) -> None:
        """Begin to lead; voters that were never in the log, or not as this one is, are named at once."""
        voters, own = self.voters, self.own
        progress = Progress(own.key, epoch_start_offset=self.log.end.offset, mono_ms=mono_ms)
        known = voters.with_voter(own)
        role = Leader(progress, ballot.granting, known)
        naming = None
        if self.log.kraft_version.latest and (self.log.voters.latest_offset == -1 or known != voters):
            naming = NameVoters(self.epoch, known, self.log.kraft_version.latest)
            role.named_after = self.log.voters.latest_offset
        self.become(role, self.epoch)
        self.effects.append(Lead(self.epoch, ballot.granting, naming))

    def resign(self, mono_ms: int) -> None:
        """Stop leading, and tell the others so that nobody waits until this replica is missed."""
        assert isinstance(self.role, Leader), "only a leader resigns"
        preferred = self.role.progress.by_end_offset(self.voters)
        untold = {key.node_id for key in preferred}
        self.become(Resigned(self.election_deadline(mono_ms), preferred, untold), self.epoch)

    def lost_before_the_vote(self, role: Prospective, mono_ms: int) -> None:
        """The others would not elect this replica: they may know a leader that it does not."""
        if role.leader_id is not None:
            self.follow(role.leader_id, self.epoch, self.leader_addresses, mono_ms)
        else:
            self.unattached(self.epoch, mono_ms)

    # ------------------------------------------------------------ what it hears
    def learn(self, epoch: int, leader_id: int, addresses: tuple[Address, ...], mono_ms: int) -> bool:
        """Take note of an epoch and its leader; whether that changed the role."""
        if epoch < self.epoch:
            return False
        if leader_id not in (-1, self.own.key.node_id) and (epoch > self.epoch or self._needs_leader(addresses)):
            self.follow(leader_id, epoch, addresses, mono_ms)
            return True
        if epoch > self.epoch:
            self.unattached(epoch, mono_ms)
            return True
        if leader_id == self.leader_id and len(addresses) > len(self.leader_addresses):
            self.leader_addresses = addresses
        return False

    def _needs_leader(self, addresses: tuple[Address, ...]) -> bool:
        """Whether to follow the leader of this epoch when somebody names it."""
        role = self.role
        if isinstance(role, Unattached) and role.leader_id is not None:
            return bool(addresses)
        return isinstance(role, Unattached | Candidate | Prospective) and self.leader_id < 0
