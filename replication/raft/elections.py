"""Elections: votes asked for and given, and the words of leaders that begin and end their epochs (KIP-595, 996).

RULES    1. A replica votes once in an epoch, and for a log that is at least as long as its own, by epoch and then by offset.
         2. Who hears from a leader helps nobody to an election: the vote before the vote changes nothing, neither here
            nor there (KIP-996).
         3. Observers vote too, and are voted for: whose voters are out of date does not know who has a vote (KIP-853).
         4. Checks and their order are Apache Kafka's.
"""

from __future__ import annotations

from typing import Any

from protocol.errors import ErrorCode
from protocol.messages.raft import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    VoteRequest,
)
from protocol.schema import Message
from replication.raft import rpc_messages
from replication.raft.replica_state import Standing
from replication.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from replication.raft.rpc_messages import quorum_response, vote_response
from replication.raft.voters import Address, ReplicaKey


class Voting:
    """One replica in the elections of its quorum."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing

    # ------------------------------------------------------------ what others ask
    def vote(self, request: VoteRequest, asked: Any, mono_ms: int) -> Message:
        """Somebody asks for a vote."""
        standing = self._standing
        key = ReplicaKey(asked.replica_id, asked.replica_directory_id)
        newest = asked.last_offset_epoch if asked.pre_vote else asked.last_offset_epoch + 1
        if min(asked.last_offset, asked.last_offset_epoch) < 0 or newest > asked.replica_epoch:
            return vote_response(ErrorCode.INVALID_REQUEST, standing.who)
        if (code := self._refusal(asked.replica_id, asked.replica_epoch)) != ErrorCode.NONE:
            return vote_response(code, standing.who)
        if asked.replica_epoch > standing.epoch:
            standing.unattached(asked.replica_epoch, mono_ms)
        if not self._is_meant(request.voter_id, asked.voter_directory_id):
            return vote_response(ErrorCode.INVALID_VOTER_KEY, standing.who)
        is_as_long = (asked.last_offset_epoch, asked.last_offset) >= tuple(standing.log.end)
        is_granted = self._may_grant(key, is_as_long=is_as_long, is_pre_vote=asked.pre_vote)
        if is_granted and not asked.pre_vote and standing.voted is None:
            self._give(key, mono_ms)
        return vote_response(ErrorCode.NONE, standing.who, is_granted=is_granted)

    def _refusal(self, asker: int, epoch: int) -> ErrorCode:
        if epoch < self._standing.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.INVALID_REQUEST if asker < 0 else ErrorCode.NONE

    def _is_meant(self, voter_id: int, directory_id: bytes) -> bool:
        """Whether a request is for this replica; it need not name anybody."""
        return voter_id < 0 or ReplicaKey(voter_id, directory_id).matches(self._standing.own.key)

    def _may_grant(self, key: ReplicaKey, *, is_as_long: bool, is_pre_vote: bool) -> bool:
        """Rules 1 and 2."""
        standing, role = self._standing, self._standing.role
        if is_pre_vote:
            is_led = isinstance(role, Leader) or (isinstance(role, Follower) and role.has_fetched)
            return is_as_long and not is_led
        if not isinstance(role, Unattached | Prospective):
            return False
        if standing.voted is not None:
            return standing.voted.matches(key)
        return is_as_long and standing.leader_id < 0

    def _give(self, key: ReplicaKey, mono_ms: int) -> None:
        standing = self._standing
        if isinstance(standing.role, Prospective):
            standing.prospective(mono_ms, key)
        else:
            standing.become(Unattached(standing.election_deadline(mono_ms)), standing.epoch, key)

    def epoch_begun(self, request: BeginQuorumEpochRequest, told: Any, mono_ms: int) -> Message:
        """Somebody was elected."""
        code = self._heard_of(told, request.leader_endpoints, mono_ms)
        if code == ErrorCode.NONE and not self._is_meant(request.voter_id, told.voter_directory_id):
            code = ErrorCode.INVALID_VOTER_KEY
        return quorum_response(BeginQuorumEpochResponse, code, self._standing.who)

    def epoch_ended(self, request: EndQuorumEpochRequest, told: Any, mono_ms: int) -> Message:
        """Somebody resigned."""
        code = self._heard_of(told, request.leader_endpoints, mono_ms)
        role = self._standing.role
        if code == ErrorCode.NONE and isinstance(role, Follower) and role.leader_id == told.leader_id:
            keys = [ReplicaKey(key.candidate_id, key.candidate_directory_id) for key in told.preferred_candidates]
            keys = keys or [ReplicaKey(node_id) for node_id in told.preferred_successors]
            role.deadline_ms = mono_ms + self._turn_ms(keys)
        return quorum_response(EndQuorumEpochResponse, code, self._standing.who)

    def _heard_of(self, told: Any, endpoints: Any, mono_ms: int) -> ErrorCode:
        """Somebody says that it leads, or led, an epoch."""
        standing = self._standing
        if (code := self._refusal(told.leader_id, told.leader_epoch)) != ErrorCode.NONE:
            return code
        is_other = told.leader_epoch == standing.epoch and standing.leader_id not in (-1, told.leader_id)
        if is_other or told.leader_id == standing.own.key.node_id:
            return ErrorCode.INVALID_REQUEST
        addresses = tuple(Address(one.name, one.host, one.port) for one in endpoints)
        standing.learn(told.leader_epoch, told.leader_id, addresses, mono_ms)
        return ErrorCode.NONE

    def _turn_ms(self, preferred: list[ReplicaKey]) -> int:
        """The leader is gone: the best stands for election at once, each next one waits twice as long as the one before."""
        most_ms = self._standing.times.election_backoff_max_ms
        own = self._standing.own.key
        place = next((place for place, key in enumerate(preferred) if key.matches(own)), len(preferred))
        if place == len(preferred):
            return most_ms
        return min(most_ms, (most_ms >> len(preferred) - 1) << place - 1) if place else 0

    # ------------------------------------------------------------ what is asked of others
    def ask_for_votes(self, role: Prospective | Candidate) -> None:
        """Ask who has not said yet, as long as the election can be won."""
        standing = self._standing
        for voter in [] if role.ballot.is_lost else role.ballot.unanswered:
            if standing.asking.may_ask(voter.key.node_id):
                request = rpc_messages.vote_request(
                    standing.cluster_id,
                    standing.own.key,
                    voter.key,
                    epoch=standing.epoch,
                    end=standing.log.end,
                    is_pre_vote=isinstance(role, Prospective),
                )
                self._ask(voter.key.node_id, request)

    def tell_of_epoch(self, role: Leader, mono_ms: int) -> None:
        """Voters that do not fetch may not know who leads."""
        standing = self._standing
        interval_ms = standing.times.fetch_timeout_ms // 2
        role.to_begin = {
            node_id: due_ms for node_id, due_ms in role.to_begin.items() if node_id in standing.voters.node_ids
        }
        for voter in standing.voters:
            node_id = voter.key.node_id
            if node_id == standing.own.key.node_id or role.to_begin.get(node_id, 0) > mono_ms:
                continue
            role.to_begin[node_id] = mono_ms + interval_ms
            is_following = role.progress.has_fetched(voter.key, mono_ms - interval_ms)
            if standing.asking.may_ask(node_id) and not is_following:
                request = rpc_messages.begin_epoch_request(standing.cluster_id, standing.own, voter.key, standing.epoch)
                self._ask(node_id, request)
        role.progress.forget_silent_observers(standing.voters, mono_ms)

    def tell_of_end(self, role: Resigned) -> None:
        """Tell who has not confirmed it yet."""
        standing = self._standing
        for node_id in sorted(role.untold):
            if standing.asking.may_ask(node_id):
                request = rpc_messages.end_epoch_request(
                    standing.cluster_id, standing.own, standing.epoch, role.preferred
                )
                self._ask(node_id, request)

    def _ask(self, node_id: int, request: Message) -> None:
        self._standing.asking.ask(node_id, self._standing.address_of(node_id), request)

    # ------------------------------------------------------------ what others answer
    def vote_answered(self, peer: int, partition: Any, mono_ms: int) -> None:
        """A voter says yes, no, or why it does neither."""
        standing, role = self._standing, self._standing.role
        if not isinstance(role, Prospective | Candidate):
            return
        if partition.error_code != ErrorCode.NONE or partition.leader_epoch < standing.epoch:
            standing.asking.back_off(peer, mono_ms)
            return
        role.ballot.count(peer, is_granted=partition.vote_granted)
        if role.ballot.is_won:
            if isinstance(role, Prospective):
                standing.candidate(mono_ms)
            else:
                standing.lead(role.ballot, mono_ms)
        elif role.ballot.is_lost and isinstance(role, Prospective):  # a candidate waits until its time is over
            standing.lost_before_the_vote(role, mono_ms)

    def vote_not_known(self, mono_ms: int) -> None:
        """A voter is too old for votes before votes: it has to do without."""
        if isinstance(self._standing.role, Prospective):
            self._standing.candidate(mono_ms)
