"""Raft as Apache Kafka speaks it: elections with a vote before the vote, a log that followers pull (KIP-595, 996).

RULES    1. One leader per epoch: a replica votes once in an epoch, and what it must not forget is durable before anything
            that rests on it leaves (`Persist` stands before it among the effects).
         2. A vote goes to a log that is at least as long, by epoch and then by offset.
         3. Who hears from a leader helps nobody to an election: the vote before the vote changes nothing, neither here
            nor there (KIP-996).
         4. A leader that no majority fetched from for 1.5 fetch timeouts resigns; so does one that is no voter any
            more as soon as that is committed.
         5. A replica that led an epoch before it was started again does not lead it on.
NOT HERE What a follower does with what it fetched (`pulling.py`), what a leader counts (`progress.py`) and sends
         (`serving.py`); sockets, files and time; changes of the voters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from protocol.errors import ErrorCode
from protocol.messages.produce_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from protocol.messages.raft import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchSnapshotPartitionResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumLeader,
    VoteRequest,
    VoteResponse,
)
from protocol.schema import Message
from replication.raft import letters
from replication.raft.letters import only_partition, quorum_response, refused, vote_response
from replication.raft.progress import Progress
from replication.raft.pulling import Pull
from replication.raft.replica_log import Effect, ElectionState, EpochEnd, Lead, Persist, ReplicaLog, Send
from replication.raft.roles import Ballot, Candidate, Follower, Leader, Prospective, Resigned, Role, Unattached
from replication.raft.serving import parting, snapshot_piece
from replication.raft.voters import ReplicaKey, VoterSet


class QuorumTimes(NamedTuple):
    """Kafka's controller.quorum.* settings, in milliseconds."""

    election_timeout_ms: int = 1000
    fetch_timeout_ms: int = 2000
    election_backoff_max_ms: int = 1000
    retry_backoff_ms: int = 20


class Raft:
    """One replica of the metadata log: a voter or an observer."""

    def __init__(
        self,
        own: ReplicaKey,
        cluster_id: str,
        log: ReplicaLog,
        state: ElectionState,
        *,
        times: QuorumTimes,
        bootstrap_servers: int = 0,
        jitter: Callable[[int], int],
        mono_ms: int,
    ) -> None:
        """Begin where the replica ended.

        Args:
            own: who this is.
            cluster_id: the cluster's.
            log: as it is on disk.
            state: what it must not forget.
            times: how long it waits.
            bootstrap_servers: how many there are to ask for the leader, besides the voters.
            jitter: a random number below its argument.
            mono_ms: now.
        """
        self.own = own
        self.epoch = max(state.epoch, log.end.epoch)
        self.effects: list[Effect] = []
        self._cluster_id = cluster_id
        self._log = log
        self._times = times
        self._jitter = jitter
        self._bootstrap_servers = bootstrap_servers
        self._voted = state.voted if state.epoch == self.epoch else None
        self._tokens = 0
        self._asked: dict[int, tuple[int, Message]] = {}
        self._retry_ms: dict[int, int] = {}
        self._next_server = 0
        self._pull = Pull(log)
        self.role: Role = Unattached(self._election_deadline(mono_ms))
        leader_id = state.leader_id if state.epoch == self.epoch else -1
        if leader_id == own.node_id:
            self.role = Resigned(self._election_deadline(mono_ms), [], set())
        elif leader_id >= 0:
            self.role = Follower(leader_id, mono_ms + times.fetch_timeout_ms)

    # ------------------------------------------------------------ what others may know
    @property
    def leader_id(self) -> int:
        """The leader of this epoch; -1: not known."""
        role = self.role
        if isinstance(role, Leader):
            return self.own.node_id
        if isinstance(role, Follower | Unattached | Prospective) and role.leader_id is not None:
            return role.leader_id
        return -1

    @property
    def high_watermark(self) -> int:
        """What lies before is committed."""
        return self._pull.high_watermark

    @property
    def voters(self) -> VoterSet:
        """Who has a vote now."""
        return self._log.voters.latest

    @property
    def is_voter(self) -> bool:
        """Whether this replica has one."""
        return self.own in self.voters

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do next; None: not by itself."""
        role = self.role
        waits = list(self._retry_ms.values())
        if isinstance(role, Leader):
            waits += role.to_begin.values()
            if (heard_ms := role.progress.majority_heard_ms(self.voters)) is not None:
                waits.append(heard_ms + self._patience_ms)
        elif role.deadline_ms is not None and not self._pull.is_writing:
            waits.append(role.deadline_ms)
        return min(waits, default=None)

    # ------------------------------------------------------------ time
    def tick(self, mono_ms: int) -> None:
        """Do what is due."""
        for peer in [peer for peer, retry_ms in self._retry_ms.items() if retry_ms <= mono_ms]:
            del self._retry_ms[peer]
        self._end_waiting(mono_ms)
        role = self.role
        if isinstance(role, Leader):
            self._tell_of_epoch(role, mono_ms)
        elif isinstance(role, Resigned):
            self._tell_of_end(role)
        elif isinstance(role, Prospective | Candidate):
            self._ask_for_votes(role)
        else:
            self._fetch()

    def _end_waiting(self, mono_ms: int) -> None:
        """Leave the role whose time is over."""
        role = self.role
        if isinstance(role, Leader):
            heard_ms = role.progress.majority_heard_ms(self.voters)
            if heard_ms is not None and mono_ms >= heard_ms + self._patience_ms:
                self.resign(mono_ms)
            return
        if role.deadline_ms is None or mono_ms < role.deadline_ms or self._pull.is_writing:
            return
        if isinstance(role, Resigned) and not self._is_alone:
            self._unattached(self.epoch + 1, mono_ms)
        elif not self.is_voter:
            self._unattached(self.epoch, mono_ms)
        elif isinstance(role, Prospective):
            self._lost_before_the_vote(role, mono_ms)
        else:
            self._prospective(mono_ms)

    @property
    def _is_alone(self) -> bool:
        """Whether there is nobody else to ask for a vote."""
        return self.is_voter and len(self.voters) == 1

    @property
    def _patience_ms(self) -> int:
        return self._times.fetch_timeout_ms * 3 // 2

    def _election_deadline(self, mono_ms: int) -> int:
        if self._is_alone:
            return mono_ms
        timeout_ms = self._times.election_timeout_ms
        return mono_ms + timeout_ms + self._jitter(timeout_ms)

    # ------------------------------------------------------------ roles
    def _become(self, role: Role, epoch: int, vote: ReplicaKey | None = None) -> None:
        """Change the role, perhaps the epoch; what must not be forgotten of it comes before all that follows."""
        before = (self.epoch, self.leader_id, self._voted)
        assert epoch >= self.epoch, "an epoch is not gone back to"
        self._voted = vote or (self._voted if epoch == self.epoch else None)
        self.epoch, self.role = epoch, role
        self._asked.clear()
        self._retry_ms.clear()
        self._pull.new_leader()
        if before == (self.epoch, self.leader_id, self._voted):
            return
        if self.effects and isinstance(self.effects[-1], Persist):  # nothing rests on it yet
            self.effects.pop()
        self.effects.append(Persist(ElectionState(self.epoch, self.leader_id, self._voted)))

    def _unattached(self, epoch: int, mono_ms: int) -> None:
        deadline_ms = self._election_deadline(mono_ms) if self.is_voter else None
        self._become(Unattached(deadline_ms), epoch)

    def _follow(self, leader_id: int, epoch: int, mono_ms: int) -> None:
        self._become(Follower(leader_id, mono_ms + self._times.fetch_timeout_ms), epoch)

    def _prospective(self, mono_ms: int) -> None:
        leader_id = self.leader_id
        ballot = Ballot(self.voters, self.own)
        known = None if leader_id < 0 else leader_id
        self._become(Prospective(ballot, self._election_deadline(mono_ms), known), self.epoch)
        if ballot.is_won:
            self._candidate(mono_ms)

    def _candidate(self, mono_ms: int) -> None:
        ballot = Ballot(self.voters, self.own)
        self._become(Candidate(ballot, self._election_deadline(mono_ms)), self.epoch + 1, self.own)
        if ballot.is_won:
            self._lead(ballot, mono_ms)

    def _lead(self, ballot: Ballot, mono_ms: int) -> None:
        progress = Progress(self.own, epoch_start_offset=self._log.end.offset, mono_ms=mono_ms)
        self._become(Leader(progress, ballot.granting), self.epoch)
        self.effects.append(Lead(self.epoch, ballot.granting))

    def resign(self, mono_ms: int) -> None:
        """Stop leading, and tell the others so that nobody waits until this replica is missed."""
        assert isinstance(self.role, Leader), "only a leader resigns"
        preferred = self.role.progress.by_end_offset(self.voters)
        untold = {key.node_id for key in preferred}
        self._become(Resigned(self._election_deadline(mono_ms), preferred, untold), self.epoch)

    def _lost_before_the_vote(self, role: Prospective, mono_ms: int) -> None:
        if role.leader_id is not None:
            self._follow(role.leader_id, self.epoch, mono_ms)
        else:
            self._unattached(self.epoch, mono_ms)

    def _learn(self, epoch: int, leader_id: int, mono_ms: int) -> bool:
        """Take note of an epoch and its leader; whether that changed the role."""
        if epoch < self.epoch:
            return False
        if leader_id not in (-1, self.own.node_id) and (epoch > self.epoch or self._needs_leader):
            self._follow(leader_id, epoch, mono_ms)
            return True
        if epoch > self.epoch:
            self._unattached(epoch, mono_ms)
            return True
        return False

    @property
    def _needs_leader(self) -> bool:
        """Whether to follow the leader of this epoch when somebody names it."""
        role = self.role
        return isinstance(role, Unattached | Candidate | Prospective) and self.leader_id < 0

    # ------------------------------------------------------------ asking
    def _may_ask(self, peer: int) -> bool:
        return peer not in self._asked and peer not in self._retry_ms

    def _ask(self, peer: int, request: Message) -> None:
        self._tokens += 1
        self._asked[peer] = (self._tokens, request)
        self.effects.append(Send(peer, request, self._tokens))

    def _ask_for_votes(self, role: Prospective | Candidate) -> None:
        is_pre_vote = isinstance(role, Prospective)
        for node_id in role.ballot.unanswered:
            voter = self.voters.get(node_id)
            if voter is not None and self._may_ask(node_id):
                request = letters.vote_request(
                    self._cluster_id,
                    self.own,
                    voter.key,
                    epoch=self.epoch,
                    end=self._log.end,
                    is_pre_vote=is_pre_vote,
                )
                self._ask(node_id, request)

    def _tell_of_epoch(self, role: Leader, mono_ms: int) -> None:
        """Voters that do not fetch may not know who leads."""
        interval_ms = self._times.fetch_timeout_ms // 2
        for voter in self.voters:
            node_id = voter.key.node_id
            if voter.key.is_same(self.own) or role.to_begin.get(node_id, 0) > mono_ms:
                continue
            role.to_begin[node_id] = mono_ms + interval_ms
            if self._may_ask(node_id) and not role.progress.has_fetched(voter.key, mono_ms - interval_ms):
                request = letters.begin_epoch_request(self._cluster_id, self.own.node_id, voter.key, self.epoch)
                self._ask(node_id, request)
        role.progress.forget_silent_observers(self.voters, mono_ms)

    def _tell_of_end(self, role: Resigned) -> None:
        for node_id in sorted(role.untold):
            if self._may_ask(node_id):
                request = letters.end_epoch_request(self._cluster_id, self.own.node_id, self.epoch, role.preferred)
                self._ask(node_id, request)

    def _fetch(self) -> None:
        """Ask the leader for what comes next; an observer that knows none asks whom it knows, in turn.

        The next offset is this replica's word that all before it is durable.
        """
        if self._pull.is_writing or self._asked or self._log.flushed_offset < self._log.end.offset:
            return
        leader_id = self.leader_id if self.leader_id >= 0 or self.is_voter else self._somebody()
        if leader_id != -1 and self._may_ask(leader_id):
            self._ask(leader_id, self._pull.request(self._cluster_id, self.own, self.epoch))

    def _somebody(self) -> int:
        """Who may know the leader: a voter, or a bootstrap server; -1: nobody is known."""
        servers = [node_id for node_id in self.voters.node_ids if node_id != self.own.node_id]
        servers += [-2 - index for index in range(self._bootstrap_servers)]
        return servers[self._next_server % len(servers)] if servers else -1

    # ------------------------------------------------------------ what others ask
    def receive(self, request: Message, mono_ms: int, *, may_wait: bool = False) -> Message | None:
        """Answer a request of another replica; the answer leaves when the effects before it are done.

        Args:
            request: Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch or FetchSnapshot.
            mono_ms: now.
            may_wait: None may be the answer to a Fetch: there is nothing new; ask again when there is, or later.
        """
        partition = only_partition(request)
        cluster_id = request.cluster_id  # type: ignore[attr-defined]
        if cluster_id is not None and cluster_id != self._cluster_id:
            return refused(request, ErrorCode.INCONSISTENT_CLUSTER_ID)
        if partition is None:
            return refused(request, ErrorCode.INVALID_REQUEST)
        answer = self._answer(request, partition, mono_ms, may_wait=may_wait)
        self.tick(mono_ms)
        return answer

    def _answer(self, request: Message, partition: Any, mono_ms: int, *, may_wait: bool) -> Message | None:
        if isinstance(request, VoteRequest):
            return self._vote(request, partition, mono_ms)
        if isinstance(request, BeginQuorumEpochRequest):
            return self._epoch_begun(request, partition, mono_ms)
        if isinstance(request, EndQuorumEpochRequest):
            return self._epoch_ended(partition, mono_ms)
        if isinstance(request, FetchRequest):
            return self._fetched(request, partition, mono_ms, may_wait=may_wait)
        assert isinstance(request, FetchSnapshotRequest), f"{request!r} is no request of Raft"
        return self._snapshot_fetched(request, partition)

    def _vote(self, request: VoteRequest, asked: Any, mono_ms: int) -> Message:
        key = ReplicaKey(asked.replica_id, asked.replica_directory_id)
        newest = asked.last_offset_epoch if asked.pre_vote else asked.last_offset_epoch + 1
        if asked.replica_epoch < self.epoch:
            code = ErrorCode.FENCED_LEADER_EPOCH
        elif min(asked.last_offset, asked.last_offset_epoch, asked.replica_id) < 0 or newest > asked.replica_epoch:
            code = ErrorCode.INVALID_REQUEST
        elif not self._is_meant(request.voter_id, asked.voter_directory_id):
            code = ErrorCode.INVALID_VOTER_KEY
        else:
            code = ErrorCode.NONE
        if code != ErrorCode.NONE:
            return vote_response(code, self.leader_id, self.epoch)
        if asked.replica_epoch > self.epoch:
            self._unattached(asked.replica_epoch, mono_ms)
        is_as_long = (asked.last_offset_epoch, asked.last_offset) >= tuple(self._log.end)
        is_granted = self._may_grant(key, is_as_long=is_as_long, is_pre_vote=asked.pre_vote)
        if is_granted and not asked.pre_vote and self._voted is None:
            self._become(Unattached(self._election_deadline(mono_ms)), self.epoch, key)
        return vote_response(code, self.leader_id, self.epoch, is_granted=is_granted)

    def _may_grant(self, key: ReplicaKey, *, is_as_long: bool, is_pre_vote: bool) -> bool:
        """Rules 1 to 3."""
        role = self.role
        if isinstance(role, Leader | Resigned):
            return False
        if is_pre_vote:
            return is_as_long and not (isinstance(role, Follower) and role.has_fetched)
        if self._voted is not None:
            return self._voted.is_same(key)
        return is_as_long and self.leader_id < 0

    def _is_meant(self, voter_id: int, directory_id: bytes) -> bool:
        """Whether a request is for this replica; it need not name anybody."""
        return voter_id < 0 or self.own.is_same(ReplicaKey(voter_id, directory_id))

    def _epoch_begun(self, request: BeginQuorumEpochRequest, told: Any, mono_ms: int) -> Message:
        code = self._heard_of(told, mono_ms)
        if code == ErrorCode.NONE and not self._is_meant(request.voter_id, told.voter_directory_id):
            code = ErrorCode.INVALID_VOTER_KEY
        return quorum_response(BeginQuorumEpochResponse, code, self.leader_id, self.epoch)

    def _epoch_ended(self, told: Any, mono_ms: int) -> Message:
        code = self._heard_of(told, mono_ms)
        if code == ErrorCode.NONE and self.is_voter:
            keys = [ReplicaKey(key.candidate_id, key.candidate_directory_id) for key in told.preferred_candidates]
            keys = keys or [ReplicaKey(node_id) for node_id in told.preferred_successors]
            self._stand_in_turn(keys, mono_ms)
        return quorum_response(EndQuorumEpochResponse, code, self.leader_id, self.epoch)

    def _heard_of(self, told: Any, mono_ms: int) -> ErrorCode:
        """Somebody says that it leads, or led, an epoch."""
        if told.leader_epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        is_other = told.leader_epoch == self.epoch and self.leader_id not in (-1, told.leader_id)
        if is_other or told.leader_id in (-1, self.own.node_id):
            return ErrorCode.INVALID_REQUEST
        self._learn(told.leader_epoch, told.leader_id, mono_ms)
        return ErrorCode.NONE

    def _stand_in_turn(self, preferred: list[ReplicaKey], mono_ms: int) -> None:
        """The leader is gone: the best stands for election at once, the others give it time."""
        role = self.role
        place = next((place for place, key in enumerate(preferred) if key.is_same(self.own)), len(preferred))
        if isinstance(role, Follower | Unattached):
            backoff_ms = min(self._times.election_backoff_max_ms, self._times.retry_backoff_ms << min(place, 16))
            role.deadline_ms = mono_ms + (backoff_ms + self._jitter(backoff_ms) if place else 0)
            if isinstance(role, Follower):
                role.has_fetched = False

    # ------------------------------------------------------------ serving the log
    def _fetched(
        self, request: FetchRequest, asked: FetchPartition, mono_ms: int, *, may_wait: bool
    ) -> FetchResponse | None:
        role = self.role
        code = self._refusal(asked.current_leader_epoch)
        if code == ErrorCode.NONE and (
            min(asked.fetch_offset, asked.last_fetched_epoch) < 0 or asked.last_fetched_epoch > self.epoch
        ):
            code = ErrorCode.INVALID_REQUEST
        if code != ErrorCode.NONE or not isinstance(role, Leader):
            return letters.fetch_response(self._partition(code))
        parted = parting(self._log, EpochEnd(asked.last_fetched_epoch, asked.fetch_offset))
        if parted is not None:
            answer = self._partition(code)
            answer.diverging_epoch, answer.snapshot_id = parted
            return letters.fetch_response(answer)
        state = request.replica_state
        replica = ReplicaKey(request.replica_id if state is None else state.replica_id, asked.replica_directory_id)
        if replica.node_id >= 0:
            leader_end = self._log.end.offset
            role.progress.fetched(replica, asked.fetch_offset, leader_end=leader_end, mono_ms=mono_ms)
            self._commit(role, mono_ms)
        records = self._log.read(asked.fetch_offset, request.max_bytes)
        if may_wait and not len(records) and asked.high_watermark >= self.high_watermark:
            return None
        return letters.fetch_response(self._partition(code, records))

    def _refusal(self, epoch: int) -> ErrorCode:
        """Whether somebody who believes in an epoch can be served here."""
        if epoch < self.epoch and epoch >= 0:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > self.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if isinstance(self.role, Leader) else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _partition(self, code: ErrorCode, records: Any = b"") -> PartitionData:
        return PartitionData(
            partition_index=0,
            error_code=code,
            high_watermark=self.high_watermark if code == ErrorCode.NONE else -1,
            log_start_offset=self._log.start_offset if code == ErrorCode.NONE else -1,
            current_leader=LeaderIdAndEpoch(leader_id=self.leader_id, leader_epoch=self.epoch),
            records=records,
        )

    def flushed(self, mono_ms: int) -> None:
        """More of this replica's log is durable."""
        if isinstance(self.role, Leader):
            self._commit(self.role, mono_ms)
        else:
            self.tick(mono_ms)

    def _commit(self, role: Leader, mono_ms: int) -> None:
        voters = self.voters
        if not role.progress.commit(voters, self._log.flushed_offset):
            return
        self._pull.committed(role.progress.high_watermark)
        if not self.is_voter and self.high_watermark > self._log.voters.latest_offset:
            self.resign(mono_ms)

    def _snapshot_fetched(self, request: FetchSnapshotRequest, asked: Any) -> FetchSnapshotResponse:
        leader = QuorumLeader(leader_id=self.leader_id, leader_epoch=self.epoch)
        code = self._refusal(asked.current_leader_epoch)
        return letters.snapshot_response(snapshot_piece(self._log, asked, request.max_bytes, code, leader))

    # ------------------------------------------------------------ what others answer
    def answered(self, peer: int, token: int, response: Message | None, mono_ms: int) -> None:
        """A replica answered a `Send`; None: it did not, in time."""
        asked = self._asked.get(peer)
        if asked is None or asked[0] != token:
            return
        del self._asked[peer]
        partition = None if response is None else only_partition(response)
        if partition is None:
            self._retry_ms[peer] = mono_ms + self._times.retry_backoff_ms
            self._next_server += 1
        elif isinstance(response, VoteResponse):
            self._vote_answered(peer, partition, mono_ms)
        elif isinstance(response, FetchResponse | FetchSnapshotResponse):
            leader = partition.current_leader
            if leader is None or not self._learn(leader.leader_epoch, leader.leader_id, mono_ms):
                self._fetch_answered(peer, partition, mono_ms)
        elif not self._learn(partition.leader_epoch, partition.leader_id, mono_ms) and isinstance(self.role, Resigned):
            self.role.untold.discard(peer)
        self.tick(mono_ms)

    def _vote_answered(self, peer: int, partition: Any, mono_ms: int) -> None:
        role = self.role
        if self._learn(partition.leader_epoch, partition.leader_id, mono_ms):
            return
        if not isinstance(role, Prospective | Candidate):
            return
        if partition.error_code != ErrorCode.NONE:
            self._retry_ms[peer] = mono_ms + self._times.retry_backoff_ms
            return
        role.ballot.count(peer, is_granted=partition.vote_granted)
        if isinstance(role, Prospective):
            if role.ballot.is_won:
                self._candidate(mono_ms)
            elif role.ballot.is_lost:
                self._lost_before_the_vote(role, mono_ms)
        elif role.ballot.is_won:
            self._lead(role.ballot, mono_ms)
        elif role.ballot.is_lost:
            backoff_ms = mono_ms + self._jitter(self._times.election_backoff_max_ms)
            role.deadline_ms = min(role.deadline_ms, backoff_ms)

    def _fetch_answered(self, peer: int, partition: Any, mono_ms: int) -> None:
        role = self.role
        if partition.error_code != ErrorCode.NONE or not isinstance(role, Follower):
            self._retry_ms[peer] = mono_ms + self._times.retry_backoff_ms
            self._pull.new_leader()
            self._next_server += 1
            return
        role.has_fetched = True
        role.deadline_ms = mono_ms + self._times.fetch_timeout_ms
        is_piece = isinstance(partition, FetchSnapshotPartitionResponse)
        effect = self._pull.took_piece(partition) if is_piece else self._pull.took(partition)
        if effect is not None:
            self.effects.append(effect)

    def written(self, mono_ms: int) -> None:
        """What was to be appended, cut or kept is durable."""
        self._pull.written()
        self.tick(mono_ms)
