"""Changes of the voters, as their leader decides them (KIP-853).

RULES    1. One at a time: a change begins when the one before it is committed, and something of the leader's own epoch is
            too; two sets of voters that follow each other then always share a majority.
         2. New voters count from the moment that they are in the log; who asked is answered when they are committed, or,
            if that is what was asked for, at once.
         3. Who is to be added has followed the log before, or the quorum might stand still until it has, and says
            which versions of the quorum's protocol it supports.
         4. Who waits is answered in time: a change whose time is over may still come to be.
         5. With kraft.version 0 the voters are a setting, and the leader knows by heart what they support, for the upgrade.
         6. Checks, their order, codes and sentences are Apache Kafka's (Add-, Remove-, UpdateVoterHandler).
NOT HERE Resigning when this replica is removed (`leader_fetch.py`).
"""

from __future__ import annotations

from protocol.errors import ErrorCode, KafkaError
from protocol.messages.cluster import AddRaftVoterRequest, RemoveRaftVoterRequest
from protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse, SupportedFeatureKey
from protocol.messages.raft import UpdateRaftVoterRequest
from protocol.primitives import ZERO_UUID
from protocol.schema import Message
from replication.raft import rpc_messages
from replication.raft.raft_log import Answer, NameVoters
from replication.raft.replica_state import Standing
from replication.raft.roles import Change, Leader
from replication.raft.rpc_messages import change_response, update_voter_response
from replication.raft.voters import Address, ReplicaKey, Voter, VoterSet

KRAFT_VERSION = "kraft.version"
CAUGHT_UP_MS = 60 * 60 * 1000
"""Who fetched all within that time can be added."""


class VoterChanges:
    """What a leader does about its voters; a refusal is an answer."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing

    # ------------------------------------------------------------ adding
    def add(self, request: AddRaftVoterRequest, mono_ms: int) -> Message | None:
        """Somebody is to have a vote; None: the answer comes later."""
        standing, role = self._standing, self._standing.role
        if request.cluster_id not in (None, standing.cluster_id):
            return self._wrong_cluster(request)
        if not isinstance(role, Leader):
            return change_response(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        key = ReplicaKey(request.voter_id, request.voter_directory_id)
        addresses = tuple(Address(one.name, one.host, one.port) for one in request.listeners)
        address = next((one for one in addresses if one.listener == standing.listener), None)
        if address is None or not _is_full(key):
            return change_response(request, *_incomplete(request, addresses, standing.listener))
        refusal = self._why_not_now(role, "adding", mono_ms)
        if refusal is None and key.node_id in standing.voters.node_ids:
            sentence = f"The voter id for {key} is already part of the set of voters {standing.voters}."
            refusal = KafkaError(ErrorCode.DUPLICATE_VOTER, sentence)
        if refusal is None and not standing.asking.may_ask(key.node_id):
            refusal = KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"New voter {key} is not ready to receive requests")
        if refusal is not None:
            return change_response(request, refusal.code, refusal.message)
        role.change = Change(request, mono_ms + standing.times.request_timeout_ms, Voter(key, addresses))
        who = ApiVersionsRequest(client_software_name="barnabas", client_software_version="1")  # refused without names
        standing.asking.ask(key.node_id, address, who)
        return None

    def supported(self, peer: int, response: ApiVersionsResponse | None, mono_ms: int) -> None:
        """Who is to be added says what it supports; None: it says nothing (rule 3)."""
        role = self._standing.role
        if not isinstance(role, Leader) or role.change is None or role.change.new is None:
            return
        new = role.change.new
        if new.key.node_id != peer:
            return
        code = ErrorCode.REQUEST_TIMED_OUT if response is None else ErrorCode(response.error_code)
        if response is None or code != ErrorCode.NONE:
            sentence = f"Aborted add voter operation for since API_VERSIONS returned an error {code.name}"
            self._end(role, ErrorCode.REQUEST_TIMED_OUT, sentence)
            return
        supported = next((one for one in response.supported_features if one.name == KRAFT_VERSION), None)
        self._append_new(role, role.change, new, supported, mono_ms)

    def _append_new(
        self, role: Leader, change: Change, new: Voter, supported: SupportedFeatureKey | None, mono_ms: int
    ) -> None:
        version = self._standing.log.kraft_version.latest
        versions = (0, 0) if supported is None else (supported.min_version, supported.max_version)
        voter = new._replace(kraft_versions=versions)
        if not voter.supports(version):
            sentence = (
                f"Aborted add voter operation for {new.key} since the {KRAFT_VERSION} range (min: {versions[0]}, max: "
                f"{versions[1]} doesn't support the finalized version {version}"
            )
            self._end(role, ErrorCode.INVALID_REQUEST, sentence)
        elif not role.progress.has_followed(new.key, mono_ms - CAUGHT_UP_MS):
            sentence = f"Aborted add voter operation for {new.key} since it is lagging behind"
            self._end(role, ErrorCode.REQUEST_TIMED_OUT, sentence)
        else:
            change.new = None
            self._name(role, self._standing.voters.with_voter(voter))
            assert isinstance(change.request, AddRaftVoterRequest), "only who is to be added has something to say"
            if not change.request.ack_when_committed:
                self._answer(change, ErrorCode.NONE, None)

    # ------------------------------------------------------------ removing
    def remove(self, request: RemoveRaftVoterRequest, mono_ms: int) -> Message | None:
        """Somebody is to have no vote any more; None: the answer comes later."""
        standing, role = self._standing, self._standing.role
        if request.cluster_id not in (None, standing.cluster_id):
            return self._wrong_cluster(request)
        if not isinstance(role, Leader):
            return change_response(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        key, voters = ReplicaKey(request.voter_id, request.voter_directory_id), standing.voters
        if not _is_full(key):
            sentence = "Remove voter request didn't include a valid voter"
            return change_response(request, ErrorCode.INVALID_REQUEST, sentence)
        refusal = self._why_not_now(role, "removing", mono_ms)
        old = voters.get(key.node_id)
        if refusal is None and (old is None or old.key != key or len(voters) == 1):
            sentence = f"Cannot remove voter {key} from the set of voters {voters}"
            refusal = KafkaError(ErrorCode.VOTER_NOT_FOUND, sentence)
        if refusal is not None:
            return change_response(request, refusal.code, refusal.message)
        role.change = Change(request, mono_ms + standing.times.request_timeout_ms)
        self._name(role, voters.without(key.node_id))
        return None

    # ------------------------------------------------------------ knowing anew
    def update(self, request: UpdateRaftVoterRequest, refusal: ErrorCode, mono_ms: int) -> Message:
        """A voter says where it listens and what it supports; `refusal`: why this is not the leader that it believes in."""
        standing, role = self._standing, self._standing.role
        if request.cluster_id not in (None, standing.cluster_id):
            return update_voter_response(ErrorCode.INCONSISTENT_CLUSTER_ID, standing.who)
        if refusal != ErrorCode.NONE or not isinstance(role, Leader):
            return update_voter_response(refusal, standing.who)
        range_ = request.k_raft_version_feature
        voter = Voter(
            ReplicaKey(request.voter_id, request.voter_directory_id),
            tuple(Address(one.name, one.host, one.port) for one in request.listeners),
            (range_.min_supported_version, range_.max_supported_version),
        )
        code = self._why_not_update(role, voter, mono_ms)
        if code == ErrorCode.NONE:
            self._know(role, voter)
            role.progress.heard_of(voter.key, mono_ms)
        return update_voter_response(code, standing.who)

    def _why_not_update(self, role: Leader, voter: Voter, mono_ms: int) -> ErrorCode:
        log, listener = self._standing.log, self._standing.listener
        lowest, highest = voter.kraft_versions
        has_listener = listener in {address.listener for address in voter.addresses}
        if not _is_full(voter.key) or not has_listener or not 0 <= lowest <= highest:
            return ErrorCode.INVALID_REQUEST
        version = log.kraft_version.latest
        self.expire(role, mono_ms)
        if role.change is not None or not role.progress.high_watermark or self._is_uncommitted(role):
            return ErrorCode.REQUEST_TIMED_OUT
        if not voter.supports(version):
            return ErrorCode.INVALID_REQUEST
        known = role.known.get(voter.key.node_id) is not None
        return (
            ErrorCode.NONE if (voter.key in self._standing.voters if version else known) else ErrorCode.VOTER_NOT_FOUND
        )

    def _know(self, role: Leader, voter: Voter) -> None:
        if self._standing.log.kraft_version.latest:
            self._name(role, self._standing.voters.with_voter(voter))
        else:
            role.known = role.known.with_voter(voter)

    def upgrade(self, version: int, *, validate_only: bool) -> KafkaError | None:
        """Raise the version of the quorum's protocol; with 1 the voters stand in the log (rule 5). None: it may be."""
        log, role = self._standing.log, self._standing.role
        if not isinstance(role, Leader):
            return KafkaError(ErrorCode.NOT_CONTROLLER)
        now = log.kraft_version.latest
        sentence = f"Invalid upgrade of {KRAFT_VERSION} from version {now} to {version}"
        if version == now:
            return None
        if version < now:
            return KafkaError(ErrorCode.INVALID_UPDATE_VERSION, f"{sentence} because the new version is a downgrade")
        if version != 1:
            return KafkaError(ErrorCode.INVALID_UPDATE_VERSION, sentence)
        if not all(voter.supports(version) and _is_full(voter.key) for voter in role.known):
            sentence = f"Invalid upgrade of {KRAFT_VERSION} to {version} because not all of the voters support it"
            return KafkaError(ErrorCode.INVALID_UPDATE_VERSION, sentence)
        if not validate_only and not self._is_naming(role):
            self._name(role, role.known, version)
        return None

    # ------------------------------------------------------------ the course of a change
    def committed(self, role: Leader) -> None:
        """The high watermark moved (rule 2)."""
        change = role.change
        if change is not None and change.new is None and not self._is_uncommitted(role):
            self._end(role, ErrorCode.NONE, None)

    def expire(self, role: Leader, mono_ms: int) -> None:
        """Rule 4."""
        if role.change is not None and mono_ms >= role.change.deadline_ms:
            self._end(role, ErrorCode.REQUEST_TIMED_OUT, None)

    def _why_not_now(self, role: Leader, what: str, mono_ms: int) -> KafkaError | None:
        """Rule 1."""
        log = self._standing.log
        self.expire(role, mono_ms)
        if role.change is not None:
            return _wait("leader to handle previous voter change request")
        if not role.progress.high_watermark:
            return _wait("leader to establish HWM and fence previous voter changes")
        if not (version := log.kraft_version.latest):
            sentence = f"Cluster doesn't support {what} voter because the {KRAFT_VERSION} feature is {version}"
            return KafkaError(ErrorCode.UNSUPPORTED_VERSION, sentence)
        if self._is_uncommitted(role):
            offset, watermark = log.voters.latest_offset, role.progress.high_watermark
            return _wait(f"voters to commit the latest voter change at Optional[{offset}] with HWM {watermark}")
        return None

    def _is_uncommitted(self, role: Leader) -> bool:
        return self._is_naming(role) or self._standing.log.voters.latest_offset >= role.progress.high_watermark

    def _is_naming(self, role: Leader) -> bool:
        """Whether voters have been named that are not in the log yet."""
        return role.named_after == self._standing.log.voters.latest_offset

    def _name(self, role: Leader, voters: VoterSet, version: int | None = None) -> None:
        role.named_after = self._standing.log.voters.latest_offset
        self._standing.effects.append(NameVoters(self._standing.epoch, voters, version))

    def _end(self, role: Leader, code: ErrorCode, sentence: str | None) -> None:
        assert role.change is not None, "a change that ends was begun"
        self._answer(role.change, code, sentence)
        role.change = None

    def _answer(self, change: Change, code: ErrorCode, sentence: str | None) -> None:
        if not change.is_answered:
            change.is_answered = True
            response = rpc_messages.change_response(change.request, code, sentence)
            self._standing.effects.append(Answer(change.request, response))

    def _wrong_cluster(self, request: AddRaftVoterRequest | RemoveRaftVoterRequest) -> Message:
        sentence = f'The given id "{request.cluster_id}" doesn\'t match the cluster id "{self._standing.cluster_id}"'
        return change_response(request, ErrorCode.INCONSISTENT_CLUSTER_ID, sentence)


def _is_full(key: ReplicaKey) -> bool:
    return key.node_id >= 0 and key.directory_id != ZERO_UUID


def _wait(for_what: str) -> KafkaError:
    return KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"Request timed out waiting for {for_what}")


def _incomplete(request: AddRaftVoterRequest, addresses: tuple[Address, ...], listener: str) -> tuple[ErrorCode, str]:
    if request.voter_id < 0 or request.voter_directory_id == ZERO_UUID:
        return ErrorCode.INVALID_REQUEST, "Add voter request didn't include a valid voter"
    told = ", ".join(f"ListenerName({one.listener})={one.host}/<unresolved>:{one.port}" for one in addresses)
    return ErrorCode.INVALID_REQUEST, (
        f"Add voter request didn't include the endpoint (Endpoints(endpoints={{{told}}})) for the default listener "
        f"ListenerName({listener})"
    )
