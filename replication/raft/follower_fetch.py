"""Fetch and FetchSnapshot on followers and unattached replicas: which peer to query, and when.

RULES    1. A follower fetches from its leader. Without a reachable leader it queries the other voters and the bootstrap servers
            in turn: a response names the leader.
         2. One request at a time, and none during a write (`follower_log_sync.py`) or before the whole log is durable: records
            that it appended as leader or before a restart may not be flushed. Unattached replicas wait for the retry backoff
            between two peers.
"""

from __future__ import annotations

from protocol.errors import ErrorCode
from replication.raft import voter_requests
from replication.raft.events import Effect
from replication.raft.quorum_state import QuorumState
from replication.raft.roles import Follower, Unattached
from replication.raft.rpc_messages import FetchResponse, FetchSnapshotResponse, Request


class FollowerFetch:
    """The fetch requests of one replica."""

    def __init__(self, state: QuorumState, *, bootstrap_servers: int, auto_join: bool) -> None:
        self._state = state
        self._bootstrap_servers = bootstrap_servers
        self._auto_join = auto_join
        self._peer_index = 0

    def send_next(self, role: Follower | Unattached) -> None:
        """Send the next request, if one is allowed (rules 1 and 2)."""
        state = self._state
        is_backing_off = isinstance(role, Unattached) and state.requests.has_backoff
        if is_backing_off or not self.can_fetch:
            return
        if isinstance(role, Follower) and not state.requests.is_backing_off(role.leader_id):
            peer = role.leader_id
            request: Request | None = voter_requests.next_request(state, role, auto_join=self._auto_join)
            request = request or state.log_sync.next_request(state.local.key, state.epoch)
        else:
            peer, request = self._next_peer(), state.log_sync.fetch(state.local.key, state.epoch)
        if peer != -1 and state.requests.can_send(peer):
            state.send(peer, request)

    @property
    def can_fetch(self) -> bool:
        """Whether a request is allowed now (rule 2)."""
        state = self._state
        is_durable = state.log.flushed_offset >= state.log.end.offset
        return is_durable and not state.log_sync.is_writing and not state.requests.has_in_flight

    def _next_peer(self) -> int:
        """A voter or bootstrap server to query for the leader; -1 if there is none."""
        state = self._state
        servers = [node_id for node_id in state.voters.node_ids if node_id != state.local.key.node_id]
        servers += [-2 - index for index in range(self._bootstrap_servers)]
        return servers[self._peer_index % len(servers)] if servers else -1

    def try_next_peer(self) -> None:
        """The last peer gave no usable response: select the next one."""
        self._peer_index += 1

    def on_response(self, peer: int, response: FetchResponse | FetchSnapshotResponse) -> None:
        """Handle the response of a peer, whose leader and epoch the replica knows now."""
        state, role = self._state, self._state.role
        leader = response.leader
        is_leader = leader is not None and (leader.epoch, leader.leader_id) == (state.epoch, state.leader_id)
        if response.code == ErrorCode.SNAPSHOT_NOT_FOUND:
            state.log_sync.abandon_snapshot()
        if not isinstance(role, Follower) or not is_leader or response.code != ErrorCode.NONE:
            state.back_off(peer)
            self.try_next_peer()
            return
        role.has_fetched = True
        role.deadline_ms = state.new_fetch_deadline()
        if isinstance(response, FetchResponse):
            effect: Effect | None = state.log_sync.on_fetch_response(response, state.epoch)
        else:
            effect = state.log_sync.on_snapshot_response(response)
        if effect is not None:
            state.effects.append(effect)
