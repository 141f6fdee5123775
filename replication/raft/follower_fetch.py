"""The requests of followers and unattached replicas: Fetch, FetchSnapshot, and voter changes for themselves (KIP-853).

RULES    1. A follower fetches from its leader. Without a reachable leader it queries the other voters and the bootstrap servers
            in turn: a response names the leader.
         2. One request at a time, and none during a write (`follower_log_sync.py`) or before the whole log is durable: records
            that it appended as leader or before a restart may not be flushed. Unattached replicas wait for the retry backoff
            between two peers.
         3. At most once per fetch timeout a voter change is sent instead of a Fetch. A voter sends UpdateVoter if the log has
            other endpoints or versions for it; with kraft.version 0, once to every leader.
         4. A controller with auto-join first removes the voter with its node id and another directory, then adds itself. It
            does not wait for the commit, which may need its own vote.
NOT HERE Replication (`follower_log_sync.py`), the leader's side (`leader_fetch.py`, `voter_changes.py`).
"""

from __future__ import annotations

from protocol.errors import ErrorCode
from replication.raft.events import Effect
from replication.raft.quorum_state import QuorumState
from replication.raft.roles import Follower, Unattached
from replication.raft.rpc_messages import (
    AddVoter,
    FetchResponse,
    FetchSnapshotResponse,
    RemoveVoter,
    Request,
    UpdateVoter,
    UpdateVoterResponse,
    VoterChangeResponse,
)

_SETTLED_UPDATE = (ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION)
_SETTLED_CHANGE = (
    ErrorCode.NONE,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.DUPLICATE_VOTER,
    ErrorCode.VOTER_NOT_FOUND,
)
"""Response codes after which nothing is sent for a fetch timeout."""


class FollowerFetch:
    """The requests of one replica."""

    def __init__(self, state: QuorumState, *, bootstrap_servers: int, auto_join: bool) -> None:
        self._state = state
        self._bootstrap_servers = bootstrap_servers
        self._auto_join = auto_join
        self._peer_index = 0

    def send_next(self, role: Follower | Unattached) -> None:
        """Send the next request, if one is allowed (rules 1 and 2)."""
        state, backoffs = self._state, self._state.requests.backoff_until_ms
        if not self.can_fetch or (isinstance(role, Unattached) and backoffs):
            return
        if isinstance(role, Follower) and role.leader_id not in backoffs:
            peer = role.leader_id
            request: Request = self._voter_request(role) or state.log_sync.next_request(state.local.key, state.epoch)
        else:
            peer, request = self._next_peer(), state.log_sync.fetch(state.local.key, state.epoch)
        if peer != -1 and state.requests.can_send(peer):
            state.send(peer, request)

    @property
    def can_fetch(self) -> bool:
        """Whether a request is allowed now (rule 2)."""
        state = self._state
        is_durable = state.log.flushed_offset >= state.log.end.offset
        return is_durable and not state.log_sync.is_writing and not state.requests.in_flight

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
            state.requests.back_off(peer, state.mono_ms)
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

    # ------------------------------------------------------------ voter changes
    def _voter_request(self, role: Follower) -> AddVoter | RemoveVoter | UpdateVoter | None:
        """The voter change to send to the leader now, if one is needed and due (rules 3 and 4)."""
        state, local = self._state, self._state.local
        if state.mono_ms < role.next_voter_request_ms:
            return None
        role.next_voter_request_ms = state.mono_ms + state.times.fetch_timeout_ms
        recorded, is_dynamic = state.voters.get(local.key.node_id), bool(state.log.kraft_version.latest)
        if state.is_voter:
            is_due = recorded != local if is_dynamic else not role.has_updated_leader
            return UpdateVoter(state.epoch, local) if is_due else None
        if not self._auto_join or not is_dynamic:
            return None
        if recorded is not None:
            return RemoveVoter(recorded.key)
        return AddVoter(local, ack_when_committed=False, timeout_ms=state.times.request_timeout_ms)

    def on_voter_response(self, peer: int, response: VoterChangeResponse | UpdateVoterResponse) -> None:
        """Schedule the next check, or back off after an error."""
        state, role = self._state, self._state.role
        is_update = isinstance(response, UpdateVoterResponse)
        if not isinstance(role, Follower) or response.code not in (_SETTLED_UPDATE if is_update else _SETTLED_CHANGE):
            state.requests.back_off(peer, state.mono_ms)
            return
        if is_update:
            role.has_updated_leader = role.has_fetched = True
            role.deadline_ms = state.new_fetch_deadline()
        role.next_voter_request_ms = state.mono_ms + state.times.fetch_timeout_ms
