"""KRaft for one replica of the metadata log: pre-vote, pull-based replication, dynamic voters (KIP-595, 853, 996).

RULES    1. Each epoch has one leader. Election state is durable before messages that depend on it (`quorum_state.py`).
         2. A leader resigns if no majority fetched from it for 1.5 fetch timeouts (check quorum).
         3. A role does not end during a write to the log: an election compares log ends, which must not change meanwhile.
NOT HERE Elections (`elections.py`), the leader's responses (`leader_fetch.py`) and high watermark (`replica_progress.py`), the
         follower's requests (`follower_fetch.py`, `voter_requests.py`) and its log (`follower_log_sync.py`), voter changes
         (`voter_changes.py`), sockets, files and clocks.
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
from replication.raft.elections import Elections
from replication.raft.follower_fetch import FollowerFetch
from replication.raft.leader_fetch import LeaderFetch
from replication.raft.quorum_state import QuorumState, QuorumTimes
from replication.raft.raft_log import Effect, ElectionState, RaftLog
from replication.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Role
from replication.raft.voter_changes import VoterChanges
from replication.raft.voter_requests import VoterRequests
from replication.raft.voters import Voter, VoterSet


class Raft:
    """One replica of the metadata log, a voter or an observer (Kafka: KafkaRaftClient)."""

    def __init__(
        self,
        local: Voter,
        cluster_id: str,
        log: RaftLog,
        state: ElectionState,
        *,
        times: QuorumTimes,
        bootstrap_servers: int = 0,
        auto_join: bool = False,
        jitter: Callable[[int], int],
        mono_ms: int,
    ) -> None:
        """Restore the replica from its durable state.

        Args:
            local: this replica's key, its listeners (the first is the one for voters) and its kraft.version range.
            cluster_id: the cluster's id; requests with another id are rejected.
            log: the metadata log.
            state: the durable election state.
            times: the controller.quorum.* timeouts.
            bootstrap_servers: the number of bootstrap servers to query for the leader, besides the voters.
            auto_join: whether this controller adds itself to the voters (controller.quorum.auto.join.enable).
            jitter: returns a random number from 0 to below its argument.
            mono_ms: the current monotonic time.
        """
        self._log = log
        self._quorum = QuorumState(local, cluster_id, log, state, times=times, jitter=jitter, mono_ms=mono_ms)
        self._elections = Elections(self._quorum)
        self._changes = VoterChanges(self._quorum)
        self._leader_fetch = LeaderFetch(self._quorum, self._changes)
        self._voter_requests = VoterRequests(self._quorum, auto_join=auto_join)
        self._follower_fetch = FollowerFetch(self._quorum, self._voter_requests, bootstrap_servers)

    # ------------------------------------------------------------ state
    @property
    def effects(self) -> list[Effect]:
        """The effects to carry out, in order. The caller removes what it takes."""
        return self._quorum.effects

    @property
    def local(self) -> Voter:
        """The key, addresses and versions of this replica."""
        return self._quorum.local

    @property
    def epoch(self) -> int:
        """The current epoch."""
        return self._quorum.epoch

    @property
    def role(self) -> Role:
        """The role in the current epoch."""
        return self._quorum.role

    @property
    def leader_id(self) -> int:
        """The leader of the current epoch, also after it resigned; -1 if unknown."""
        return self._quorum.leader_id

    @property
    def high_watermark(self) -> int:
        """The offset after the last committed record."""
        return self._quorum.log_sync.high_watermark

    @property
    def voters(self) -> VoterSet:
        """The latest voter set in the log, committed or not."""
        return self._quorum.voters

    @property
    def is_voter(self) -> bool:
        """Whether this replica is in the voter set."""
        return self._quorum.is_voter

    @property
    def next_deadline_ms(self) -> int | None:
        """The time of the next timeout; None if only a message or a write can change anything."""
        quorum, role = self._quorum, self.role
        waits = quorum.requests.retry_deadlines_ms
        if isinstance(role, Leader):
            waits += role.next_begin_epoch_ms.values()
            waits += [] if role.change is None else [role.change.deadline_ms]
            if (deadline_ms := self._check_quorum_deadline_ms(role)) is not None:
                waits.append(deadline_ms)
        elif not quorum.log_sync.is_writing:
            if self.is_voter or isinstance(role, Resigned | Candidate | Prospective):
                waits.append(role.deadline_ms)
            if isinstance(role, Follower) and self._follower_fetch.can_fetch:
                waits += [role.next_voter_request_ms] if quorum.requests.can_send(role.leader_id) else []
        return min(waits, default=None)

    # ------------------------------------------------------------ time
    def tick(self, mono_ms: int) -> None:
        """Handle expired timeouts and send the requests that are due."""
        self._quorum.requests.expire_backoffs(mono_ms)
        while self._end_expired_role(mono_ms):
            pass
        role = self.role
        if isinstance(role, Leader):
            self._changes.expire(role, mono_ms)
            self._elections.send_begin_epoch(role, mono_ms)
        elif isinstance(role, Resigned):
            self._elections.send_end_epoch(role)
        elif isinstance(role, Prospective | Candidate):
            self._elections.request_votes(role)
        else:
            self._follower_fetch.send_next(role, mono_ms)

    def _end_expired_role(self, mono_ms: int) -> bool:
        """End the role if its deadline has passed; returns whether it ended."""
        quorum, role = self._quorum, self.role
        if isinstance(role, Leader):
            deadline_ms = self._check_quorum_deadline_ms(role)
            if deadline_ms is None or mono_ms < deadline_ms:
                return False
            quorum.resign(mono_ms)
            return True
        if mono_ms < role.deadline_ms or quorum.log_sync.is_writing:  # rule 3
            return False
        if isinstance(role, Resigned):
            quorum.become_unattached(self.epoch + 1, mono_ms)
        elif isinstance(role, Prospective):
            quorum.pre_vote_lost(role, mono_ms)
        elif self.is_voter:
            quorum.become_prospective(mono_ms)
        else:
            return False
        return True

    def _check_quorum_deadline_ms(self, role: Leader) -> int | None:
        """The time at which the leader resigns unless a majority fetches (rule 2); None for a single voter."""
        fetched_ms = role.progress.majority_fetch_ms(self.voters)
        return None if fetched_ms is None else fetched_ms + self._quorum.times.fetch_timeout_ms * 3 // 2

    def resign(self, mono_ms: int) -> None:
        """Resign as leader, for example before shutdown."""
        self._quorum.resign(mono_ms)
        self.tick(mono_ms)

    def upgrade_kraft_version(self, kraft_version: int, *, validate_only: bool = False) -> KafkaError | None:
        """As leader, append a new kraft.version; returns the reason for a refusal, None if accepted."""
        return self._changes.upgrade(kraft_version, validate_only=validate_only)

    # ------------------------------------------------------------ requests
    def handle_request(self, request: Message, mono_ms: int, *, may_wait: bool = False) -> Message | None:
        """Return the response to a request; it may be sent only after the effects that precede it.

        Args:
            request: Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch, FetchSnapshot, or a voter change. The response to a
                voter change may be None: it follows as a `SendResponse` effect.
            mono_ms: the current monotonic time.
            may_wait: whether None may be returned for a Fetch without new data. The caller then repeats it on new data or at
                its timeout.
        """
        if isinstance(request, AddRaftVoterRequest):
            answer = self._changes.handle_add(request, mono_ms)
        elif isinstance(request, RemoveRaftVoterRequest):
            answer = self._changes.handle_remove(request, mono_ms)
        elif isinstance(request, UpdateRaftVoterRequest):
            answer = self._changes.handle_update(
                request, self._leader_fetch.check_leader_epoch(request.current_leader_epoch), mono_ms
            )
        else:
            answer = self._handle_partition_request(request, mono_ms, may_wait=may_wait)
        self.tick(mono_ms)
        return answer

    def _handle_partition_request(self, request: Message, mono_ms: int, *, may_wait: bool) -> Message | None:
        cluster_id = request.cluster_id  # type: ignore[attr-defined]
        if cluster_id not in (None, self._quorum.cluster_id):
            return rpc_messages.error_response(request, ErrorCode.INCONSISTENT_CLUSTER_ID)
        partition = rpc_messages.single_partition(request)
        if partition is None:
            if isinstance(request, FetchSnapshotRequest):
                return rpc_messages.unknown_snapshot_partition(request, self._quorum.leader_and_epoch)
            return rpc_messages.error_response(request, ErrorCode.INVALID_REQUEST)
        if isinstance(request, FetchRequest):
            return self._leader_fetch.handle_fetch(request, partition, mono_ms, may_wait=may_wait)
        if isinstance(request, FetchSnapshotRequest):
            return self._leader_fetch.handle_fetch_snapshot(request, partition, mono_ms)
        if isinstance(request, VoteRequest):
            return self._elections.handle_vote(request, partition, mono_ms)
        if isinstance(request, BeginQuorumEpochRequest):
            return self._elections.handle_begin_epoch(request, partition, mono_ms)
        assert isinstance(request, EndQuorumEpochRequest), f"{request!r} is not a Raft request"
        return self._elections.handle_end_epoch(request, partition, mono_ms)

    # ------------------------------------------------------------ responses
    def on_response(self, peer: int, token: int, response: Any, mono_ms: int) -> None:
        """Handle the response to a `SendRequest`; None means a timeout or a failed connection."""
        request = self._quorum.requests.complete(peer, token)
        if request is None:
            return
        if isinstance(request, ApiVersionsRequest):
            self._changes.on_api_versions_response(peer, response, mono_ms)
        elif response is None:
            self._on_request_failed(peer, mono_ms)
        elif isinstance(request, AddRaftVoterRequest | RemoveRaftVoterRequest):
            self._voter_requests.on_response(peer, response, mono_ms)
        elif isinstance(request, UpdateRaftVoterRequest):
            if not self._learn_leader(response.current_leader, response, mono_ms):
                self._voter_requests.on_response(peer, response, mono_ms)
        else:
            self._on_partition_response(peer, request, response, mono_ms)
        self.tick(mono_ms)

    def _on_request_failed(self, peer: int, mono_ms: int) -> None:
        self._quorum.requests.back_off(peer, mono_ms)
        self._follower_fetch.try_next_peer()

    def _on_partition_response(self, peer: int, request: Message, response: Any, mono_ms: int) -> None:
        partition = rpc_messages.single_partition(response)
        if partition is None:
            if isinstance(request, VoteRequest) and response.error_code == ErrorCode.UNSUPPORTED_VERSION:
                self._elections.on_pre_vote_unsupported(mono_ms)
            else:
                self._on_request_failed(peer, mono_ms)
            return
        if isinstance(request, FetchRequest | FetchSnapshotRequest):
            self._learn_leader(partition.current_leader, response, mono_ms)
            self._follower_fetch.on_response(peer, partition, mono_ms)
        elif self._learn_leader(partition, response, mono_ms):
            return
        elif isinstance(request, VoteRequest):
            self._elections.on_vote_response(peer, partition, mono_ms)
        elif isinstance(self.role, Resigned):
            self.role.unacked_voters.discard(peer)

    def _learn_leader(self, leader: Any, response: Any, mono_ms: int) -> bool:
        """Apply the leader and epoch named in a response; returns whether the role changed."""
        if leader is None:
            return False
        addresses = rpc_messages.leader_addresses(leader.leader_id, response, self._quorum.listener)
        return self._quorum.learn_leader(leader.leader_epoch, leader.leader_id, addresses, mono_ms)

    # ------------------------------------------------------------ completed writes
    def on_flushed(self, mono_ms: int) -> None:
        """The log's flushed offset has advanced."""
        if isinstance(self.role, Leader):
            self._leader_fetch.update_high_watermark(self.role, mono_ms)
        self.tick(mono_ms)

    def on_written(self, mono_ms: int) -> None:
        """The log has completed, or rejected, the last AppendBatches, Truncate or WriteSnapshotChunk."""
        self._quorum.log_sync.on_written()
        self.tick(mono_ms)
