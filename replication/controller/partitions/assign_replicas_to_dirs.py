"""AssignReplicasToDirs: a broker says in which of its log directories replicas lie.

RULES    1. Checks, their order and codes are Apache Kafka 4.3's (ReplicationControlManager.handleAssignReplicasToDirs).
         2. Who leads stays, unless its directory is out of service: then it has left. A partition without a leader may get
            one by it: its replica was thought to lie in a directory that failed.
NOT HERE Asking for it (`broker/peers/assignments_manager.py`), what a directory that fails means (`elections.py`).
"""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.messages.quorum import (
    AssignReplicasToDirsDirectoryResponse,
    AssignReplicasToDirsPartitionResponse,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    AssignReplicasToDirsTopic,
    AssignReplicasToDirsTopicResponse,
)
from protocol.messages.stored_records import PartitionChangeRecord
from replication.controller.decision_context import Environment
from replication.controller.partitions.elections import can_lead, is_active, rules_of
from replication.controller.partitions.partition_changes import TopicRules, change_of
from replication.metadata.feature_levels import partition_version
from replication.metadata.image import UNASSIGNED_DIRECTORY, MetadataImage, PartitionState
from replication.metadata.metadata_records import Versioned
from replication.state_machine import Decision


def assign_replicas(
    image: MetadataImage, environment: Environment, request: AssignReplicasToDirsRequest
) -> Decision[AssignReplicasToDirsResponse]:
    """Note where replicas lie."""
    broker = image.brokers.get(request.broker_id)
    if broker is None or broker.epoch != request.broker_epoch:
        return Decision([], AssignReplicasToDirsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
    records: list[Versioned] = []
    answers = [
        AssignReplicasToDirsDirectoryResponse(
            id=directory.id,
            topics=[
                _topic(image, environment, request.broker_id, directory.id, topic, records)
                for topic in directory.topics
            ],
        )
        for directory in request.directories
    ]
    response = AssignReplicasToDirsResponse(error_code=ErrorCode.NONE, directories=answers)
    return Decision(records, response, is_atomic=False)


def _topic(
    image: MetadataImage,
    environment: Environment,
    broker_id: int,
    directory: bytes,
    asked: AssignReplicasToDirsTopic,
    records: list[Versioned],
) -> AssignReplicasToDirsTopicResponse:
    topic = image.topics_by_id.get(asked.topic_id)
    rules = None if topic is None else rules_of(image, environment, topic)
    answers = []
    for partition in asked.partitions:
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
            record = _change(image, rules, asked.topic_id, index, state, broker_id, directory)
            if record is not None:
                records.append((record, partition_version(image.metadata_version)))
        answers.append(AssignReplicasToDirsPartitionResponse(partition_index=index, error_code=code))
    return AssignReplicasToDirsTopicResponse(topic_id=asked.topic_id, partitions=answers)


def _change(
    image: MetadataImage,
    rules: TopicRules,
    topic_id: bytes,
    index: int,
    state: PartitionState,
    broker_id: int,
    directory: bytes,
) -> PartitionChangeRecord | None:
    """The record that notes one replica's directory, and what follows from it (rule 2)."""
    moved = state._replace(directories=_with(state, broker_id, directory))
    isr = state.isr
    if not moved.is_within(broker_id, image.brokers[broker_id].directories):
        isr = tuple(replica for replica in isr if replica != broker_id)
    may_lead = can_lead(image, moved, lambda replica: is_active(image, replica))
    change = change_of(topic_id, index, moved, isr, may_lead, rules)
    directories = moved.directories if change is None else moved.after(change).directories
    if directories != state.directories:
        change = change or PartitionChangeRecord(partition_id=index, topic_id=topic_id)
        change.directories = list(directories)
    return change


def _with(state: PartitionState, broker_id: int, directory: bytes) -> tuple[bytes, ...]:
    known = state.directories or (UNASSIGNED_DIRECTORY,) * len(state.replicas)
    return tuple(
        directory if replica == broker_id else before for replica, before in zip(state.replicas, known, strict=True)
    )
