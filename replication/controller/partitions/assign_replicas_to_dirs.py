"""AssignReplicasToDirs: the log directories of a broker's replicas.

RULES    1. The checks, their order and codes are Apache Kafka 4.3's (ReplicationControlManager.handleAssignReplicasToDirs).
         2. The leader stays, unless its directory is offline: then the broker leaves the ISR. A leaderless partition can get
            a leader, if its replica was assigned to an offline directory before.
NOT HERE The request (`broker/peers/assignments_manager.py`), offline directories (`elections.py`).
"""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.messages import common, quorum
from protocol.messages.common import PartitionError
from protocol.messages.stored_records import PartitionChangeRecord
from replication.controller.decision_context import DecisionContext
from replication.controller.partitions.elections import can_lead, topic_rules
from replication.controller.partitions.partition_changes import TopicRules, build_partition_change
from replication.metadata.feature_levels import partition_version
from replication.metadata.image import UNASSIGNED_DIRECTORY, MetadataImage, PartitionState
from replication.metadata.metadata_records import Versioned
from replication.state_machine import Decision


def assign_replicas(
    context: DecisionContext, request: quorum.AssignReplicasToDirsRequest
) -> Decision[quorum.AssignReplicasToDirsResponse]:
    """Decide on the reported directories."""
    broker = context.image.brokers.get(request.broker_id)
    if broker is None or broker.epoch != request.broker_epoch:
        return Decision([], quorum.AssignReplicasToDirsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
    records: list[Versioned] = []
    results = [
        quorum.AssignReplicasToDirsDirectoryResponse(
            id=directory.id,
            topics=[_topic(context, request.broker_id, directory.id, topic, records) for topic in directory.topics],
        )
        for directory in request.directories
    ]
    response = quorum.AssignReplicasToDirsResponse(error_code=ErrorCode.NONE, directories=results)
    return Decision(records, response, is_atomic=False)


def _topic(
    context: DecisionContext,
    broker_id: int,
    directory: bytes,
    requested: common.TopicById[common.PartitionIndex],
    records: list[Versioned],
) -> common.TopicById[common.PartitionError]:
    topic = context.image.topics_by_id.get(requested.topic_id)
    rules = None if topic is None else topic_rules(context, topic)
    results = []
    for partition in requested.partitions:
        index = partition.partition_index
        state = None if topic is None else topic.partitions.get(index)
        code = ErrorCode.NONE
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID
        elif state is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif broker_id not in state.replicas:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif rules is not None:
            record = _change(context.image, rules, requested.topic_id, index, state, broker_id, directory)
            if record is not None:
                records.append((record, partition_version(context.image.metadata_version)))
        results.append(PartitionError(partition_index=index, error_code=code))
    return common.TopicById(topic_id=requested.topic_id, partitions=results)


def _change(
    image: MetadataImage,
    rules: TopicRules,
    topic_id: bytes,
    index: int,
    state: PartitionState,
    broker_id: int,
    directory: bytes,
) -> PartitionChangeRecord | None:
    """The record with the new directory, and with the leader and ISR that follow (rule 2)."""
    moved = state._replace(directories=_with(state, broker_id, directory))
    isr = state.isr
    if not moved.is_in_directories(broker_id, image.brokers[broker_id].directories):
        isr = tuple(replica for replica in isr if replica != broker_id)
    can_be_leader = can_lead(image, moved)
    change = build_partition_change(topic_id, index, moved, isr, can_be_leader, rules)
    directories = moved.directories if change is None else moved.with_change(change).directories
    if directories != state.directories:
        change = change or PartitionChangeRecord(partition_id=index, topic_id=topic_id)
        change.directories = list(directories)
    return change


def _with(state: PartitionState, broker_id: int, directory: bytes) -> tuple[bytes, ...]:
    known = state.directories or (UNASSIGNED_DIRECTORY,) * len(state.replicas)
    return tuple(
        directory if replica == broker_id else before for replica, before in zip(state.replicas, known, strict=True)
    )
