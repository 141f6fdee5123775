"""AlterPartition: ISR changes that partition leaders request.

RULES    1. The checks, their order and codes are Apache Kafka 4.3's (ReplicationControlManager.alterPartition). The partitions
            of a request are independent.
         2. The request contains the broker epoch of each ISR member (version 3; -1: unknown), so that a restarted broker
            does not join the ISR because of fetches of its previous process (KIP-903).
NOT HERE The resulting change (`partition_changes.py`), the request (`broker/peers/alter_partition_manager.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.errors import ErrorCode
from protocol.messages import common, quorum
from protocol.messages.stored_records import PartitionChangeRecord
from replication.controller.decision_context import DecisionContext
from replication.controller.partitions.elections import can_lead, topic_rules
from replication.controller.partitions.partition_changes import RECOVERED, RECOVERING, build_partition_change
from replication.metadata.feature_levels import partition_version
from replication.metadata.image import UNCHANGED_LEADER, MetadataImage, PartitionState, TopicImage
from replication.metadata.metadata_records import Versioned
from replication.state_machine import Decision


def alter_partitions(
    context: DecisionContext, request: quorum.AlterPartitionRequest
) -> Decision[quorum.AlterPartitionResponse]:
    """Decide on the requested ISRs."""
    broker = context.image.brokers.get(request.broker_id)
    if broker is None or broker.epoch != request.broker_epoch:
        return Decision([], quorum.AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
    records: list[Versioned] = []
    topics = [_topic(context, request.broker_id, requested, records) for requested in request.topics]
    return Decision(records, quorum.AlterPartitionResponse(error_code=ErrorCode.NONE, topics=topics), is_atomic=False)


def _topic(
    context: DecisionContext,
    broker_id: int,
    requested: common.TopicById[quorum.AlterPartitionRequestPartition],
    records: list[Versioned],
) -> common.TopicById[quorum.AlterPartitionResponsePartition]:
    topic = context.image.topics_by_id.get(requested.topic_id)
    results = []
    for wanted in requested.partitions:
        if topic is None:
            results.append(_error(wanted, ErrorCode.UNKNOWN_TOPIC_ID))
            continue
        result, change = _partition(context, broker_id, topic, wanted)
        results.append(result)
        if change is not None:
            records.append((change, partition_version(context.image.metadata_version)))
    return common.TopicById(topic_id=requested.topic_id, partitions=results)


def _partition(
    context: DecisionContext, broker_id: int, topic: TopicImage, wanted: quorum.AlterPartitionRequestPartition
) -> tuple[quorum.AlterPartitionResponsePartition, PartitionChangeRecord | None]:
    index = wanted.partition_index
    state = topic.partitions.get(index)
    if state is None:
        return _error(wanted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), None
    code = _validate(context.image, broker_id, state, wanted)
    if code != ErrorCode.NONE:
        return _error(wanted, code), None
    change = build_partition_change(
        topic.topic_id,
        index,
        state,
        tuple(member.broker_id for member in wanted.new_isr_with_epochs),
        can_lead(context.image, state),
        topic_rules(context, topic),
        recovery_state=wanted.leader_recovery_state,
    )
    if change is not None:
        if change.leader not in (broker_id, UNCHANGED_LEADER):  # the reassignment completed and moved the leader
            return _error(wanted, ErrorCode.NEW_LEADER_ELECTED), change
        state = state.with_change(change)
    result = quorum.AlterPartitionResponsePartition(
        partition_index=index,
        error_code=ErrorCode.NONE,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        leader_recovery_state=state.leader_recovery_state,
        partition_epoch=state.partition_epoch,
    )
    return result, change


def _validate(
    image: MetadataImage, broker_id: int, state: PartitionState, wanted: quorum.AlterPartitionRequestPartition
) -> ErrorCode:
    if wanted.leader_epoch > state.leader_epoch or wanted.partition_epoch > state.partition_epoch:
        return ErrorCode.NOT_CONTROLLER  # the requester knows a newer state: another controller is active
    if wanted.leader_epoch < state.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if broker_id != state.leader:
        return ErrorCode.INVALID_REQUEST
    if wanted.partition_epoch < state.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    isr = [member.broker_id for member in wanted.new_isr_with_epochs]
    recovery_state = wanted.leader_recovery_state
    is_recovering = recovery_state == RECOVERING
    if (
        not isr
        or len(set(isr)) < len(isr)
        or not set(isr) <= set(state.replicas)
        or state.leader not in isr
        or recovery_state not in (RECOVERED, RECOVERING)
        or (is_recovering and (len(isr) > 1 or state.leader_recovery_state == RECOVERED))
    ):
        return ErrorCode.INVALID_REQUEST
    return _validate_members(image, wanted.new_isr_with_epochs)


def _validate_members(image: MetadataImage, members: Sequence[quorum.BrokerState]) -> ErrorCode:
    for member in members:
        broker = image.brokers.get(member.broker_id)
        if broker is None or not broker.is_active or member.broker_epoch not in (-1, broker.epoch):
            return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def _error(wanted: quorum.AlterPartitionRequestPartition, code: ErrorCode) -> quorum.AlterPartitionResponsePartition:
    return quorum.AlterPartitionResponsePartition(partition_index=wanted.partition_index, error_code=code)
