"""AssignReplicasToDirs: a broker says in which of its log directories replicas lie.

RULES    1. Checks, their order and codes are Apache Kafka 4.3's (ReplicationControlManager.handleAssignReplicasToDirs).
         2. Who leads stays: a broker names only directories that are in service.
NOT HERE Asking for it (`broker/directory_requests.py`), what a directory that fails means (`elections.py`).
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
from protocol.messages.stored import PartitionChangeRecord
from replication.controller.environment import Environment
from replication.image import UNASSIGNED_DIRECTORY, MetadataImage, PartitionState
from replication.metadata_records import Versioned
from replication.record_versions import partition_version
from replication.state_machine import Decision


def assign_replicas(
    image: MetadataImage, environment: Environment, request: AssignReplicasToDirsRequest
) -> Decision[AssignReplicasToDirsResponse]:
    """Note where replicas lie."""
    del environment
    broker = image.brokers.get(request.broker_id)
    if broker is None or broker.epoch != request.broker_epoch:
        return Decision([], AssignReplicasToDirsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
    records: list[Versioned] = []
    answers = [
        AssignReplicasToDirsDirectoryResponse(
            id=directory.id,
            topics=[_topic(image, request.broker_id, directory.id, topic, records) for topic in directory.topics],
        )
        for directory in request.directories
    ]
    response = AssignReplicasToDirsResponse(error_code=ErrorCode.NONE, directories=answers)
    return Decision(records, response, is_atomic=False)


def _topic(
    image: MetadataImage, broker_id: int, directory: bytes, asked: AssignReplicasToDirsTopic, records: list[Versioned]
) -> AssignReplicasToDirsTopicResponse:
    topic = image.topics_by_id.get(asked.topic_id)
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
        else:
            directories = _with(state, broker_id, directory)
            if directories != state.directories:
                record = PartitionChangeRecord(
                    partition_id=index, topic_id=asked.topic_id, directories=list(directories)
                )
                records.append((record, partition_version(image.metadata_version)))
        answers.append(AssignReplicasToDirsPartitionResponse(partition_index=index, error_code=code))
    return AssignReplicasToDirsTopicResponse(topic_id=asked.topic_id, partitions=answers)


def _with(state: PartitionState, broker_id: int, directory: bytes) -> tuple[bytes, ...]:
    known = state.directories or (UNASSIGNED_DIRECTORY,) * len(state.replicas)
    return tuple(
        directory if replica == broker_id else before for replica, before in zip(state.replicas, known, strict=True)
    )
