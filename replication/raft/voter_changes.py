"""Voter changes on the leader: AddRaftVoter, RemoveRaftVoter, UpdateRaftVoter, kraft.version (KIP-853).

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
from protocol.messages.cluster import AddRaftVoterRequest, RemoveRaftVoterRequest
from protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse, SupportedFeatureKey
from protocol.messages.raft import UpdateRaftVoterRequest
from protocol.primitives import ZERO_UUID
from protocol.schema import Message
from replication.raft import rpc_messages
from replication.raft.quorum_state import QuorumState
from replication.raft.raft_log import AppendVoters, SendResponse
from replication.raft.roles import Leader, PendingVoterChange
from replication.raft.rpc_messages import update_voter_response, voter_change_response
from replication.raft.voters import ListenerAddress, ReplicaKey, Voter, VoterSet

KRAFT_VERSION = "kraft.version"
CAUGHT_UP_MS = 60 * 60 * 1000
"""A new voter must have been caught up within this time."""


class VoterChanges:
    """The voter changes of one leader."""

    def __init__(self, quorum: QuorumState) -> None:
        self._quorum = quorum

    # ------------------------------------------------------------ adding
    def handle_add(self, request: AddRaftVoterRequest, mono_ms: int) -> Message | None:
        """Start to add a voter; None if the response follows later."""
        quorum, role = self._quorum, self._quorum.role
        if request.cluster_id not in (None, quorum.cluster_id):
            return self._wrong_cluster(request)
        if not isinstance(role, Leader):
            return voter_change_response(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        key = ReplicaKey(request.voter_id, request.voter_directory_id)
        addresses = tuple(ListenerAddress(one.name, one.host, one.port) for one in request.listeners)
        address = next((one for one in addresses if one.listener == quorum.listener), None)
        if address is None or not _is_full_key(key):
            return voter_change_response(request, *_missing_endpoint_error(request, addresses, quorum.listener))
        error = self._check_can_change(role, "adding", mono_ms)
        if error is None and key.node_id in quorum.voters.node_ids:
            message = f"The voter id for {key} is already part of the set of voters {quorum.voters}."
            error = KafkaError(ErrorCode.DUPLICATE_VOTER, message)
        if error is None and not quorum.requests.can_send(key.node_id):
            error = KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"New voter {key} is not ready to receive requests")
        if error is not None:
            return voter_change_response(request, error.code, error.message)
        role.change = PendingVoterChange(request, mono_ms + quorum.times.request_timeout_ms, Voter(key, addresses))
        # ApiVersions is rejected without a client name.
        api_versions = ApiVersionsRequest(client_software_name="barnabas", client_software_version="1")
        quorum.requests.send(key.node_id, address, api_versions)
        return None

    def on_api_versions_response(self, peer: int, response: ApiVersionsResponse | None, mono_ms: int) -> None:
        """The new voter's supported versions; None if it did not answer (rule 3)."""
        role = self._quorum.role
        if not isinstance(role, Leader) or role.change is None or role.change.new_voter is None:
            return
        new = role.change.new_voter
        if new.key.node_id != peer:
            return
        code = ErrorCode.REQUEST_TIMED_OUT if response is None else ErrorCode(response.error_code)
        if response is None or code != ErrorCode.NONE:
            message = f"Aborted add voter operation for since API_VERSIONS returned an error {code.name}"
            self._complete(role, ErrorCode.REQUEST_TIMED_OUT, message)
            return
        supported = next((one for one in response.supported_features if one.name == KRAFT_VERSION), None)
        self._append_new_voter(role, role.change, new, supported, mono_ms)

    def _append_new_voter(
        self, role: Leader, change: PendingVoterChange, new: Voter, supported: SupportedFeatureKey | None, mono_ms: int
    ) -> None:
        version = self._quorum.log.kraft_version.latest
        versions = (0, 0) if supported is None else (supported.min_version, supported.max_version)
        voter = new._replace(kraft_versions=versions)
        if not voter.supports(version):
            message = (
                f"Aborted add voter operation for {new.key} since the {KRAFT_VERSION} range (min: {versions[0]}, max: "
                f"{versions[1]} doesn't support the finalized version {version}"
            )
            self._complete(role, ErrorCode.INVALID_REQUEST, message)
        elif not role.progress.is_caught_up(new.key, mono_ms - CAUGHT_UP_MS):
            message = f"Aborted add voter operation for {new.key} since it is lagging behind"
            self._complete(role, ErrorCode.REQUEST_TIMED_OUT, message)
        else:
            change.new_voter = None
            self._append_voters(role, self._quorum.voters.with_voter(voter))
            assert isinstance(change.request, AddRaftVoterRequest), "only AddRaftVoter has a new voter"
            if not change.request.ack_when_committed:
                self._respond(change, ErrorCode.NONE, None)

    # ------------------------------------------------------------ removing
    def handle_remove(self, request: RemoveRaftVoterRequest, mono_ms: int) -> Message | None:
        """Start to remove a voter; None if the response follows later."""
        quorum, role = self._quorum, self._quorum.role
        if request.cluster_id not in (None, quorum.cluster_id):
            return self._wrong_cluster(request)
        if not isinstance(role, Leader):
            return voter_change_response(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        key, voters = ReplicaKey(request.voter_id, request.voter_directory_id), quorum.voters
        if not _is_full_key(key):
            message = "Remove voter request didn't include a valid voter"
            return voter_change_response(request, ErrorCode.INVALID_REQUEST, message)
        error = self._check_can_change(role, "removing", mono_ms)
        old = voters.get(key.node_id)
        if error is None and (old is None or old.key != key or len(voters) == 1):
            message = f"Cannot remove voter {key} from the set of voters {voters}"
            error = KafkaError(ErrorCode.VOTER_NOT_FOUND, message)
        if error is not None:
            return voter_change_response(request, error.code, error.message)
        role.change = PendingVoterChange(request, mono_ms + quorum.times.request_timeout_ms)
        self._append_voters(role, voters.without(key.node_id))
        return None

    # ------------------------------------------------------------ updating
    def handle_update(self, request: UpdateRaftVoterRequest, error: ErrorCode, mono_ms: int) -> Message:
        """Update a voter's endpoints and versions; `error` is the result of the leader epoch check."""
        quorum, role = self._quorum, self._quorum.role
        if request.cluster_id not in (None, quorum.cluster_id):
            return update_voter_response(ErrorCode.INCONSISTENT_CLUSTER_ID, quorum.leader_and_epoch)
        if error != ErrorCode.NONE or not isinstance(role, Leader):
            return update_voter_response(error, quorum.leader_and_epoch)
        range_ = request.k_raft_version_feature
        voter = Voter(
            ReplicaKey(request.voter_id, request.voter_directory_id),
            tuple(ListenerAddress(one.name, one.host, one.port) for one in request.listeners),
            (range_.min_supported_version, range_.max_supported_version),
        )
        code = self._validate_update(role, voter, mono_ms)
        if code == ErrorCode.NONE:
            self._apply_update(role, voter)
            role.progress.on_contact(voter.key, mono_ms)
        return update_voter_response(code, quorum.leader_and_epoch)

    def _validate_update(self, role: Leader, voter: Voter, mono_ms: int) -> ErrorCode:
        log, listener = self._quorum.log, self._quorum.listener
        lowest, highest = voter.kraft_versions
        has_listener = listener in {address.listener for address in voter.addresses}
        if not _is_full_key(voter.key) or not has_listener or not 0 <= lowest <= highest:
            return ErrorCode.INVALID_REQUEST
        version = log.kraft_version.latest
        self.expire(role, mono_ms)
        if role.change is not None or not role.progress.high_watermark or self._is_uncommitted(role):
            return ErrorCode.REQUEST_TIMED_OUT
        if not voter.supports(version):
            return ErrorCode.INVALID_REQUEST
        is_configured = role.known_voters.get(voter.key.node_id) is not None
        is_voter = voter.key in self._quorum.voters if version else is_configured
        return ErrorCode.NONE if is_voter else ErrorCode.VOTER_NOT_FOUND

    def _apply_update(self, role: Leader, voter: Voter) -> None:
        if self._quorum.log.kraft_version.latest:
            self._append_voters(role, self._quorum.voters.with_voter(voter))
        else:
            role.known_voters = role.known_voters.with_voter(voter)

    def upgrade(self, version: int, *, validate_only: bool) -> KafkaError | None:
        """Raise kraft.version, and append the voters with it (rule 5); returns the error, None if accepted."""
        log, role = self._quorum.log, self._quorum.role
        if not isinstance(role, Leader):
            return KafkaError(ErrorCode.NOT_CONTROLLER)
        now = log.kraft_version.latest
        message = f"Invalid upgrade of {KRAFT_VERSION} from version {now} to {version}"
        if version == now:
            return None
        if version < now:
            return KafkaError(ErrorCode.INVALID_UPDATE_VERSION, f"{message} because the new version is a downgrade")
        if version != 1:
            return KafkaError(ErrorCode.INVALID_UPDATE_VERSION, message)
        if not all(voter.supports(version) and _is_full_key(voter.key) for voter in role.known_voters):
            message = f"Invalid upgrade of {KRAFT_VERSION} to {version} because not all of the voters support it"
            return KafkaError(ErrorCode.INVALID_UPDATE_VERSION, message)
        if not validate_only and not self._is_appending_voters(role):
            self._append_voters(role, role.known_voters, version)
        return None

    # ------------------------------------------------------------ completion
    def on_high_watermark(self, role: Leader) -> None:
        """The high watermark has advanced: complete a committed change."""
        change = role.change
        if change is not None and change.new_voter is None and not self._is_uncommitted(role):
            self._complete(role, ErrorCode.NONE, None)

    def expire(self, role: Leader, mono_ms: int) -> None:
        """Answer a change whose timeout has passed (rule 4)."""
        if role.change is not None and mono_ms >= role.change.deadline_ms:
            self._complete(role, ErrorCode.REQUEST_TIMED_OUT, None)

    def _check_can_change(self, role: Leader, verb: str, mono_ms: int) -> KafkaError | None:
        """The error while no change may start (rule 1)."""
        log = self._quorum.log
        self.expire(role, mono_ms)
        if role.change is not None:
            return _retry_later("leader to handle previous voter change request")
        if not role.progress.high_watermark:
            return _retry_later("leader to establish HWM and fence previous voter changes")
        if not (version := log.kraft_version.latest):
            message = f"Cluster doesn't support {verb} voter because the {KRAFT_VERSION} feature is {version}"
            return KafkaError(ErrorCode.UNSUPPORTED_VERSION, message)
        if self._is_uncommitted(role):
            offset, watermark = log.voters.latest_offset, role.progress.high_watermark
            return _retry_later(f"voters to commit the latest voter change at Optional[{offset}] with HWM {watermark}")
        return None

    def _is_uncommitted(self, role: Leader) -> bool:
        return self._is_appending_voters(role) or self._quorum.log.voters.latest_offset >= role.progress.high_watermark

    def _is_appending_voters(self, role: Leader) -> bool:
        """Whether a voter set is queued that is not in the log yet."""
        return role.appending_after == self._quorum.log.voters.latest_offset

    def _append_voters(self, role: Leader, voters: VoterSet, version: int | None = None) -> None:
        role.appending_after = self._quorum.log.voters.latest_offset
        self._quorum.effects.append(AppendVoters(self._quorum.epoch, voters, version))

    def _complete(self, role: Leader, code: ErrorCode, message: str | None) -> None:
        assert role.change is not None, "a change is in progress"
        self._respond(role.change, code, message)
        role.change = None

    def _respond(self, change: PendingVoterChange, code: ErrorCode, message: str | None) -> None:
        if not change.is_answered:
            change.is_answered = True
            response = rpc_messages.voter_change_response(change.request, code, message)
            self._quorum.effects.append(SendResponse(change.request, response))

    def _wrong_cluster(self, request: AddRaftVoterRequest | RemoveRaftVoterRequest) -> Message:
        message = f'The given id "{request.cluster_id}" doesn\'t match the cluster id "{self._quorum.cluster_id}"'
        return voter_change_response(request, ErrorCode.INCONSISTENT_CLUSTER_ID, message)


def _is_full_key(key: ReplicaKey) -> bool:
    return key.node_id >= 0 and key.directory_id != ZERO_UUID


def _retry_later(for_what: str) -> KafkaError:
    return KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"Request timed out waiting for {for_what}")


def _missing_endpoint_error(
    request: AddRaftVoterRequest, addresses: tuple[ListenerAddress, ...], listener: str
) -> tuple[ErrorCode, str]:
    if request.voter_id < 0 or request.voter_directory_id == ZERO_UUID:
        return ErrorCode.INVALID_REQUEST, "Add voter request didn't include a valid voter"
    endpoints = ", ".join(f"ListenerName({one.listener})={one.host}/<unresolved>:{one.port}" for one in addresses)
    return ErrorCode.INVALID_REQUEST, (
        f"Add voter request didn't include the endpoint (Endpoints(endpoints={{{endpoints}}})) for the default listener "
        f"ListenerName({listener})"
    )
