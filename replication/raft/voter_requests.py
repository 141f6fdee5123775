"""What a follower asks its leader for on its own behalf: to be known anew, or to be a voter (KIP-853, 4.2's auto-join).

RULES    1. Once in a fetch timeout, and in place of a Fetch.
         2. A voter that the log knows otherwise than it is says so; with kraft.version 0 it tells every leader once.
         3. A controller that may join takes away the vote of its lost directory first, then asks for one of its own.
"""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.messages.cluster import AddRaftVoterResponse, RemoveRaftVoterResponse
from protocol.messages.raft import UpdateRaftVoterResponse
from protocol.schema import Message
from replication.raft import rpc_messages
from replication.raft.replica_state import Standing
from replication.raft.roles import Follower

_SETTLED = (
    ErrorCode.NONE,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.DUPLICATE_VOTER,
    ErrorCode.VOTER_NOT_FOUND,
)


class VoterRequests:
    """A follower's requests for changes of the voters."""

    def __init__(self, standing: Standing, *, joins: bool) -> None:
        self._standing = standing
        self._joins = joins

    def ask_if_due(self, role: Follower, mono_ms: int) -> bool:
        """Ask the leader for what is to be changed, if anything is; whether it was asked (rule 1)."""
        standing = self._standing
        if mono_ms < role.next_voter_request_ms or not standing.asking.may_ask(role.leader_id):
            return False
        role.next_voter_request_ms = mono_ms + standing.times.fetch_timeout_ms
        request = self._as_voter(role) if standing.is_voter else self._as_observer()
        if request is None:
            return False
        standing.asking.ask(role.leader_id, standing.address_of(role.leader_id), request)
        return True

    def _as_voter(self, role: Follower) -> Message | None:
        """Rule 2."""
        standing = self._standing
        if standing.log.kraft_version.latest:
            is_due = standing.voters.get(standing.own.key.node_id) != standing.own
        else:
            is_due = not role.has_updated_leader
        return rpc_messages.update_voter_request(standing.cluster_id, standing.own, standing.epoch) if is_due else None

    def _as_observer(self) -> Message | None:
        """Rule 3."""
        standing = self._standing
        if not self._joins or not standing.log.kraft_version.latest:
            return None
        lost = standing.voters.get(standing.own.key.node_id)
        if lost is not None:
            return rpc_messages.remove_voter_request(standing.cluster_id, lost.key)
        return rpc_messages.add_voter_request(standing.cluster_id, standing.own, standing.times.request_timeout_ms)

    def answered(
        self,
        peer: int,
        response: AddRaftVoterResponse | RemoveRaftVoterResponse | UpdateRaftVoterResponse,
        mono_ms: int,
    ) -> None:
        """The leader says what became of it."""
        standing, role = self._standing, self._standing.role
        is_update = isinstance(response, UpdateRaftVoterResponse)
        settled = (ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION) if is_update else _SETTLED
        if not isinstance(role, Follower) or response.error_code not in settled:
            standing.asking.back_off(peer, mono_ms)
            return
        if is_update:
            role.has_updated_leader = role.has_fetched = True
            role.deadline_ms = standing.fetch_deadline(mono_ms)
        role.next_voter_request_ms = mono_ms + standing.times.fetch_timeout_ms
