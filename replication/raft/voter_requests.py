"""Voter changes that a follower requests for itself: UpdateRaftVoter, and Remove- and AddRaftVoter for auto-join (KIP-853).

RULES    1. At most one per fetch timeout, instead of a Fetch.
         2. A voter sends UpdateRaftVoter if the log has other endpoints or versions for it; with kraft.version 0, once to
            every leader.
         3. A controller with auto-join first removes the voter with its node id and another directory, then adds itself.
"""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.messages.cluster import AddRaftVoterResponse, RemoveRaftVoterResponse
from protocol.messages.raft import UpdateRaftVoterResponse
from protocol.schema import Message
from replication.raft import rpc_messages
from replication.raft.quorum_state import QuorumState
from replication.raft.roles import Follower

_FINAL_CODES = (
    ErrorCode.NONE,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.DUPLICATE_VOTER,
    ErrorCode.VOTER_NOT_FOUND,
)


class VoterRequests:
    """The voter requests of one follower."""

    def __init__(self, quorum: QuorumState, *, auto_join: bool) -> None:
        self._quorum = quorum
        self._auto_join = auto_join

    def send_if_due(self, role: Follower, mono_ms: int) -> bool:
        """Send a voter request to the leader if one is needed and due; returns whether it did (rule 1)."""
        quorum = self._quorum
        if mono_ms < role.next_voter_request_ms or not quorum.requests.can_send(role.leader_id):
            return False
        role.next_voter_request_ms = mono_ms + quorum.times.fetch_timeout_ms
        request = self._as_voter(role) if quorum.is_voter else self._as_observer()
        if request is None:
            return False
        quorum.requests.send(role.leader_id, quorum.address_of(role.leader_id), request)
        return True

    def _as_voter(self, role: Follower) -> Message | None:
        """UpdateRaftVoter, if the leader does not have the local endpoints and versions (rule 2)."""
        quorum = self._quorum
        if quorum.log.kraft_version.latest:
            is_due = quorum.voters.get(quorum.local.key.node_id) != quorum.local
        else:
            is_due = not role.has_updated_leader
        return rpc_messages.update_voter_request(quorum.cluster_id, quorum.local, quorum.epoch) if is_due else None

    def _as_observer(self) -> Message | None:
        """RemoveRaftVoter or AddRaftVoter for auto-join (rule 3)."""
        quorum = self._quorum
        if not self._auto_join or not quorum.log.kraft_version.latest:
            return None
        lost = quorum.voters.get(quorum.local.key.node_id)
        if lost is not None:
            return rpc_messages.remove_voter_request(quorum.cluster_id, lost.key)
        return rpc_messages.add_voter_request(quorum.cluster_id, quorum.local, quorum.times.request_timeout_ms)

    def on_response(
        self,
        peer: int,
        response: AddRaftVoterResponse | RemoveRaftVoterResponse | UpdateRaftVoterResponse,
        mono_ms: int,
    ) -> None:
        """Schedule the next check, or back off after an error."""
        quorum, role = self._quorum, self._quorum.role
        is_update = isinstance(response, UpdateRaftVoterResponse)
        settled = (ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION) if is_update else _FINAL_CODES
        if not isinstance(role, Follower) or response.error_code not in settled:
            quorum.requests.back_off(peer, mono_ms)
            return
        if is_update:
            role.has_updated_leader = role.has_fetched = True
            role.deadline_ms = quorum.fetch_deadline(mono_ms)
        role.next_voter_request_ms = mono_ms + quorum.times.fetch_timeout_ms
