"""The active controller: decides on requests, appends records, publishes metadata images (Kafka: QuorumController).

RULES    1. Decisions use the newest image, which contains uncommitted records. The published image contains committed
            records only. Both have the same type, so no second state has to be kept consistent.
         2. A response is sent after its image is published, an error response after all earlier decisions are published.
         3. A new leader starts from the log end, committed or not. A replica that stops leading answers pending requests with
            NOT_CONTROLLER and discards its uncommitted images; the log of the next leader decides about the records.
         4. After a failure of the metadata log, nothing is published and no request is answered.
         5. The broker of this node has no session timeout; other brokers are fenced when their session expires. One of them may
            have this node's id: the node was a broker before.
         6. If unclean elections are enabled for a topic, its leaderless partitions get leaders at once. Apache Kafka waits for
            the next periodic check.
NOT HERE The decisions (`topics.py`, `config_changes.py`, `registration.py`, `broker_heartbeats.py`, `alter_partition.py`,
         `assign_replicas_to_dirs.py`), the log (`metadata_log.py`), its replication (`kraft_replica.py`), publishing
         (`metadata_publisher.py`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from protocol.errors import ErrorCode, KafkaError
from protocol.messages import acls, admin, cluster, delegation_tokens, quorum, quotas_scram, stored_records
from protocol.schema import Message
from replication.completion import Completion, completed
from replication.controller.brokers.broker_heartbeat_tracker import BrokerHeartbeatTracker
from replication.controller.brokers.broker_heartbeats import BrokerControlState, fence, heartbeat
from replication.controller.brokers.producer_ids import allocate_producer_ids
from replication.controller.brokers.registration import (
    controller_registration_request,
    register,
    register_controller,
    unregister,
)
from replication.controller.configs.acls import create_acls, delete_acls
from replication.controller.configs.config_changes import incremental_alter_configs, legacy_alter_configs
from replication.controller.configs.configs import UNCLEAN_ELECTION
from replication.controller.configs.delegation_tokens import create_token, expire_token, renew_token
from replication.controller.configs.features import cluster_min_isr, raised_kraft_version, update_features
from replication.controller.configs.quotas import alter_quotas
from replication.controller.configs.scram_credentials import alter_credentials
from replication.controller.controller_client import Client
from replication.controller.decision_context import DecisionContext
from replication.controller.error_responses import error_response, not_controller_response
from replication.controller.mutation_quotas import MutationQuotas
from replication.controller.partitions.alter_partition import alter_partitions
from replication.controller.partitions.assign_replicas_to_dirs import assign_replicas
from replication.controller.partitions.elect_leaders import elect_leaders
from replication.controller.partitions.partition_changes import is_unclean_election
from replication.controller.partitions.reassignments import alter_reassignments
from replication.controller.partitions.topics import create_partitions, create_topics, delete_topics
from replication.controller.periodic_tasks import PeriodicTasks, Task, elect_unclean
from replication.cooperative_tasks import no_op
from replication.metadata.feature_levels import ELIGIBLE_LEADERS, METADATA_VERSION, WITH_TRANSACTIONS
from replication.metadata.image import BrokerImage, Endpoint, MetadataDelta, MetadataImage
from replication.metadata.metadata_records import (
    MAX_BATCH_BYTES,
    UnreadableMetadata,
    Versioned,
    fits_into_batches,
)
from replication.metadata_log.metadata_loader import MetadataLoader
from replication.raft.events import BecomeLeader
from replication.state_machine import Decision
from replication.timer_queue import Clock


class LocalController(NamedTuple):
    """The identity and endpoints of this controller."""

    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    listens: bool = True
    """Whether other nodes can connect to these endpoints."""
    is_broker: bool = True
    """Whether this node is a broker too."""


_log = logging.getLogger("barnabas.controller")

Decide = Callable[[DecisionContext, Any], Decision[Any]]

_DECISIONS: dict[type[Message], Decide] = {
    admin.CreateTopicsRequest: create_topics,
    admin.DeleteTopicsRequest: delete_topics,
    admin.CreatePartitionsRequest: create_partitions,
    admin.IncrementalAlterConfigsRequest: incremental_alter_configs,
    admin.AlterConfigsRequest: legacy_alter_configs,
    acls.CreateAclsRequest: create_acls,
    acls.DeleteAclsRequest: delete_acls,
    delegation_tokens.CreateDelegationTokenRequest: create_token,
    delegation_tokens.RenewDelegationTokenRequest: renew_token,
    delegation_tokens.ExpireDelegationTokenRequest: expire_token,
    quorum.AllocateProducerIdsRequest: allocate_producer_ids,
    quorum.AlterPartitionRequest: alter_partitions,
    quorum.AssignReplicasToDirsRequest: assign_replicas,
    quorum.ControllerRegistrationRequest: register_controller,
    cluster.ElectLeadersRequest: elect_leaders,
    cluster.AlterPartitionReassignmentsRequest: alter_reassignments,
    cluster.UnregisterBrokerRequest: unregister,
    cluster.UpdateFeaturesRequest: update_features,
    quotas_scram.AlterClientQuotasRequest: alter_quotas,
    quotas_scram.AlterUserScramCredentialsRequest: alter_credentials,
}
_TOO_LARGE = f"The changes of this request do not fit into {MAX_BATCH_BYTES} bytes, the limit of the metadata log."
_TRANSACTION_MARKERS = (
    stored_records.BeginTransactionRecord,
    stored_records.EndTransactionRecord,
    stored_records.AbortTransactionRecord,
)


class _PendingDecision(NamedTuple):
    """A decision before its commit; `image` is None for a decision without records."""

    image: MetadataImage | None
    changes: MetadataDelta | None
    published: Completion[None]


@dataclass(eq=False)
class Controller:
    """The controller of one node; active while the node leads the metadata log (`on_become_leader`)."""

    _metadata_loader: MetadataLoader
    _context: DecisionContext
    _heartbeat_tracker: BrokerHeartbeatTracker
    _clock: Clock
    _local: LocalController
    _bootstrap_records: Sequence[Versioned]
    """The first records of a new cluster."""
    _periodic_tasks: PeriodicTasks

    def __post_init__(self) -> None:
        self._log = self._metadata_loader.log
        self._publisher = self._metadata_loader.publisher
        self._pending: deque[_PendingDecision] = deque()
        self.mutation_quotas = MutationQuotas(self._context.static_configs, self._clock.mono_ms)
        """What clients changed, as far as this controller decided."""
        self.is_active = False
        """Whether this node leads the metadata log."""
        self.unclean_elections = 0
        """Elections of leaders that may lose records, since this node started."""
        self.on_failed: Callable[[str], None] = no_op
        """Called with the reason when the metadata log fails."""
        self.raise_kraft_version: Callable[[int], None] = no_op
        """Appends a new kraft.version; it was validated before."""

    # ------------------------------------------------------------ leadership
    def on_become_leader(self, effect: BecomeLeader) -> None:
        """Start a leader epoch: load uncommitted records, abort an open metadata transaction, register this controller."""
        self.is_active = True
        uncommitted = list(self._metadata_loader.load_uncommitted())
        newest = uncommitted[-1][0] if uncommitted else self._publisher.newest
        node_id = self._context.node_id
        newest = newest.with_leader(node_id, offset=self._log.next_offset, epoch=effect.epoch)
        self._context = self._context._replace(image=newest)
        for image, changes in uncommitted:
            self._pending.append(_PendingDecision(image, changes, Completion()))
        self._pending.append(_PendingDecision(newest, MetadataDelta(), Completion()))
        on_committed = partial(self._committed, len(uncommitted) + 1)
        self._log.begin_epoch(effect, node_id, self._clock.wall_ms(), on_committed)
        if self._metadata_loader.transactions.is_open:
            abort = stored_records.AbortTransactionRecord(reason="The controller that began it ended.")
            self._write([(abort, 0)])
        if not self._context.image.features:
            self._write(self._bootstrap_batch(self._bootstrap_records))
        self._register_local()
        for broker_id, broker in self._context.image.brokers.items():
            is_local = self._local.is_broker and broker_id == node_id  # rule 5
            if not is_local and not broker.is_fenced:
                self._heartbeat_tracker.touch(broker_id, broker.epoch, self._clock.mono_ms())
        self._periodic_tasks.activate()

    def on_leadership_lost(self) -> None:
        """Another node leads the metadata log (rule 3)."""
        self.is_active = False
        lost, self._pending = self._pending, deque()
        self._metadata_loader.resume()
        self._heartbeat_tracker.clear()
        self._periodic_tasks.deactivate()
        for pending in lost:
            pending.published.fail(KafkaError(ErrorCode.NOT_CONTROLLER))

    def on_commit(self, high_watermark: int) -> None:
        """Replay committed records that another node wrote."""
        try:
            self._metadata_loader.on_commit(high_watermark)
        except UnreadableMetadata as error:
            self.on_failed(str(error))

    def _register_local(self) -> None:
        """Append this controller's registration if it is new; it sends no request to itself."""
        known = self._context.image.controllers.get(self._context.node_id)
        if known is None or known.incarnation_id != self._local.incarnation_id:
            node_id, levels = self._context.node_id, self._context.image.features
            request = controller_registration_request(
                node_id, self._local.incarnation_id, self._local.endpoints, levels
            )
            self._write(register_controller(self._context, request).records)

    def _bootstrap_batch(self, records: Sequence[Versioned]) -> list[Versioned]:
        """The first records of a new cluster, in one metadata transaction if supported; with ELR also min.insync.replicas."""
        levels = {
            message.name: message.feature_level
            for message, _ in records
            if isinstance(message, stored_records.FeatureLevelRecord)
        }
        batch = list(records)
        if levels.get(ELIGIBLE_LEADERS):
            batch.append(cluster_min_isr(self._context))
        if levels[METADATA_VERSION] < WITH_TRANSACTIONS:
            return batch
        return [
            (stored_records.BeginTransactionRecord(name="Bootstrap records"), 0),
            *batch,
            (stored_records.EndTransactionRecord(), 0),
        ]

    # ------------------------------------------------------------ requests
    def submit(self, request: Message, client: Client | None = None) -> Completion[Any]:
        """Decide on a request; the response exists after the commit."""
        if not self.is_active:
            return completed(not_controller_response(request))
        if isinstance(request, quorum.BrokerRegistrationRequest):
            return self._register_broker(request)
        if isinstance(request, quorum.BrokerHeartbeatRequest):
            return self._heartbeat(request)
        decision = self._decide(request, client)
        if not fits_into_batches(decision.records, is_atomic=decision.is_atomic):
            return completed(error_response(request, ErrorCode.UNKNOWN_SERVER_ERROR, _TOO_LARGE))
        if isinstance(request, cluster.UpdateFeaturesRequest):
            kraft_version = raised_kraft_version(request, decision.reply)
            if kraft_version is not None:
                self.raise_kraft_version(kraft_version)
        response = self._commit(request, decision)
        if any(
            isinstance(record, stored_records.ConfigRecord) and record.name == UNCLEAN_ELECTION
            for record, _ in decision.records
        ):
            self.run_periodic_task(elect_unclean)
        return response

    def _decide(self, request: Message, client: Client | None) -> Decision[Any]:
        """Decide on a client's request within its quota of changed partitions."""
        decide = _DECISIONS[type(request)]
        context = self._context if client is None else self._context._replace(client_principal=client.principal)
        quota = self.mutation_quotas.find(context.image.quotas, request, client)
        if quota is None:
            return decide(context, request)
        decision = decide(context._replace(charge_partitions=quota.charge), request)
        decision.reply.throttle_time_ms = quota.throttle()
        return decision

    def run_periodic_task(self, task: Task) -> int:
        """Append the records of a periodic task; returns their number."""
        if not self.is_active:  # leadership was lost during the append that caused this task
            return 0
        records = task(self._context)
        self._write(records, is_atomic=False)
        return len(records)

    def _commit(self, request: Message, decision: Decision[Any]) -> Completion[Any]:
        """Append the records; the response after the image is published, or NOT_CONTROLLER if leadership is lost."""
        published = self._write(decision.records, is_atomic=decision.is_atomic)
        return published.handle(lambda done: decision.reply if done.error is None else not_controller_response(request))

    # ------------------------------------------------------------ brokers
    def _register_broker(self, request: quorum.BrokerRegistrationRequest) -> Completion[Any]:
        broker_id, image, next_offset = request.broker_id, self._context.image, self._log.next_offset
        before = image.brokers.get(broker_id)
        is_alive = before is not None and self._is_alive(before)
        try:
            decision = register(self._context, request, next_offset=next_offset, is_alive=is_alive)
        except KafkaError as error:
            decision = Decision([], quorum.BrokerRegistrationResponse(error_code=error.code))
        else:
            registration_offset = next_offset + len(decision.records) - 1
            self._heartbeat_tracker.register(broker_id, decision.reply.broker_epoch, registration_offset)
        return self._commit(request, decision)

    def _is_alive(self, broker: BrokerImage) -> bool:
        is_own = broker.incarnation_id == self._local.incarnation_id  # rule 5
        return is_own or self._heartbeat_tracker.has_valid_session(broker.broker_id, broker.epoch)

    def _heartbeat(self, request: quorum.BrokerHeartbeatRequest) -> Completion[Any]:
        broker_id = request.broker_id
        broker = self._context.image.brokers.get(broker_id)
        if broker is None or broker.epoch != request.broker_epoch:
            stale = quorum.BrokerHeartbeatResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
            return self._commit(request, Decision([], stale))
        is_own = broker_id == self._context.node_id  # rule 5
        mono_ms = None if is_own else self._clock.mono_ms()
        heartbeat_state = self._heartbeat_tracker.touch(broker_id, broker.epoch, mono_ms)
        state, decision = heartbeat(self._context, self._heartbeat_tracker, heartbeat_state, request)
        heartbeat_state.metadata_offset = request.current_metadata_offset
        response = self._commit(request, decision)
        if not response.is_done and not is_own:
            response.then(lambda _: self._extend_session(broker_id, broker.epoch))
        if state is BrokerControlState.CONTROLLED_SHUTDOWN:
            heartbeat_state.begin_shutdown(self._context.image.offset)
        elif state is not BrokerControlState.UNFENCED:
            heartbeat_state.cancel_shutdown()
        return response

    def _extend_session(self, broker_id: int, epoch: int) -> None:
        """A heartbeat is answered: the broker sends the next one from now on, also if the commit was slow."""
        broker = self._context.image.brokers.get(broker_id)
        if self.is_active and broker is not None and broker.epoch == epoch:
            self._heartbeat_tracker.touch(broker_id, epoch, self._clock.mono_ms())

    def fence_expired_broker(self, broker_id: int) -> None:
        """Fence a broker whose session expired."""
        broker = self._context.image.brokers.get(broker_id)
        if not self.is_active or broker is None or broker.is_fenced:
            return
        _log.warning("fencing broker %d: no heartbeat within broker.session.timeout.ms", broker_id)
        self._heartbeat_tracker.state_of(broker_id, broker.epoch).cancel_shutdown()
        self._write(fence(self._context, broker), is_atomic=False)

    # ------------------------------------------------------------ writing
    def _write(self, records: Sequence[Versioned], *, is_atomic: bool = True) -> Completion[None]:
        """Append records; completes after their image is published, and fails if leadership is lost."""
        published: Completion[None] = Completion()
        if self._log.is_failed:
            return published
        if not records:
            if self._pending:
                self._pending.append(_PendingDecision(None, None, published))
            else:
                self._publisher.after_pending(published)
            return published
        assert self.is_active, "only the leader appends to the metadata log"
        last_offset = self._log.next_offset + len(records) - 1
        self.unclean_elections += sum(is_unclean_election(message) for message, _ in records)
        image_records = [message for message, _ in records if not isinstance(message, _TRANSACTION_MARKERS)]
        newest = self._context.image
        image, changes = newest.apply(image_records, offset=last_offset, epoch=newest.epoch)
        self._context = self._context._replace(image=image)
        self._pending.append(_PendingDecision(image, changes, published))
        wall_ms, on_committed = self._clock.wall_ms(), partial(self._committed, 1)
        self._log.append(records, wall_ms=wall_ms, on_committed=on_committed, is_atomic=is_atomic)
        return published

    def _committed(self, count: int) -> None:
        """Publish the oldest `count` pending images, and answer the decisions without records that follow each."""
        pending, publisher = self._pending, self._publisher
        for _ in range(count):
            image, changes, published = pending.popleft()
            assert image is not None, "a committed decision has an image"
            assert changes is not None, "a committed decision has changes"
            publisher.publish(image, changes, published)
            while pending and pending[0].image is None:
                publisher.after_pending(pending.popleft().published)
