"""Leader elections: Vote, BeginQuorumEpoch and EndQuorumEpoch, sent and received (KIP-595, KIP-996).

RULES    1. A replica grants one vote per epoch, and only to a candidate whose log is at least as up-to-date: the last epoch
            decides, then the end offset.
         2. A follower that fetches from a live leader rejects pre-votes. A pre-vote changes no state on either side (KIP-996).
         3. Observers grant votes and can receive them: their own voter set may be stale (KIP-853).
         4. The checks and their order are Apache Kafka's (KafkaRaftClient).
"""

from __future__ import annotations

from typing import Any

from protocol.errors import ErrorCode
from protocol.messages.raft import BeginQuorumEpochRequest, EndQuorumEpochRequest, VoteRequest
from protocol.schema import Message
from replication.raft import rpc_messages
from replication.raft.quorum_state import QuorumState
from replication.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from replication.raft.rpc_messages import quorum_response, vote_response
from replication.raft.voters import ListenerAddress, ReplicaKey


class Elections:
    """The election part of one replica."""

    def __init__(self, quorum: QuorumState) -> None:
        self._quorum = quorum

    # ------------------------------------------------------------ requests received
    def handle_vote(self, request: VoteRequest, partition: Any, mono_ms: int) -> Message:
        """Grant or reject a vote or a pre-vote."""
        quorum = self._quorum
        key = ReplicaKey(partition.replica_id, partition.replica_directory_id)
        newest = partition.last_offset_epoch if partition.pre_vote else partition.last_offset_epoch + 1
        if min(partition.last_offset, partition.last_offset_epoch) < 0 or newest > partition.replica_epoch:
            return vote_response(ErrorCode.INVALID_REQUEST, quorum.leader_and_epoch)
        if (code := self._validate_epoch(partition.replica_id, partition.replica_epoch)) != ErrorCode.NONE:
            return vote_response(code, quorum.leader_and_epoch)
        if partition.replica_epoch > quorum.epoch:
            quorum.become_unattached(partition.replica_epoch, mono_ms)
        if not self._is_for_local(request.voter_id, partition.voter_directory_id):
            return vote_response(ErrorCode.INVALID_VOTER_KEY, quorum.leader_and_epoch)
        is_as_long = (partition.last_offset_epoch, partition.last_offset) >= tuple(quorum.log.end)
        is_granted = self._may_grant(key, is_as_long=is_as_long, is_pre_vote=partition.pre_vote)
        if is_granted and not partition.pre_vote and quorum.voted_key is None:
            self._grant(key, mono_ms)
        return vote_response(ErrorCode.NONE, quorum.leader_and_epoch, is_granted=is_granted)

    def _validate_epoch(self, sender_id: int, epoch: int) -> ErrorCode:
        if epoch < self._quorum.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.INVALID_REQUEST if sender_id < 0 else ErrorCode.NONE

    def _is_for_local(self, voter_id: int, directory_id: bytes) -> bool:
        """Whether a request names this replica as its recipient, or none."""
        return voter_id < 0 or ReplicaKey(voter_id, directory_id).matches(self._quorum.local.key)

    def _may_grant(self, key: ReplicaKey, *, is_as_long: bool, is_pre_vote: bool) -> bool:
        """Whether this replica grants the vote or pre-vote (rules 1 and 2)."""
        quorum, role = self._quorum, self._quorum.role
        if is_pre_vote:
            is_led = isinstance(role, Leader) or (isinstance(role, Follower) and role.has_fetched)
            return is_as_long and not is_led
        if not isinstance(role, Unattached | Prospective):
            return False
        if quorum.voted_key is not None:
            return quorum.voted_key.matches(key)
        return is_as_long and quorum.leader_id < 0

    def _grant(self, key: ReplicaKey, mono_ms: int) -> None:
        quorum = self._quorum
        if isinstance(quorum.role, Prospective):
            quorum.become_prospective(mono_ms, key)
        else:
            quorum.transition_to(Unattached(quorum.election_deadline(mono_ms)), quorum.epoch, key)

    def handle_begin_epoch(self, request: BeginQuorumEpochRequest, partition: Any, mono_ms: int) -> Message:
        """Follow the new leader."""
        code = self._accept_leader(partition, request.leader_endpoints, mono_ms)
        if code == ErrorCode.NONE and not self._is_for_local(request.voter_id, partition.voter_directory_id):
            code = ErrorCode.INVALID_VOTER_KEY
        return quorum_response(request, code, self._quorum.leader_and_epoch)

    def handle_end_epoch(self, request: EndQuorumEpochRequest, partition: Any, mono_ms: int) -> Message:
        """The leader resigned: set the election deadline by the order of preferred candidates."""
        code = self._accept_leader(partition, request.leader_endpoints, mono_ms)
        role = self._quorum.role
        if code == ErrorCode.NONE and isinstance(role, Follower) and role.leader_id == partition.leader_id:
            keys = [ReplicaKey(key.candidate_id, key.candidate_directory_id) for key in partition.preferred_candidates]
            keys = keys or [ReplicaKey(node_id) for node_id in partition.preferred_successors]
            role.deadline_ms = mono_ms + self._end_epoch_backoff_ms(keys)
        return quorum_response(request, code, self._quorum.leader_and_epoch)

    def _accept_leader(self, partition: Any, endpoints: Any, mono_ms: int) -> ErrorCode:
        """Validate and apply the leader and epoch of a Begin- or EndQuorumEpoch request."""
        quorum = self._quorum
        if (code := self._validate_epoch(partition.leader_id, partition.leader_epoch)) != ErrorCode.NONE:
            return code
        is_other = partition.leader_epoch == quorum.epoch and quorum.leader_id not in (-1, partition.leader_id)
        if is_other or partition.leader_id == quorum.local.key.node_id:
            return ErrorCode.INVALID_REQUEST
        addresses = tuple(ListenerAddress(one.name, one.host, one.port) for one in endpoints)
        quorum.learn_leader(partition.leader_epoch, partition.leader_id, addresses, mono_ms)
        return ErrorCode.NONE

    def _end_epoch_backoff_ms(self, preferred_successors: list[ReplicaKey]) -> int:
        """The delay before this replica's election: 0 for the first preferred candidate, doubled for each next (KIP-595)."""
        most_ms = self._quorum.times.election_backoff_max_ms
        local = self._quorum.local.key
        place = next(
            (place for place, key in enumerate(preferred_successors) if key.matches(local)), len(preferred_successors)
        )
        if place == len(preferred_successors):
            return most_ms
        return min(most_ms, (most_ms >> len(preferred_successors) - 1) << place - 1) if place else 0

    # ------------------------------------------------------------ requests sent
    def request_votes(self, role: Prospective | Candidate) -> None:
        """Send Vote requests to the voters without an answer, unless the election is lost."""
        quorum = self._quorum
        for voter in [] if role.tally.is_rejected else role.tally.unanswered:
            if quorum.requests.can_send(voter.key.node_id):
                request = rpc_messages.vote_request(
                    quorum.cluster_id,
                    quorum.local.key,
                    voter.key,
                    epoch=quorum.epoch,
                    end=quorum.log.end,
                    is_pre_vote=isinstance(role, Prospective),
                )
                self._send(voter.key.node_id, request)

    def send_begin_epoch(self, role: Leader, mono_ms: int) -> None:
        """Send BeginQuorumEpoch to the voters that do not fetch, every half fetch timeout."""
        quorum = self._quorum
        interval_ms = quorum.times.fetch_timeout_ms // 2
        role.next_begin_epoch_ms = {
            node_id: due_ms for node_id, due_ms in role.next_begin_epoch_ms.items() if node_id in quorum.voters.node_ids
        }
        for voter in quorum.voters:
            node_id = voter.key.node_id
            if node_id == quorum.local.key.node_id or role.next_begin_epoch_ms.get(node_id, 0) > mono_ms:
                continue
            role.next_begin_epoch_ms[node_id] = mono_ms + interval_ms
            is_following = role.progress.has_fetched(voter.key, mono_ms - interval_ms)
            if quorum.requests.can_send(node_id) and not is_following:
                request = rpc_messages.begin_epoch_request(quorum.cluster_id, quorum.local, voter.key, quorum.epoch)
                self._send(node_id, request)
        role.progress.expire_observers(quorum.voters, mono_ms)

    def send_end_epoch(self, role: Resigned) -> None:
        """Send EndQuorumEpoch to the voters that have not acknowledged it."""
        quorum = self._quorum
        for node_id in sorted(role.unacked_voters):
            if quorum.requests.can_send(node_id):
                request = rpc_messages.end_epoch_request(
                    quorum.cluster_id, quorum.local, quorum.epoch, role.preferred_successors
                )
                self._send(node_id, request)

    def _send(self, node_id: int, request: Message) -> None:
        self._quorum.requests.send(node_id, self._quorum.address_of(node_id), request)

    # ------------------------------------------------------------ responses
    def on_vote_response(self, peer: int, partition: Any, mono_ms: int) -> None:
        """Count a vote; the election may end."""
        quorum, role = self._quorum, self._quorum.role
        if not isinstance(role, Prospective | Candidate):
            return
        if partition.error_code != ErrorCode.NONE or partition.leader_epoch < quorum.epoch:
            quorum.requests.back_off(peer, mono_ms)
            return
        role.tally.record(peer, is_granted=partition.vote_granted)
        if role.tally.is_won:
            if isinstance(role, Prospective):
                quorum.become_candidate(mono_ms)
            else:
                quorum.become_leader(role.tally, mono_ms)
        elif role.tally.is_rejected and isinstance(role, Prospective):  # a candidate waits for its election timeout
            quorum.pre_vote_lost(role, mono_ms)

    def on_pre_vote_unsupported(self, mono_ms: int) -> None:
        """A voter does not support pre-votes: start the election directly."""
        if isinstance(self._quorum.role, Prospective):
            self._quorum.become_candidate(mono_ms)
