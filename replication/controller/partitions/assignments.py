"""Assignments of new partitions: validation of manual assignments, and the partition records.

RULES    1. Replicas are assigned to registered brokers. The active ones form the ISR; its first member leads.
         2. The checks, their order and messages are Apache Kafka 4.3's (ReplicationControlManager).
NOT HERE Automatic placement (`placement.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from protocol.errors import ErrorCode, KafkaError
from protocol.messages.stored_records import PartitionRecord
from replication.controller.partitions.placement import Placer, RandomBelow
from replication.metadata.feature_levels import partition_version
from replication.metadata.image import UNASSIGNED_DIRECTORY, MetadataImage
from replication.metadata.metadata_records import Versioned


class Assignment(NamedTuple):
    """The replicas of a new partition, the preferred leader first, and its ISR."""

    replicas: list[int]
    isr: list[int]


def invalid_assignment(message: str) -> KafkaError:
    """The error for an invalid manual assignment."""
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def place_partitions(
    image: MetadataImage, random_below: RandomBelow, replication_factor: int, count: int
) -> list[Assignment]:
    """Place `count` new partitions of one topic.

    Raises:
        KafkaError: INVALID_REPLICATION_FACTOR.
    """
    placer = Placer(image.brokers.values(), random_below)
    active = {broker_id for broker_id, broker in image.brokers.items() if broker.is_active}
    placements = [placer.place(replication_factor) for _ in range(count)]
    return [
        Assignment(replicas, [broker_id for broker_id in replicas if broker_id in active]) for replicas in placements
    ]


def manual_assignments(image: MetadataImage, wanted: Sequence[tuple[int, list[int]]]) -> list[Assignment]:
    """The manual assignments (index, replicas) of a new topic, by partition index.

    Raises:
        KafkaError: INVALID_REPLICA_ASSIGNMENT.
    """
    found: dict[int, Assignment] = {}
    replication_factor = None
    for index, replicas in wanted:
        if index in found:
            raise invalid_assignment(f"Found multiple manual partition assignments for partition {index}")
        found[index] = manual_assignment(image, index, replicas, replication_factor)
        replication_factor = len(replicas)
    if sorted(found) != list(range(len(found))):
        raise invalid_assignment("partitions should be a consecutive 0-based integer sequence")
    return [found[index] for index in range(len(found))]


def manual_assignment(
    image: MetadataImage, index: int, replicas: list[int], replication_factor: int | None
) -> Assignment:
    """The manual assignment of one partition.

    Raises:
        KafkaError: INVALID_REPLICA_ASSIGNMENT.
    """
    validate_manual_assignment(image, replicas, replication_factor)
    isr = [broker_id for broker_id in replicas if image.brokers[broker_id].is_active]
    if not isr:
        raise invalid_assignment(
            f"All brokers specified in the manual partition assignment for partition {index} are fenced or in "
            "controlled shutdown."
        )
    return Assignment(replicas, isr)


def validate_manual_assignment(image: MetadataImage, replicas: Sequence[int], replication_factor: int | None) -> None:
    """Reject invalid replicas.

    Raises:
        KafkaError: INVALID_REPLICA_ASSIGNMENT.
    """
    if not replicas:
        raise invalid_assignment("The manual partition assignment includes an empty replica list.")
    before = None
    for broker_id in sorted(replicas):
        if broker_id not in image.brokers:
            raise invalid_assignment(
                f"The manual partition assignment includes broker {broker_id}, but no such broker is registered."
            )
        if broker_id == before:
            raise invalid_assignment(f"The manual partition assignment includes the broker {broker_id} more than once.")
        before = broker_id
    if replication_factor is not None and len(replicas) != replication_factor:
        raise invalid_assignment(
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not "
            f"consistent with previous partitions, which have {replication_factor} replica(s)."
        )


def partition_records(
    image: MetadataImage, topic_id: bytes, assignments: Sequence[Assignment], first_index: int = 0
) -> list[Versioned]:
    """The records of new partitions, numbered from `first_index`."""
    version = partition_version(image.metadata_version)
    directories = {broker_id: default_log_dir(image, broker_id) for broker_id in image.brokers}
    return [
        (
            PartitionRecord(
                partition_id=index,
                topic_id=topic_id,
                replicas=replicas,
                isr=isr,
                leader=isr[0],
                leader_epoch=0,
                partition_epoch=0,
                directories=[directories[broker_id] for broker_id in replicas] if version else [],
            ),
            version,
        )
        for index, (replicas, isr) in enumerate(assignments, first_index)
    ]


def default_log_dir(image: MetadataImage, broker_id: int) -> bytes:
    """The only log directory of a broker; UNASSIGNED if it has several and will choose one."""
    directories = image.brokers[broker_id].directories
    return directories[0] if len(directories) == 1 else UNASSIGNED_DIRECTORY
