"""Voter changes that a follower requests for itself: UpdateVoter, and Remove- and AddVoter for auto-join (KIP-853).

RULES    1. At most one per fetch timeout, instead of a Fetch.
         2. A voter sends UpdateVoter if the log has other endpoints or versions for it; with kraft.version 0, once to
            every leader.
         3. A controller with auto-join first removes the voter with its node id and another directory, then adds itself. It
            does not wait for the commit, which may need its own vote.
"""

from __future__ import annotations

from protocol.errors import ErrorCode
from replication.raft.quorum_state import QuorumState
from replication.raft.roles import Follower
from replication.raft.rpc_messages import AddVoter, RemoveVoter, UpdateVoter, UpdateVoterResponse, VoterChangeResponse

_FINAL_CODES = (
    ErrorCode.NONE,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.DUPLICATE_VOTER,
    ErrorCode.VOTER_NOT_FOUND,
)


def next_request(state: QuorumState, role: Follower, *, auto_join: bool) -> AddVoter | RemoveVoter | UpdateVoter | None:
    """The voter request to send to the leader now, if one is needed and due (rule 1)."""
    if state.mono_ms < role.next_voter_request_ms or not state.requests.can_send(role.leader_id):
        return None
    role.next_voter_request_ms = state.mono_ms + state.times.fetch_timeout_ms
    if state.is_voter:
        return _as_voter(state, role)
    return _as_observer(state) if auto_join and state.log.kraft_version.latest else None


def _as_voter(state: QuorumState, role: Follower) -> UpdateVoter | None:
    """UpdateVoter, if the leader does not have the local endpoints and versions (rule 2)."""
    if state.log.kraft_version.latest:
        is_due = state.voters.get(state.local.key.node_id) != state.local
    else:
        is_due = not role.has_updated_leader
    return UpdateVoter(state.epoch, state.local) if is_due else None


def _as_observer(state: QuorumState) -> AddVoter | RemoveVoter:
    """RemoveVoter or AddVoter for auto-join (rule 3)."""
    lost = state.voters.get(state.local.key.node_id)
    if lost is not None:
        return RemoveVoter(lost.key)
    return AddVoter(state.local, ack_when_committed=False, timeout_ms=state.times.request_timeout_ms)


def on_response(state: QuorumState, peer: int, response: VoterChangeResponse | UpdateVoterResponse) -> None:
    """Schedule the next check, or back off after an error."""
    role = state.role
    is_update = isinstance(response, UpdateVoterResponse)
    settled = (ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION) if is_update else _FINAL_CODES
    if not isinstance(role, Follower) or response.code not in settled:
        state.back_off(peer)
        return
    if is_update:
        role.has_updated_leader = role.has_fetched = True
        role.deadline_ms = state.new_fetch_deadline()
    role.next_voter_request_ms = state.mono_ms + state.times.fetch_timeout_ms
