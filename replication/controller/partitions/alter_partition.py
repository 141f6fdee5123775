"""AlterPartition: may the leader of a partition have the ISR that it wants?

RULES    1. Checks, their order and codes are Apache Kafka 4.3's (ReplicationControlManager.alterPartition). A partition
            that is refused does not keep the others of its request from being changed.
         2. The request names each member with the epoch that it fetches with (version 3; -1: not known), so that
            nobody joins in the name of an older process (KIP-903).
NOT HERE What the change makes of the partition (`partition_changes.py`), asking for it (`broker/peers/alter_partition_manager.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.errors import ErrorCode
from protocol.messages.quorum import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    AlterPartitionResponse,
    AlterPartitionResponsePartition,
    AlterPartitionResponseTopic,
    BrokerState,
)
from protocol.messages.stored_records import PartitionChangeRecord
from replication.controller.decision_context import Environment
from replication.controller.partitions.elections import can_lead, is_active, rules_of
from replication.controller.partitions.partition_changes import RECOVERED, RECOVERING, change_of
from replication.metadata.feature_levels import partition_version
from replication.metadata.image import UNCHANGED_LEADER, MetadataImage, PartitionState, TopicImage
from replication.metadata.metadata_records import Versioned
from replication.state_machine import Decision


def alter_partitions(
    image: MetadataImage, environment: Environment, request: AlterPartitionRequest
) -> Decision[AlterPartitionResponse]:
    """Decide on the ISRs that a leader wants."""
    broker = image.brokers.get(request.broker_id)
    if broker is None or broker.epoch != request.broker_epoch:
        return Decision([], AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
    records: list[Versioned] = []
    topics = [_topic(image, environment, request.broker_id, asked, records) for asked in request.topics]
    return Decision(records, AlterPartitionResponse(error_code=ErrorCode.NONE, topics=topics), is_atomic=False)


def _topic(
    image: MetadataImage,
    environment: Environment,
    broker_id: int,
    asked: AlterPartitionRequestTopic,
    records: list[Versioned],
) -> AlterPartitionResponseTopic:
    topic = image.topics_by_id.get(asked.topic_id)
    answers = []
    for wanted in asked.partitions:
        if topic is None:
            answers.append(_refusal(wanted, ErrorCode.UNKNOWN_TOPIC_ID))
            continue
        answer, change = _partition(image, environment, broker_id, topic, wanted)
        answers.append(answer)
        if change is not None:
            records.append((change, partition_version(image.metadata_version)))
    return AlterPartitionResponseTopic(topic_id=asked.topic_id, partitions=answers)


def _partition(
    image: MetadataImage,
    environment: Environment,
    broker_id: int,
    topic: TopicImage,
    wanted: AlterPartitionRequestPartition,
) -> tuple[AlterPartitionResponsePartition, PartitionChangeRecord | None]:
    index = wanted.partition_index
    state = topic.partitions.get(index)
    if state is None:
        return _refusal(wanted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), None
    code = _why_not(image, broker_id, state, wanted)
    if code != ErrorCode.NONE:
        return _refusal(wanted, code), None
    change = change_of(
        topic.topic_id,
        index,
        state,
        tuple(member.broker_id for member in wanted.new_isr_with_epochs),
        can_lead(image, state, lambda other: is_active(image, other)),
        rules_of(image, environment, topic),
        recovery_state=wanted.leader_recovery_state,
    )
    if change is not None:
        if change.leader not in (broker_id, UNCHANGED_LEADER):  # a reassignment has ended: another leads
            return _refusal(wanted, ErrorCode.NEW_LEADER_ELECTED), change
        state = state.after(change)
    answer = AlterPartitionResponsePartition(
        partition_index=index,
        error_code=ErrorCode.NONE,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        leader_recovery_state=state.leader_recovery_state,
        partition_epoch=state.partition_epoch,
    )
    return answer, change


def _why_not(
    image: MetadataImage, broker_id: int, state: PartitionState, wanted: AlterPartitionRequestPartition
) -> ErrorCode:
    if wanted.leader_epoch > state.leader_epoch or wanted.partition_epoch > state.partition_epoch:
        return ErrorCode.NOT_CONTROLLER  # who asks has heard of decisions that we have not: another one decides now
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
    return _why_ineligible(image, wanted.new_isr_with_epochs)


def _why_ineligible(image: MetadataImage, members: Sequence[BrokerState]) -> ErrorCode:
    for member in members:
        broker = image.brokers.get(member.broker_id)
        if broker is None or not broker.is_active or member.broker_epoch not in (-1, broker.epoch):
            return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def _refusal(wanted: AlterPartitionRequestPartition, code: ErrorCode) -> AlterPartitionResponsePartition:
    return AlterPartitionResponsePartition(partition_index=wanted.partition_index, error_code=code)
