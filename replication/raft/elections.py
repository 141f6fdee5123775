"""Leader elections: Vote, BeginEpoch and EndEpoch, sent and received (KIP-595, KIP-996).

RULES    1. A replica grants one vote per epoch, and only to a candidate whose log is at least as up-to-date: the last epoch
            decides, then the end offset.
         2. A follower that fetches from a live leader rejects pre-votes. A pre-vote changes no state on either side (KIP-996).
         3. Observers grant votes and can receive them: their own voter set may be stale (KIP-853).
         4. The checks and their order are Apache Kafka's (KafkaRaftClient).
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.errors import ErrorCode
from replication.raft.quorum_state import QuorumState
from replication.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from replication.raft.rpc_messages import BeginEpoch, EndEpoch, EpochResponse, Vote, VoteResponse
from replication.raft.voters import ReplicaKey

# ---- requests received -----------------------------------------------------------------------------------------


def on_vote(state: QuorumState, vote: Vote) -> VoteResponse:
    """Grant or reject a vote or a pre-vote."""
    code = _validate_vote(state, vote)
    if code == ErrorCode.NONE:
        if vote.epoch > state.epoch:
            state.become_unattached(vote.epoch)
        if not _is_for_local(state, vote.recipient):
            code = ErrorCode.INVALID_VOTER_KEY
    is_granted = code == ErrorCode.NONE and _may_grant(state, vote)
    if is_granted and not vote.is_pre_vote and state.voted_key is None:
        _grant(state, vote.candidate)
    return VoteResponse(code, state.leader_and_epoch, is_granted)


def _validate_vote(state: QuorumState, vote: Vote) -> ErrorCode:
    newest = vote.end.epoch if vote.is_pre_vote else vote.end.epoch + 1
    if min(vote.end) < 0 or newest > vote.epoch:
        return ErrorCode.INVALID_REQUEST
    return _validate_epoch(state, vote.candidate.node_id, vote.epoch)


def _validate_epoch(state: QuorumState, sender_id: int, epoch: int) -> ErrorCode:
    if epoch < state.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    return ErrorCode.INVALID_REQUEST if sender_id < 0 else ErrorCode.NONE


def _is_for_local(state: QuorumState, recipient: ReplicaKey) -> bool:
    """Whether a request names this replica as its recipient, or none."""
    return recipient.node_id < 0 or recipient.matches(state.local.key)


def _may_grant(state: QuorumState, vote: Vote) -> bool:
    """Whether this replica grants the vote or pre-vote (rules 1 and 2)."""
    role = state.role
    if vote.is_pre_vote:
        is_led = isinstance(role, Leader) or (isinstance(role, Follower) and role.has_fetched)
        return not is_led and vote.end >= state.log.end
    if not isinstance(role, Unattached | Prospective):
        return False
    if state.voted_key is not None:
        return state.voted_key.matches(vote.candidate)
    return vote.end >= state.log.end and state.leader_id < 0


def _grant(state: QuorumState, candidate: ReplicaKey) -> None:
    if isinstance(state.role, Prospective):
        state.become_prospective(candidate)
    else:
        state.transition_to(Unattached(state.new_election_deadline()), state.epoch, candidate)


def on_begin_epoch(state: QuorumState, request: BeginEpoch) -> EpochResponse:
    """Follow the new leader."""
    code = _accept_leader(state, request)
    if code == ErrorCode.NONE and not _is_for_local(state, request.recipient):
        code = ErrorCode.INVALID_VOTER_KEY
    return EpochResponse(code, state.leader_and_epoch)


def on_end_epoch(state: QuorumState, request: EndEpoch) -> EpochResponse:
    """The leader resigned: set the election deadline by the order of preferred candidates."""
    code = _accept_leader(state, request)
    role = state.role
    if code == ErrorCode.NONE and isinstance(role, Follower) and role.leader_id == request.leader_id:
        role.deadline_ms = state.mono_ms + _end_epoch_backoff_ms(state, request.preferred_candidates)
    return EpochResponse(code, state.leader_and_epoch)


def _accept_leader(state: QuorumState, request: BeginEpoch | EndEpoch) -> ErrorCode:
    """Validate and apply the leader and epoch of a request."""
    if (code := _validate_epoch(state, request.leader_id, request.epoch)) != ErrorCode.NONE:
        return code
    is_other = request.epoch == state.epoch and state.leader_id not in (-1, request.leader_id)
    if is_other or request.leader_id == state.local.key.node_id:
        return ErrorCode.INVALID_REQUEST
    state.learn_leader(request.epoch, request.leader_id, request.addresses)
    return ErrorCode.NONE


def _end_epoch_backoff_ms(state: QuorumState, candidates: Sequence[ReplicaKey]) -> int:
    """The delay before this replica's election: 0 for the first preferred candidate, doubled for each next (KIP-595)."""
    most_ms, local = state.times.election_backoff_max_ms, state.local.key
    place = next((place for place, key in enumerate(candidates) if key.matches(local)), None)
    if place is None:
        return most_ms
    return min(most_ms, (most_ms >> len(candidates) - 1) << place - 1) if place else 0


# ---- requests sent ---------------------------------------------------------------------------------------------


def request_votes(state: QuorumState, role: Prospective | Candidate) -> None:
    """Send Vote requests to the voters without an answer, unless the election is lost."""
    is_pre_vote = isinstance(role, Prospective)
    for voter in [] if role.tally.is_rejected else role.tally.unanswered:
        if state.requests.can_send(voter.key.node_id):
            vote = Vote(state.local.key, voter.key, state.epoch, state.log.end, is_pre_vote)
            state.send(voter.key.node_id, vote)


def send_begin_epoch(state: QuorumState, role: Leader) -> None:
    """Send BeginEpoch to the voters that do not fetch, every half fetch timeout."""
    interval_ms, local = state.times.fetch_timeout_ms // 2, state.local
    role.next_begin_epoch_ms = {
        node_id: due_ms for node_id, due_ms in role.next_begin_epoch_ms.items() if node_id in state.voters.node_ids
    }
    for voter in state.voters:
        node_id = voter.key.node_id
        if node_id == local.key.node_id or role.next_begin_epoch_ms.get(node_id, 0) > state.mono_ms:
            continue
        role.next_begin_epoch_ms[node_id] = state.mono_ms + interval_ms
        is_following = role.progress.has_fetched(voter.key, state.mono_ms - interval_ms)
        if state.requests.can_send(node_id) and not is_following:
            state.send(node_id, BeginEpoch(local.key.node_id, state.epoch, local.addresses, voter.key))
    role.progress.expire_observers(state.voters, state.mono_ms)


def send_end_epoch(state: QuorumState, role: Resigned) -> None:
    """Send EndEpoch to the voters that have not acknowledged it."""
    local = state.local
    for node_id in sorted(role.unacked_voters):
        if state.requests.can_send(node_id):
            request = EndEpoch(local.key.node_id, state.epoch, local.addresses, tuple(role.preferred_successors))
            state.send(node_id, request)


# ---- responses -------------------------------------------------------------------------------------------------


def on_vote_response(state: QuorumState, peer: int, response: VoteResponse) -> None:
    """Count a vote; the election may end."""
    role = state.role
    if not isinstance(role, Prospective | Candidate):
        return
    if response.code != ErrorCode.NONE or response.leader.epoch < state.epoch:
        state.requests.back_off(peer, state.mono_ms)
        return
    role.tally.record(peer, is_granted=response.is_granted)
    if role.tally.is_won:
        if isinstance(role, Prospective):
            state.become_candidate()
        else:
            state.become_leader(role.tally)
    elif role.tally.is_rejected and isinstance(role, Prospective):  # a candidate waits for its election timeout
        state.pre_vote_lost(role)


def on_pre_vote_unsupported(state: QuorumState) -> None:
    """A voter does not support pre-votes: start the election directly."""
    if isinstance(state.role, Prospective):
        state.become_candidate()


def on_epoch_response(state: QuorumState, peer: int) -> None:
    """A voter acknowledged BeginEpoch or EndEpoch."""
    if isinstance(state.role, Resigned):
        state.role.unacked_voters.discard(peer)
