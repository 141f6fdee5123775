"""Fetch and FetchSnapshot on followers and unattached replicas: which peer to query, and when.

RULES    1. A follower fetches from its leader. Without a reachable leader it queries the other voters and the bootstrap servers
            in turn: a response names the leader.
         2. One request at a time, and none during a write (`follower_log_sync.py`) or before the whole log is durable: records
            that it appended as leader or before a restart may not be flushed. Unattached replicas wait for the retry backoff
            between two peers.
"""

from __future__ import annotations

from typing import Any

from protocol.errors import ErrorCode
from protocol.messages.raft import FetchSnapshotPartitionResponse
from protocol.schema import Message
from replication.raft.quorum_state import QuorumState
from replication.raft.raft_log import Effect
from replication.raft.roles import Follower, Unattached
from replication.raft.voter_requests import VoterRequests


class FollowerFetch:
    """The fetch requests of one replica."""

    def __init__(self, quorum: QuorumState, requests: VoterRequests, bootstrap_servers: int) -> None:
        self._quorum = quorum
        self._voter_requests = requests
        self._bootstrap_servers = bootstrap_servers
        self._peer_index = 0

    def send_next(self, role: Follower | Unattached, mono_ms: int) -> None:
        """Send the next request, if one is allowed (rules 1 and 2)."""
        quorum = self._quorum
        is_backing_off = isinstance(role, Unattached) and quorum.requests.has_backoff
        if is_backing_off or not self.can_fetch:
            return
        cluster_id, local_key, epoch = quorum.cluster_id, quorum.local.key, quorum.epoch
        if isinstance(role, Follower) and not quorum.requests.is_backing_off(role.leader_id):
            if self._voter_requests.send_if_due(role, mono_ms):
                return
            peer = role.leader_id
            request: Message = quorum.log_sync.next_request(cluster_id, local_key, epoch)
        else:
            peer = self._next_peer()
            request = quorum.log_sync.fetch_request(cluster_id, local_key, epoch)
        if peer != -1 and quorum.requests.can_send(peer):
            quorum.requests.send(peer, quorum.address_of(peer) if peer >= 0 else None, request)

    @property
    def can_fetch(self) -> bool:
        """Whether a request is allowed now (rule 2)."""
        quorum = self._quorum
        is_durable = quorum.log.flushed_offset >= quorum.log.end.offset
        return is_durable and not quorum.log_sync.is_writing and not quorum.requests.has_in_flight

    def _next_peer(self) -> int:
        """A voter or bootstrap server to query for the leader; -1 if there is none."""
        quorum = self._quorum
        servers = [node_id for node_id in quorum.voters.node_ids if node_id != quorum.local.key.node_id]
        servers += [-2 - index for index in range(self._bootstrap_servers)]
        return servers[self._peer_index % len(servers)] if servers else -1

    def try_next_peer(self) -> None:
        """The last peer gave no usable response: select the next one."""
        self._peer_index += 1

    def on_response(self, peer: int, partition: Any, mono_ms: int) -> None:
        """Handle a Fetch or FetchSnapshot response."""
        quorum, role = self._quorum, self._quorum.role
        leader = partition.current_leader
        named = None if leader is None else (leader.leader_epoch, leader.leader_id)
        is_leader = named == (quorum.epoch, quorum.leader_id)
        if partition.error_code == ErrorCode.SNAPSHOT_NOT_FOUND:
            quorum.log_sync.abandon_snapshot()
        if not isinstance(role, Follower) or not is_leader or partition.error_code != ErrorCode.NONE:
            quorum.requests.back_off(peer, mono_ms)
            self.try_next_peer()
            return
        role.has_fetched = True
        role.deadline_ms = quorum.fetch_deadline(mono_ms)
        effect = self._apply_response(partition)
        if effect is not None:
            quorum.effects.append(effect)

    def _apply_response(self, partition: Any) -> Effect | None:
        log_sync = self._quorum.log_sync
        if isinstance(partition, FetchSnapshotPartitionResponse):
            return log_sync.on_snapshot_response(partition)
        return log_sync.on_fetch_response(partition, self._quorum.epoch)
