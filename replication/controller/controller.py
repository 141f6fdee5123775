"""The controller: decides on requests, keeps the records of its decisions, and publishes what they make of the cluster.

RULES    1. Decisions look at the newest image, which holds all that was decided; everybody else sees the published
            one, which holds what is committed. Both are images, so there is no second kind of state to keep in step.
         2. A decision is answered when its image is published. A refusal is answered when all that was decided before it is.
         3. Who begins to lead goes on from the end of the log, committed or not. Who leads no longer answers all that waits
            with NOT_CONTROLLER, and forgets what it decided: the log's new leader says what became of it.
         4. After a failure of the metadata log nothing is published and nothing answered any more.
         5. The broker of this node lives while the process does; others are fenced when they fall silent.
         6. A topic that begins to allow unclean elections has its partitions without a leader led at once; Apache Kafka's
            controller looks for them every five minutes only.
NOT HERE The decisions (`topics.py`, `config_changes.py`, `registration.py`, `broker_heartbeats.py`, `alter_partition.py`,
         `assign_replicas_to_dirs.py`), the log (`metadata_log.py`), who leads it (`quorum.py`), publishing (`publisher.py`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from protocol.errors import ErrorCode, KafkaError
from protocol.messages.admin import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    IncrementalAlterConfigsRequest,
)
from protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)
from protocol.messages.quorum import (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    AssignReplicasToDirsRequest,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    ControllerRegistrationRequest,
)
from protocol.messages.quotas_scram import AlterClientQuotasRequest, AlterUserScramCredentialsRequest
from protocol.messages.stored_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
)
from protocol.schema import Message
from replication.controller.brokers.broker_heartbeat_tracker import Sessions
from replication.controller.brokers.broker_heartbeats import Standing, fence, heartbeat
from replication.controller.brokers.registration import (
    allocate_producer_ids,
    register,
    register_controller,
    registration_of,
    registration_of_controller,
    unregister,
)
from replication.controller.configs.config_changes import alter_settings, replace_settings
from replication.controller.configs.configs import UNCLEAN_ELECTION
from replication.controller.configs.features import cluster_min_isr, raised_kraft_version, update_features
from replication.controller.configs.quotas import alter_quotas
from replication.controller.configs.scram_credentials import alter_credentials
from replication.controller.decision_context import Environment
from replication.controller.error_responses import not_controller
from replication.controller.partitions.alter_partition import alter_partitions
from replication.controller.partitions.assign_replicas_to_dirs import assign_replicas
from replication.controller.partitions.elect_leaders import elect_leaders
from replication.controller.partitions.reassignments import alter_reassignments
from replication.controller.partitions.topics import create_partitions, create_topics, delete_topics
from replication.controller.periodic_tasks import Recurring, Task, elect_unclean
from replication.metadata.feature_levels import ELIGIBLE_LEADERS, METADATA_VERSION, WITH_TRANSACTIONS
from replication.metadata.image import BrokerImage, Changes, Endpoint, MetadataImage
from replication.metadata.metadata_publisher import Publisher
from replication.metadata.metadata_records import UnreadableMetadata, Versioned
from replication.metadata_log.kraft_replica import Clock
from replication.metadata_log.metadata_loader import CommittedMetadata
from replication.metadata_log.metadata_log import MetadataLog
from replication.raft.raft_log import Lead
from replication.state_machine import Decision


class OwnController(NamedTuple):
    """Who this controller is."""

    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    listens: bool = True
    """Whether it can be reached there."""


_log = logging.getLogger("barnabas.controller")

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
    ControllerRegistrationRequest: register_controller,
    ElectLeadersRequest: elect_leaders,
    AlterPartitionReassignmentsRequest: alter_reassignments,
    UnregisterBrokerRequest: unregister,
    UpdateFeaturesRequest: update_features,
    AlterClientQuotasRequest: alter_quotas,
    AlterUserScramCredentialsRequest: alter_credentials,
}
_UNSEEN = (BeginTransactionRecord, EndTransactionRecord, AbortTransactionRecord)


class _Pending(NamedTuple):
    """A decision that is not committed; `image` is None where there was nothing to write."""

    image: MetadataImage | None
    changes: Changes | None
    done: Callable[[], None]
    lost: Callable[[], None]


class Controller:
    """A controller of a cluster: the active one while it leads the metadata log."""

    def __init__(
        self,
        log: MetadataLog,
        publisher: Publisher,
        committed: CommittedMetadata,
        environment: Environment,
        sessions: Sessions,
        clock: Clock,
        own: OwnController,
        bootstrap: Sequence[Versioned],
        recurring: Recurring,
    ) -> None:
        """Follow the log until this node leads it.

        Args:
            log: the metadata log.
            publisher: of its images.
            committed: what other leaders commit.
            environment: of decisions.
            sessions: of brokers.
            clock: the time.
            own: who this controller is.
            bootstrap: what a new cluster begins with.
            recurring: what it does by itself while it leads.
        """
        self._log = log
        self._publisher = publisher
        self._others = committed
        self._environment = environment
        self._sessions = sessions
        self._clock = clock
        self._own = own
        self._first = bootstrap
        self._recurring = recurring
        recurring.do = self._recur
        self._newest = publisher.newest
        self._pending: deque[_Pending] = deque()
        self.is_active = False
        """Whether this node leads the metadata log."""
        self.on_failed: Callable[[str], None] = _ignore
        self.raise_kraft_version: Callable[[int], None] = _ignore
        """Has the quorum do it, where it said that it can."""

    # ------------------------------------------------------------ the quorum
    def lead(self, lead: Lead) -> None:
        """Begin a leader epoch: know what the log holds, end what the last leader left open, register this controller."""
        self.is_active = True
        inherited = list(self._others.rest())
        newest = inherited[-1][0] if inherited else self._publisher.newest
        node_id, wall_ms = self._environment.node_id, self._clock.wall_ms()
        self._newest = newest.led_by(node_id, offset=self._log.next_offset, epoch=lead.epoch)
        for image, changes in inherited:
            self._pending.append(_Pending(image, changes, _nothing, _nothing))
        self._pending.append(_Pending(self._newest, Changes(), _nothing, _nothing))
        begun = partial(self._committed, len(inherited) + 1)
        self._log.begin_epoch(lead, node_id, wall_ms, begun)
        if self._others.is_in_transaction:
            abort = AbortTransactionRecord(reason="The controller that began it ended.")
            self._write([(abort, 0)], wall_ms)
        if not self._newest.features:
            self._write(self._bootstrap(self._first), wall_ms)
        self._register_own(wall_ms)
        for broker_id, broker in self._newest.brokers.items():
            if broker_id != node_id and not broker.is_fenced:
                self._sessions.heard(broker_id, broker.epoch, self._clock.mono_ms())
        self._recurring.begin()

    def lead_no_longer(self) -> None:
        """Another node leads the metadata log (rule 3)."""
        self.is_active = False
        lost, self._pending = self._pending, deque()
        self._others.go_on()
        self._sessions.end()
        self._recurring.end()
        for pending in lost:
            pending.lost()

    def committed(self, high_watermark: int) -> None:
        """What lies before is committed: follow it, where another node wrote it."""
        try:
            self._others.committed(high_watermark)
        except UnreadableMetadata as error:
            self.failed(str(error))

    def failed(self, sentence: str) -> None:
        """The metadata log cannot be gone on with."""
        self.on_failed(sentence)

    def _register_own(self, wall_ms: int) -> None:
        """Write down this node's controller, where that is news: it need not ask for it."""
        known = self._newest.controllers.get(self._environment.node_id)
        if known is None or known.incarnation_id != self._own.incarnation_id:
            node_id, levels = self._environment.node_id, self._newest.features
            request = registration_of_controller(node_id, self._own.incarnation_id, self._own.endpoints, levels)
            self._write(register_controller(self._newest, self._environment, request).records, wall_ms)

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

    # ------------------------------------------------------------ requests
    def submit(self, request: Message, *, wall_ms: int, reply: Reply) -> None:
        """Decide on a request; `reply` gets the response, perhaps before this returns, when it is committed."""
        if not self.is_active:
            reply(not_controller(request))
            return
        decision = _DECISIONS[type(request)](self._newest, self._environment, request)
        if isinstance(request, UpdateFeaturesRequest):
            kraft_version = raised_kraft_version(request, decision.reply)
            if kraft_version is not None:
                self.raise_kraft_version(kraft_version)
        self._answer(request, decision, wall_ms, reply)
        if any(isinstance(record, ConfigRecord) and record.name == UNCLEAN_ELECTION for record, _ in decision.records):
            self._recur(elect_unclean)

    def _recur(self, task: Task) -> int:
        if not self.is_active:  # not any more, since it wrote down what this follows from
            return 0
        records = task(self._newest, self._environment)
        self._write(records, self._clock.wall_ms(), is_atomic=False)
        return len(records)

    def _answer(self, request: Message, decision: Decision[Any], wall_ms: int, reply: Reply) -> None:
        """Write what was decided, and reply when it is published; or that another controller is to be asked."""
        self._write(
            decision.records,
            wall_ms,
            partial(reply, decision.reply),
            lambda: reply(not_controller(request)),
            is_atomic=decision.is_atomic,
        )

    # ------------------------------------------------------------ brokers
    def register_broker(self, request: BrokerRegistrationRequest, *, wall_ms: int, reply: Reply) -> None:
        """Decide on a registration."""
        if not self.is_active:
            reply(not_controller(request))
            return
        broker_id = request.broker_id
        before = self._newest.brokers.get(broker_id)
        next_offset = self._log.next_offset
        try:
            decision = register(
                self._newest,
                self._environment,
                registration_of(request),
                next_offset=next_offset,
                is_alive=before is not None and self._is_alive(before),
            )
        except KafkaError as refusal:
            self._answer(request, Decision([], BrokerRegistrationResponse(error_code=refusal.code)), wall_ms, reply)
            return
        self._sessions.begin(broker_id, decision.reply, next_offset + len(decision.records) - 1)
        answer = BrokerRegistrationResponse(error_code=ErrorCode.NONE, broker_epoch=decision.reply)
        self._answer(request, Decision(decision.records, answer, is_atomic=decision.is_atomic), wall_ms, reply)

    def _is_alive(self, broker: BrokerImage) -> bool:
        is_own = broker.incarnation_id == self._own.incarnation_id  # rule 5
        return is_own or self._sessions.is_alive(broker.broker_id, broker.epoch)

    def heartbeat(self, request: BrokerHeartbeatRequest, *, wall_ms: int, mono_ms: int, reply: Reply) -> None:
        """Decide on what a broker says of itself."""
        if not self.is_active:
            reply(not_controller(request))
            return
        broker_id = request.broker_id
        broker = self._newest.brokers.get(broker_id)
        if broker is None or broker.epoch != request.broker_epoch:
            answer = BrokerHeartbeatResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
            self._answer(request, Decision([], answer), wall_ms, reply)
            return
        is_own = broker_id == self._environment.node_id  # rule 5
        session = self._sessions.heard(broker_id, broker.epoch, None if is_own else mono_ms)
        standing, decision = heartbeat(self._newest, self._environment, self._sessions, session, request)
        session.metadata_offset = request.current_metadata_offset
        self._answer(request, decision, wall_ms, reply)
        if standing is Standing.LEAVING:
            session.leaves(self._newest.offset)
        elif standing is not Standing.ACTIVE:
            session.stays()

    def fence_silent(self, broker_id: int, *, wall_ms: int) -> None:
        """A broker's session has ended: it is taken out of its partitions."""
        broker = self._newest.brokers.get(broker_id)
        if not self.is_active or broker is None or broker.is_fenced:
            return
        _log.warning("broker %d was not heard for too long: it is fenced", broker_id)
        self._sessions.of(broker_id, broker.epoch).stays()
        self._write(fence(self._newest, self._environment, broker), wall_ms, is_atomic=False)

    # ------------------------------------------------------------ writing
    def _write(
        self,
        records: Sequence[Versioned],
        wall_ms: int,
        done: Callable[[], None] | None = None,
        lost: Callable[[], None] | None = None,
        *,
        is_atomic: bool = True,
    ) -> None:
        if self._log.is_failed:
            return
        done, lost = done or _nothing, lost or _nothing
        if not records:
            if self._pending:
                self._pending.append(_Pending(None, None, done, lost))
            else:
                self._publisher.when_published(done)
            return
        assert self.is_active, "nobody writes to a log that another one leads"
        last_offset = self._log.next_offset + len(records) - 1
        seen = [message for message, _ in records if not isinstance(message, _UNSEEN)]
        image, changes = self._newest.apply(seen, offset=last_offset, epoch=self._newest.epoch)
        self._newest = image
        self._pending.append(_Pending(image, changes, done, lost))
        self._log.append(records, wall_ms=wall_ms, committed=partial(self._committed, 1), is_atomic=is_atomic)

    def _committed(self, count: int) -> None:
        """The oldest decisions that were not committed are: publish them, and answer the refusals behind each."""
        pending, publisher = self._pending, self._publisher
        for _ in range(count):
            image, changes, done, _ = pending.popleft()
            assert image is not None, "what was committed was written"
            assert changes is not None, "and changed something"
            publisher.publish(image, changes, done)
            while pending and pending[0].image is None:
                publisher.when_published(pending.popleft().done)


def _nothing() -> None:
    pass


def _ignore(_what: str | int) -> None:
    pass
