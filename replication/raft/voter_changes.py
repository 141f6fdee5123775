"""Voter changes on the leader: AddVoter, RemoveVoter, UpdateVoter, kraft.version (KIP-853).

RULES    1. One change at a time: a change starts when the previous one and a record of the leader's epoch are committed.
            Consecutive voter sets then always share a majority.
         2. A new voter set takes effect when it is appended. The response follows when it is committed, or at once if the
            request does not wait (ack_when_committed).
         3. A voter can be added if it is caught up, so that commits need not wait for it, and if it supports kraft.version.
         4. A change is answered before its timeout; it may still be committed later.
         5. With kraft.version 0 the voters are configured, and the leader keeps their versions in memory for the upgrade.
         6. The checks, their order, codes and messages are Apache Kafka's (AddVoterHandler, RemoveVoterHandler,
            UpdateVoterHandler).
NOT HERE The resignation of a removed leader (`leader_fetch.py`).
"""

from __future__ import annotations

from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import ZERO_UUID
from replication.raft.events import AppendVoters
from replication.raft.quorum_state import QuorumState
from replication.raft.roles import Leader, PendingVoterChange
from replication.raft.rpc_messages import (
    AddVoter,
    ApiVersions,
    ApiVersionsResponse,
    RemoveVoter,
    UpdateVoter,
    UpdateVoterResponse,
    VoterChangeResponse,
)
from replication.raft.voters import ReplicaKey, Voter, VoterSet

KRAFT_VERSION = "kraft.version"
CAUGHT_UP_MS = 60 * 60 * 1000
"""A new voter must have been caught up within this time."""

# ---- adding ----------------------------------------------------------------------------------------------------


def on_add(state: QuorumState, request_id: int, request: AddVoter) -> VoterChangeResponse | None:
    """Start to add a voter; None if the response follows later."""
    role, voter, key = state.role, request.voter, request.voter.key
    if not isinstance(role, Leader):
        return VoterChangeResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    address = next((known for known in voter.addresses if known.listener == state.listener), None)
    if address is None or not _is_full_key(key):
        return VoterChangeResponse(ErrorCode.INVALID_REQUEST, _missing_endpoint_message(voter, state.listener))
    error = _check_can_change(state, role, "adding")
    if error is None and key.node_id in state.voters.node_ids:
        message = f"The voter id for {key} is already part of the set of voters {state.voters}."
        error = VoterChangeResponse(ErrorCode.DUPLICATE_VOTER, message)
    if error is None and not state.requests.can_send(key.node_id):
        error = VoterChangeResponse(ErrorCode.REQUEST_TIMED_OUT, f"New voter {key} is not ready to receive requests")
    if error is None:
        role.change = PendingVoterChange(request_id, request, _change_deadline(state), voter)
        state.send(key.node_id, ApiVersions(), address)
    return error


def on_api_versions_response(state: QuorumState, peer: int, response: ApiVersionsResponse | None) -> None:
    """The new voter's supported versions; None if it did not answer (rule 3)."""
    role = state.role
    change = role.change if isinstance(role, Leader) else None
    if not isinstance(role, Leader) or change is None or change.new_voter is None:
        return
    if change.new_voter.key.node_id != peer:
        return
    code = ErrorCode.BROKER_NOT_AVAILABLE if response is None else ErrorCode(response.code)
    if response is None or code != ErrorCode.NONE:
        message = f"Aborted add voter operation for since API_VERSIONS returned an error {code.name}"
        _complete(state, role, ErrorCode.REQUEST_TIMED_OUT, message)
        return
    _append_new_voter(state, role, change, change.new_voter._replace(kraft_versions=response.kraft_versions))


def _append_new_voter(state: QuorumState, role: Leader, change: PendingVoterChange, voter: Voter) -> None:
    version, (lowest, highest) = state.log.kraft_version.latest, voter.kraft_versions
    if not voter.supports(version):
        message = (
            f"Aborted add voter operation for {voter.key} since the {KRAFT_VERSION} range (min: {lowest}, max: "
            f"{highest} doesn't support the finalized version {version}"
        )
        _complete(state, role, ErrorCode.INVALID_REQUEST, message)
    elif not role.progress.is_caught_up(voter.key, state.mono_ms - CAUGHT_UP_MS):
        message = f"Aborted add voter operation for {voter.key} since it is lagging behind"
        _complete(state, role, ErrorCode.REQUEST_TIMED_OUT, message)
    else:
        change.new_voter = None
        _append_voters(state, role, state.voters.with_voter(voter))
        assert isinstance(change.request, AddVoter), "only AddVoter has a new voter"
        if not change.request.ack_when_committed:
            _respond(state, change, ErrorCode.NONE, None)


# ---- removing --------------------------------------------------------------------------------------------------


def on_remove(state: QuorumState, request_id: int, request: RemoveVoter) -> VoterChangeResponse | None:
    """Start to remove a voter; None if the response follows later."""
    role, key, voters = state.role, request.key, state.voters
    if not isinstance(role, Leader):
        return VoterChangeResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if not _is_full_key(key):
        return VoterChangeResponse(ErrorCode.INVALID_REQUEST, "Remove voter request didn't include a valid voter")
    error = _check_can_change(state, role, "removing")
    old = voters.get(key.node_id)
    if error is None and (old is None or old.key != key or len(voters) == 1):
        error = VoterChangeResponse(
            ErrorCode.VOTER_NOT_FOUND, f"Cannot remove voter {key} from the set of voters {voters}"
        )
    if error is None:
        role.change = PendingVoterChange(request_id, request, _change_deadline(state))
        _append_voters(state, role, voters.without(key.node_id))
    return error


# ---- updating --------------------------------------------------------------------------------------------------


def on_update(state: QuorumState, request: UpdateVoter) -> UpdateVoterResponse:
    """Update a voter's endpoints and versions."""
    role, voter, code = state.role, request.voter, state.check_leader_epoch(request.epoch)
    if code == ErrorCode.NONE and isinstance(role, Leader):
        code = _validate_update(state, role, voter)
        if code == ErrorCode.NONE:
            if state.log.kraft_version.latest:
                _append_voters(state, role, state.voters.with_voter(voter))
            else:
                role.known_voters = role.known_voters.with_voter(voter)
            role.progress.on_contact(voter.key, state.mono_ms)
    return UpdateVoterResponse(code, state.leader_and_epoch)


def _validate_update(state: QuorumState, role: Leader, voter: Voter) -> ErrorCode:
    lowest, highest = voter.kraft_versions
    has_listener = state.listener in {address.listener for address in voter.addresses}
    if not _is_full_key(voter.key) or not has_listener or not 0 <= lowest <= highest:
        return ErrorCode.INVALID_REQUEST
    version = state.log.kraft_version.latest
    expire(state, role)
    if role.change is not None or not role.progress.high_watermark or _is_uncommitted(state, role):
        return ErrorCode.REQUEST_TIMED_OUT
    if not voter.supports(version):
        return ErrorCode.INVALID_REQUEST
    is_configured = role.known_voters.get(voter.key.node_id) is not None
    is_voter = voter.key in state.voters if version else is_configured
    return ErrorCode.NONE if is_voter else ErrorCode.VOTER_NOT_FOUND


def check_upgrade(state: QuorumState, version: int) -> KafkaError | None:
    """The reason why kraft.version cannot be raised to this version; None if it can (rule 5)."""
    role, current = state.role, state.log.kraft_version.latest
    message = f"Invalid upgrade of {KRAFT_VERSION} from version {current} to {version}"
    if not isinstance(role, Leader):
        return KafkaError(ErrorCode.NOT_CONTROLLER)
    if version == current:
        return None
    if version < current:
        return KafkaError(ErrorCode.INVALID_UPDATE_VERSION, f"{message} because the new version is a downgrade")
    if version != 1:
        return KafkaError(ErrorCode.INVALID_UPDATE_VERSION, message)
    if not all(voter.supports(version) and _is_full_key(voter.key) for voter in role.known_voters):
        message = f"Invalid upgrade of {KRAFT_VERSION} to {version} because not all of the voters support it"
        return KafkaError(ErrorCode.INVALID_UPDATE_VERSION, message)
    return None


def upgrade(state: QuorumState, version: int) -> None:
    """Raise kraft.version if possible, and append the voters with it."""
    role = state.role
    is_higher = version > state.log.kraft_version.latest
    is_possible = is_higher and check_upgrade(state, version) is None
    if isinstance(role, Leader) and is_possible and not _is_appending_voters(state, role):
        _append_voters(state, role, role.known_voters, version)


# ---- completion ------------------------------------------------------------------------------------------------


def on_high_watermark(state: QuorumState, role: Leader) -> None:
    """The high watermark has advanced: complete a committed change."""
    change = role.change
    if change is not None and change.new_voter is None and not _is_uncommitted(state, role):
        _complete(state, role, ErrorCode.NONE, None)


def expire(state: QuorumState, role: Leader) -> None:
    """Answer a change whose timeout has passed (rule 4)."""
    if role.change is not None and state.mono_ms >= role.change.deadline_ms:
        _complete(state, role, ErrorCode.REQUEST_TIMED_OUT, None)


def _change_deadline(state: QuorumState) -> int:
    return state.mono_ms + state.times.request_timeout_ms


def _check_can_change(state: QuorumState, role: Leader, verb: str) -> VoterChangeResponse | None:
    """The error while no change may start (rule 1)."""
    log = state.log
    expire(state, role)
    if role.change is not None:
        return _retry_later("leader to handle previous voter change request")
    if not role.progress.high_watermark:
        return _retry_later("leader to establish HWM and fence previous voter changes")
    if not (version := log.kraft_version.latest):
        message = f"Cluster doesn't support {verb} voter because the {KRAFT_VERSION} feature is {version}"
        return VoterChangeResponse(ErrorCode.UNSUPPORTED_VERSION, message)
    if _is_uncommitted(state, role):
        offset, watermark = log.voters.latest_offset, role.progress.high_watermark
        return _retry_later(f"voters to commit the latest voter change at Optional[{offset}] with HWM {watermark}")
    return None


def _is_uncommitted(state: QuorumState, role: Leader) -> bool:
    return _is_appending_voters(state, role) or state.log.voters.latest_offset >= role.progress.high_watermark


def _is_appending_voters(state: QuorumState, role: Leader) -> bool:
    """Whether a voter set is queued that is not in the log yet."""
    return role.appending_after == state.log.voters.latest_offset


def _append_voters(state: QuorumState, role: Leader, voters: VoterSet, version: int | None = None) -> None:
    role.appending_after = state.log.voters.latest_offset
    state.effects.append(AppendVoters(state.epoch, voters, version))


def _complete(state: QuorumState, role: Leader, code: ErrorCode, message: str | None) -> None:
    assert role.change is not None, "a change is in progress"
    _respond(state, role.change, code, message)
    role.change = None


def _respond(state: QuorumState, change: PendingVoterChange, code: ErrorCode, message: str | None) -> None:
    if not change.is_answered:
        change.is_answered = True
        state.respond(change.request_id, VoterChangeResponse(code, message))


def _is_full_key(key: ReplicaKey) -> bool:
    return key.node_id >= 0 and key.directory_id != ZERO_UUID


def _retry_later(for_what: str) -> VoterChangeResponse:
    return VoterChangeResponse(ErrorCode.REQUEST_TIMED_OUT, f"Request timed out waiting for {for_what}")


def _missing_endpoint_message(voter: Voter, listener: str) -> str:
    if not _is_full_key(voter.key):
        return "Add voter request didn't include a valid voter"
    endpoints = ", ".join(f"ListenerName({name})={host}/<unresolved>:{port}" for name, host, port in voter.addresses)
    return (
        f"Add voter request didn't include the endpoint (Endpoints(endpoints={{{endpoints}}})) for the default listener "
        f"ListenerName({listener})"
    )
