"""The controller: decides on requests, keeps the records of its decisions, and publishes what they make of the cluster.

RULES    1. Decisions look at the newest image, which holds all that was decided; everybody else sees the published
            one, which holds what is committed. Both are images, so there is no second kind of state to keep in step.
         2. When records are committed the partitions follow the image they lead to, step by step (`on_image`); when they
            have, it is the published one and the reply is given. One image is followed at a time, in their order. A
            refusal is answered when all that was decided before it is published.
         3. The first image published is the one in which this node's own broker is active.
         4. After a failure of the metadata log nothing is published and nothing answered any more.
         5. This node's own broker is registered and active from the start and lives while the process does; others
            register, send heartbeats, and are fenced when they fall silent.
NOT HERE The decisions (`topics.py`, `setting_changes.py`, `brokers.py`, `heartbeats.py`, `isr_changes.py`,
         `directories.py`), the log (`metadata_log.py`), other controllers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from protocol.errors import ErrorCode, KafkaError
from protocol.messages.admin import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    IncrementalAlterConfigsRequest,
)
from protocol.messages.cluster import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from protocol.messages.quorum import (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    AssignReplicasToDirsRequest,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from protocol.messages.stored import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
)
from protocol.messages.users import AlterClientQuotasRequest, AlterUserScramCredentialsRequest
from protocol.primitives import ZERO_UUID
from protocol.schema import Message
from replication.controller.asked_elections import elect_leaders
from replication.controller.brokers import (
    Registration,
    allocate_producer_ids,
    begin,
    end,
    register,
    register_own_controller,
    registration_of,
    unregister,
)
from replication.controller.credentials import alter_credentials
from replication.controller.directories import assign_replicas
from replication.controller.environment import Environment
from replication.controller.features import cluster_min_isr, update_features
from replication.controller.heartbeats import Standing, cordon, directories_failed, fence, heartbeat
from replication.controller.isr_changes import alter_partitions
from replication.controller.quotas import alter_quotas
from replication.controller.reassignments import alter_reassignments
from replication.controller.sessions import Sessions
from replication.controller.setting_changes import alter_settings, replace_settings
from replication.controller.topics import create_partitions, create_topics, delete_topics
from replication.controller.voters import add_voter, remove_voter
from replication.image import Changes, Endpoint, MetadataImage
from replication.metadata_log import MetadataLog
from replication.metadata_records import Versioned
from replication.record_versions import (
    ELIGIBLE_LEADERS,
    KRAFT_VERSION,
    METADATA_VERSION,
    WITH_CORDONS,
    WITH_TRANSACTIONS,
    features_for,
)
from replication.state_machine import Decision
from replication.turns import Soon, at_once, in_turns

Reply = Callable[[Any], None]
Decide = Callable[[MetadataImage, Environment, Any], Decision[Any]]

_DECISIONS: dict[type[Message], Decide] = {
    CreateTopicsRequest: create_topics,
    DeleteTopicsRequest: delete_topics,
    CreatePartitionsRequest: create_partitions,
    IncrementalAlterConfigsRequest: alter_settings,
    AlterConfigsRequest: replace_settings,
    AllocateProducerIdsRequest: allocate_producer_ids,
    AlterPartitionRequest: alter_partitions,
    AssignReplicasToDirsRequest: assign_replicas,
    ElectLeadersRequest: elect_leaders,
    AlterPartitionReassignmentsRequest: alter_reassignments,
    UnregisterBrokerRequest: unregister,
    AlterClientQuotasRequest: alter_quotas,
    AlterUserScramCredentialsRequest: alter_credentials,
}
_UNSEEN = (BeginTransactionRecord, EndTransactionRecord, AbortTransactionRecord)


class _Pending:
    """A decision that is not published; `image` is None where there was nothing to write."""

    __slots__ = ("changes", "done", "image")

    def __init__(self, image: MetadataImage | None, changes: Changes | None, done: Callable[[], None]) -> None:
        self.image = image
        self.changes = changes
        self.done = done


class Controller:
    """The active controller of a cluster whose metadata log it leads."""

    def __init__(self, log: MetadataLog, environment: Environment, sessions: Sessions) -> None:
        self._log = log
        self._environment = environment
        self._sessions = sessions
        self._newest = log.image
        self._pending: deque[_Pending] = deque()
        self._committed_ones = 0  # of those that are pending, the first ones
        self._is_announced = False
        self.image = log.image
        """The published image."""
        self.on_image: Callable[[MetadataImage, Changes], Iterator[None]] = _follow_nothing
        """Lets partitions and groups follow an image, in steps."""
        self.soon: Soon = at_once
        """Gives others their turns between the steps."""

    def start(
        self,
        registration: Registration,
        endpoints: tuple[Endpoint, ...],
        *,
        wall_ms: int,
        ready: Callable[[], None],
    ) -> None:
        """Begin a leader epoch, register this node's controller and broker; `ready` follows the first published image.

        Args:
            registration: of this node's broker.
            endpoints: where its controller listens.
            wall_ms: now.
            ready: told when this node may serve.

        Raises:
            KafkaError: the broker does not fit into the cluster.
        """
        node_id, log = self._environment.node_id, self._log
        offset = log.next_offset
        self._pending.append(_Pending(None, None, _nothing))
        offset = log.begin_epoch(node_id, wall_ms, self._committed)
        self._newest = self._newest.led_by(node_id, offset=offset, epoch=log.epoch)
        if log.has_open_transaction:
            abort = AbortTransactionRecord(reason="The controller that began it ended.")
            self._write([(abort, 0)], _nothing, wall_ms)
        if log.bootstrap:
            self._write(self._bootstrap(log.bootstrap), _nothing, wall_ms)
        self._own = registration, endpoints
        self._register_own(partial(self._announce, ready), wall_ms)

    def _register_own(self, done: Callable[[], None], wall_ms: int) -> None:
        """Write down this node's controller and broker, in the form of the metadata.version in force."""
        registration, endpoints = self._own
        process = registration.incarnation_id
        self._write(register_own_controller(self._newest, self._environment, process, endpoints), _nothing, wall_ms)
        registration = registration._replace(features=features_for(self._newest.features))
        registered = register(self._newest, self._environment, registration, next_offset=self._log.next_offset)
        self._write(registered.records, _nothing, wall_ms, is_atomic=False)
        begun = begin(self._newest, self._environment, registration.cordoned)
        self._write(begun.records, done, wall_ms, is_atomic=begun.is_atomic)

    def _bootstrap(self, records: Sequence[Versioned]) -> list[Versioned]:
        """A new cluster's first records, seen whole; where eligible leaders are on, min.insync.replicas too."""
        levels = {
            message.name: message.feature_level for message, _ in records if isinstance(message, FeatureLevelRecord)
        }
        first = list(records)
        if levels.get(ELIGIBLE_LEADERS):
            first.append(cluster_min_isr(self._environment))
        if levels[METADATA_VERSION] < WITH_TRANSACTIONS:
            return first
        return [(BeginTransactionRecord(name="Bootstrap records"), 0), *first, (EndTransactionRecord(), 0)]

    def submit(self, request: Message, *, wall_ms: int, reply: Reply) -> None:
        """Decide on a request; `reply` gets the response, perhaps before this returns, when it is committed."""
        decision = _DECISIONS[type(request)](self._newest, self._environment, request)
        self._write(decision.records, partial(reply, decision.reply), wall_ms, is_atomic=decision.is_atomic)

    def update_features(
        self, request: UpdateFeaturesRequest, *, wall_ms: int, reply: Callable[[UpdateFeaturesResponse], None]
    ) -> None:
        """Decide on other levels of features; this node registers anew where more can be written of it."""
        before = self._newest.metadata_version
        decision = update_features(self._newest, self._environment, request)
        self._write(decision.records, partial(reply, decision.reply), wall_ms)
        if self._newest.metadata_version > before:
            self._register_own(_nothing, wall_ms)

    def add_voter(self, request: AddRaftVoterRequest) -> AddRaftVoterResponse:
        """Decide on another voter of the metadata log."""
        _, endpoints = self._own
        return add_voter(self._newest.cluster_id, endpoints[0].listener, self._log.voter, request)

    def remove_voter(self, request: RemoveRaftVoterRequest) -> RemoveRaftVoterResponse:
        """Decide on a voter less."""
        return remove_voter(self._newest.cluster_id, self._log.voter, request)

    @property
    def features(self) -> dict[str, int]:
        """The levels in force, the quorum's own among them; what is at 0 is left out."""
        levels = {**self.image.features, KRAFT_VERSION: self._log.kraft_version}
        return {name: level for name, level in levels.items() if level}

    # ------------------------------------------------------------ other brokers
    def await_heartbeats(self, mono_ms: int) -> None:
        """From now on, who is active must be heard of."""
        for broker_id, broker in self._newest.brokers.items():
            if broker_id != self._environment.node_id and not broker.is_fenced:
                self._sessions.heard(broker_id, broker.epoch, mono_ms)

    def register_broker(self, request: BrokerRegistrationRequest, *, wall_ms: int, reply: Reply) -> None:
        """Decide on the registration of another node's broker."""
        broker_id = request.broker_id
        before = self._newest.brokers.get(broker_id)
        is_own = broker_id == self._environment.node_id
        next_offset = self._log.next_offset
        try:
            decision = register(
                self._newest,
                self._environment,
                registration_of(request),
                next_offset=next_offset,
                is_alive=before is not None and (is_own or self._sessions.is_alive(broker_id, before.epoch)),
            )
        except KafkaError as refusal:
            self._write([], partial(reply, BrokerRegistrationResponse(error_code=refusal.code)), wall_ms)
            return
        self._sessions.begin(broker_id, decision.reply, next_offset + len(decision.records) - 1)
        answer = BrokerRegistrationResponse(error_code=ErrorCode.NONE, broker_epoch=decision.reply)
        self._write(decision.records, partial(reply, answer), wall_ms, is_atomic=decision.is_atomic)

    def heartbeat(self, request: BrokerHeartbeatRequest, *, wall_ms: int, mono_ms: int, reply: Reply) -> None:
        """Decide on what another node's broker says of itself."""
        broker_id = request.broker_id
        broker = self._newest.brokers.get(broker_id)
        if broker is None or broker.epoch != request.broker_epoch:
            answer = BrokerHeartbeatResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
            self._write([], partial(reply, answer), wall_ms)
            return
        if broker_id == self._environment.node_id:  # it lives in this process: nobody else speaks for it
            answer = BrokerHeartbeatResponse(error_code=ErrorCode.NONE, is_caught_up=True, is_fenced=broker.is_fenced)
            self._write([], partial(reply, answer), wall_ms)
            return
        session = self._sessions.heard(broker_id, broker.epoch, mono_ms)
        standing, decision = heartbeat(self._newest, self._environment, self._sessions, session, request)
        session.metadata_offset = request.current_metadata_offset
        self._write(decision.records, partial(reply, decision.reply), wall_ms, is_atomic=decision.is_atomic)
        if standing is Standing.LEAVING:
            session.leaves(self._newest.offset)
        elif standing is not Standing.ACTIVE:
            session.stays()

    def fence_silent(self, broker_id: int, *, wall_ms: int) -> None:
        """A broker's session has ended: it is taken out of its partitions."""
        broker = self._newest.brokers.get(broker_id)
        if broker is None or broker.is_fenced:
            return
        self._sessions.of(broker_id, broker.epoch).stays()
        self._write(fence(self._newest, self._environment, broker), _nothing, wall_ms, is_atomic=False)

    def cordon(self, directories: Sequence[bytes], *, wall_ms: int) -> None:
        """Note which log directories of this node take no new replicas."""
        if self._newest.metadata_version >= WITH_CORDONS:
            broker = self._newest.brokers[self._environment.node_id]
            self._write(cordon(broker, list(directories)), _nothing, wall_ms)

    def directories_failed(self, failed: Sequence[bytes], *, wall_ms: int) -> None:
        """Log directories of this node are out of service: nobody leads what lies there."""
        registration, endpoints = self._own
        left = tuple(directory for directory in registration.directories if directory not in failed)
        self._own = registration._replace(directories=left), endpoints
        broker = self._newest.brokers[self._environment.node_id]
        records = directories_failed(self._newest, self._environment, broker, failed)
        self._write(records, _nothing, wall_ms, is_atomic=False)

    def stop(self, *, wall_ms: int, done: Callable[[], None]) -> None:
        """Note that this node's broker ends in peace; `done` when that is committed."""
        decision = end(self._newest, self._environment)
        self._write(decision.records, done, wall_ms, is_atomic=decision.is_atomic)

    @property
    def voter_directory(self) -> bytes:
        """The id of the directory that the metadata log is in; zero where the voters are a setting."""
        voter = self._log.voter
        return ZERO_UUID if voter is None else voter.voter_directory_id

    @property
    def broker_epoch(self) -> int:
        """The epoch of this node's broker."""
        return self._newest.brokers[self._environment.node_id].epoch

    def _write(
        self, records: Sequence[Versioned], done: Callable[[], None], wall_ms: int, *, is_atomic: bool = True
    ) -> None:
        if self._log.is_failed:
            return
        if not records:
            if self._pending:
                self._pending.append(_Pending(None, None, done))
            else:
                done()
            return
        last_offset = self._log.next_offset + len(records) - 1
        seen = [message for message, _ in records if not isinstance(message, _UNSEEN)]
        image, changes = self._newest.apply(seen, offset=last_offset, epoch=self._log.epoch)
        self._newest = image
        self._pending.append(_Pending(image, changes, done))
        self._log.append(records, wall_ms=wall_ms, committed=self._committed, is_atomic=is_atomic)

    def _committed(self) -> None:
        """The oldest append that was not committed is."""
        self._committed_ones += 1
        if self._committed_ones == 1:
            in_turns(self._publish_committed(), self.soon)

    def _publish_committed(self) -> Iterator[None]:
        """Publish what is committed, answer it, and the refusals behind each."""
        pending = self._pending
        while self._committed_ones:
            yield from self._publish(pending[0])
            pending.popleft().done()
            while pending and pending[0].image is None:
                pending.popleft().done()
            self._committed_ones -= 1

    def _publish(self, decided: _Pending) -> Iterator[None]:
        image, changes = decided.image, decided.changes
        if image is not None and changes is not None:
            if self._is_announced:
                yield from self.on_image(image, changes)
            self.image = image

    def _announce(self, ready: Callable[[], None]) -> None:
        """Rule 3: what was there before this start is told at once, for nobody else has turns yet."""
        self._is_announced = True
        for _ in self.on_image(self.image, Changes.everything(self.image)):
            pass
        ready()


def _follow_nothing(_image: MetadataImage, _changes: Changes) -> Iterator[None]:
    return iter(())


def _nothing() -> None:
    pass
