"""Raft as Apache Kafka speaks it: elections with a vote before the vote, a log that followers pull (KIP-595, 853, 996).

RULES    1. One leader per epoch; what must not be forgotten is durable before anything that rests on it leaves (`replica_state.py`).
         2. A leader that no majority fetched from for 1.5 fetch timeouts resigns.
         3. A role does not end while something is being written: the log that an election is about stands still.
NOT HERE Elections (`elections.py`), what a leader sends (`leader_fetch.py`) and counts (`replica_progress.py`), what a follower asks for
         (`follower_fetch.py`, `voter_requests.py`) and keeps (`follower_log_sync.py`), changes of the voters (`voter_changes.py`); sockets,
         files and time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from protocol.errors import ErrorCode, KafkaError
from protocol.messages.cluster import AddRaftVoterRequest, RemoveRaftVoterRequest
from protocol.messages.metadata import ApiVersionsRequest
from protocol.messages.produce_fetch import FetchRequest
from protocol.messages.raft import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    UpdateRaftVoterRequest,
    VoteRequest,
)
from protocol.schema import Message
from replication.raft import rpc_messages
from replication.raft.elections import Voting
from replication.raft.follower_fetch import Following
from replication.raft.leader_fetch import Serving
from replication.raft.raft_log import Effect, ElectionState, ReplicaLog
from replication.raft.replica_state import QuorumTimes, Standing
from replication.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Role
from replication.raft.voter_changes import VoterChanges
from replication.raft.voter_requests import VoterRequests
from replication.raft.voters import Voter, VoterSet


class Raft:
    """One replica of the metadata log: a voter or an observer."""

    def __init__(
        self,
        own: Voter,
        cluster_id: str,
        log: ReplicaLog,
        state: ElectionState,
        *,
        times: QuorumTimes,
        bootstrap_servers: int = 0,
        joins: bool = False,
        jitter: Callable[[int], int],
        mono_ms: int,
    ) -> None:
        """Begin where the replica ended.

        Args:
            own: who this is, where it listens (first for voters), and what it supports.
            cluster_id: the cluster's.
            log: as it is on disk.
            state: what it must not forget.
            times: how long it waits.
            bootstrap_servers: how many there are to ask for the leader, besides the voters.
            joins: whether it makes itself a voter.
            jitter: a random number below its argument.
            mono_ms: now.
        """
        self._log = log
        self._standing = Standing(own, cluster_id, log, state, times=times, jitter=jitter, mono_ms=mono_ms)
        self._voting = Voting(self._standing)
        self._changes = VoterChanges(self._standing)
        self._serving = Serving(self._standing, self._changes)
        self._requests = VoterRequests(self._standing, joins=joins)
        self._following = Following(self._standing, self._requests, bootstrap_servers)

    # ------------------------------------------------------------ what others may know
    @property
    def effects(self) -> list[Effect]:
        """What is to be done, in order; whoever does it takes it out."""
        return self._standing.effects

    @property
    def own(self) -> Voter:
        """Who this replica is."""
        return self._standing.own

    @property
    def epoch(self) -> int:
        """The newest epoch."""
        return self._standing.epoch

    @property
    def role(self) -> Role:
        """What this replica is in it."""
        return self._standing.role

    @property
    def leader_id(self) -> int:
        """The leader of this epoch, or who led it and resigned; -1: not known."""
        return self._standing.leader_id

    @property
    def high_watermark(self) -> int:
        """What lies before is committed."""
        return self._standing.pull.high_watermark

    @property
    def voters(self) -> VoterSet:
        """Who has a vote now."""
        return self._standing.voters

    @property
    def is_voter(self) -> bool:
        """Whether this replica has one."""
        return self._standing.is_voter

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do next; None: not by itself."""
        standing, role = self._standing, self.role
        waits = standing.asking.next_retry_ms
        if isinstance(role, Leader):
            waits += role.to_begin.values()
            waits += [] if role.change is None else [role.change.deadline_ms]
            if (heard_ms := role.progress.majority_heard_ms(self.voters)) is not None:
                waits.append(heard_ms + self._patience_ms)
        elif not standing.pull.is_writing:
            if self.is_voter or isinstance(role, Resigned | Candidate | Prospective):
                waits.append(role.deadline_ms)
            if isinstance(role, Follower) and self._following.is_free and standing.asking.may_ask(role.leader_id):
                waits.append(role.next_voter_request_ms)
        return min(waits, default=None)

    # ------------------------------------------------------------ time
    def tick(self, mono_ms: int) -> None:
        """Do what is due."""
        self._standing.asking.forgive(mono_ms)
        while self._ends_role(mono_ms):
            pass
        role = self.role
        if isinstance(role, Leader):
            self._changes.expire(role, mono_ms)
            self._voting.tell_of_epoch(role, mono_ms)
        elif isinstance(role, Resigned):
            self._voting.tell_of_end(role)
        elif isinstance(role, Prospective | Candidate):
            self._voting.ask_for_votes(role)
        else:
            self._following.ask(role, mono_ms)

    def _ends_role(self, mono_ms: int) -> bool:
        """Leave the role whose time is over; whether it was."""
        standing, role = self._standing, self.role
        if isinstance(role, Leader):
            heard_ms = role.progress.majority_heard_ms(self.voters)
            is_deserted = heard_ms is not None and mono_ms >= heard_ms + self._patience_ms
            if is_deserted:
                standing.resign(mono_ms)
            return is_deserted
        if mono_ms < role.deadline_ms or standing.pull.is_writing:  # rule 3
            return False
        if isinstance(role, Resigned):
            standing.unattached(self.epoch + 1, mono_ms)
        elif isinstance(role, Prospective):
            standing.lost_before_the_vote(role, mono_ms)
        elif self.is_voter:
            standing.prospective(mono_ms)
        else:
            return False
        return True

    @property
    def _patience_ms(self) -> int:
        """Rule 2."""
        return self._standing.times.fetch_timeout_ms * 3 // 2

    def resign(self, mono_ms: int) -> None:
        """Stop leading: this replica is about to end, or does not want to lead."""
        self._standing.resign(mono_ms)
        self.tick(mono_ms)

    def upgrade(self, kraft_version: int, *, validate_only: bool = False) -> KafkaError | None:
        """As leader, raise kraft.version; None: it is done as soon as that is committed."""
        return self._changes.upgrade(kraft_version, validate_only=validate_only)

    # ------------------------------------------------------------ what others ask
    def receive(self, request: Message, mono_ms: int, *, may_wait: bool = False) -> Message | None:
        """Answer a request of another replica; the answer leaves when the effects before it are done.

        Args:
            request: Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch or FetchSnapshot, or a change of the voters, for which the
                answer may be None: it comes as an effect.
            mono_ms: now.
            may_wait: None may be the answer to a Fetch: there is nothing new; ask again when there is, or later.
        """
        if isinstance(request, AddRaftVoterRequest):
            answer = self._changes.add(request, mono_ms)
        elif isinstance(request, RemoveRaftVoterRequest):
            answer = self._changes.remove(request, mono_ms)
        elif isinstance(request, UpdateRaftVoterRequest):
            answer = self._changes.update(request, self._serving.refusal(request.current_leader_epoch), mono_ms)
        else:
            answer = self._of_partition(request, mono_ms, may_wait=may_wait)
        self.tick(mono_ms)
        return answer

    def _of_partition(self, request: Message, mono_ms: int, *, may_wait: bool) -> Message | None:
        cluster_id = request.cluster_id  # type: ignore[attr-defined]
        if cluster_id not in (None, self._standing.cluster_id):
            return rpc_messages.refused(request, ErrorCode.INCONSISTENT_CLUSTER_ID)
        partition = rpc_messages.only_partition(request)
        if partition is None:
            if isinstance(request, FetchSnapshotRequest):
                return rpc_messages.unknown_snapshot_partition(request, self._standing.who)
            return rpc_messages.refused(request, ErrorCode.INVALID_REQUEST)
        if isinstance(request, FetchRequest):
            return self._serving.fetched(request, partition, mono_ms, may_wait=may_wait)
        if isinstance(request, FetchSnapshotRequest):
            return self._serving.snapshot_fetched(request, partition, mono_ms)
        if isinstance(request, VoteRequest):
            return self._voting.vote(request, partition, mono_ms)
        if isinstance(request, BeginQuorumEpochRequest):
            return self._voting.epoch_begun(request, partition, mono_ms)
        assert isinstance(request, EndQuorumEpochRequest), f"{request!r} is no request of Raft"
        return self._voting.epoch_ended(request, partition, mono_ms)

    # ------------------------------------------------------------ what others answer
    def answered(self, peer: int, token: int, response: Any, mono_ms: int) -> None:
        """A replica answered a `Send`; None: it did not, in time."""
        request = self._standing.asking.answered(peer, token)
        if request is None:
            return
        if isinstance(request, ApiVersionsRequest):
            self._changes.supported(peer, response, mono_ms)
        elif response is None:
            self._unanswered(peer, mono_ms)
        elif isinstance(request, AddRaftVoterRequest | RemoveRaftVoterRequest):
            self._requests.answered(peer, response, mono_ms)
        elif isinstance(request, UpdateRaftVoterRequest):
            if not self._learns(response.current_leader, response, mono_ms):
                self._requests.answered(peer, response, mono_ms)
        else:
            self._partition_answered(peer, request, response, mono_ms)
        self.tick(mono_ms)

    def _unanswered(self, peer: int, mono_ms: int) -> None:
        self._standing.asking.back_off(peer, mono_ms)
        self._following.failed()

    def _partition_answered(self, peer: int, request: Message, response: Any, mono_ms: int) -> None:
        partition = rpc_messages.only_partition(response)
        if partition is None:
            if isinstance(request, VoteRequest) and response.error_code == ErrorCode.UNSUPPORTED_VERSION:
                self._voting.vote_not_known(mono_ms)
            else:
                self._unanswered(peer, mono_ms)
            return
        if isinstance(request, FetchRequest | FetchSnapshotRequest):
            self._learns(partition.current_leader, response, mono_ms)
            self._following.answered(peer, partition, mono_ms)
        elif self._learns(partition, response, mono_ms):
            return
        elif isinstance(request, VoteRequest):
            self._voting.vote_answered(peer, partition, mono_ms)
        elif isinstance(self.role, Resigned):
            self.role.untold.discard(peer)

    def _learns(self, leader: Any, response: Any, mono_ms: int) -> bool:
        """Take note of the leader that an answer names; whether that changed the role."""
        if leader is None:
            return False
        addresses = rpc_messages.addresses_of(leader.leader_id, response, self._standing.listener)
        return self._standing.learn(leader.leader_epoch, leader.leader_id, addresses, mono_ms)

    # ------------------------------------------------------------ what was done
    def flushed(self, mono_ms: int) -> None:
        """More of this replica's log is durable."""
        if isinstance(self.role, Leader):
            self._serving.commit(self.role, mono_ms)
        self.tick(mono_ms)

    def written(self, mono_ms: int) -> None:
        """What was to be appended, cut or kept is durable, or was refused."""
        self._standing.pull.written()
        self.tick(mono_ms)
