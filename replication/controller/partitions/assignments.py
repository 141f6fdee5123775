"""From chosen brokers to new partitions: checks of replicas chosen by hand, and the records.

RULES    1. Only registered brokers get replicas; only active ones begin in the ISR, and its first one leads.
         2. Checks, their order and sentences are Apache Kafka 4.3's (ReplicationControlManager).
NOT HERE Choosing brokers (`placement.py`).
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
    """The brokers of a new partition, the preferred leader first, and those of them that begin in sync."""

    replicas: list[int]
    isr: list[int]


def bad_assignment(sentence: str) -> KafkaError:
    """The refusal of an assignment."""
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, sentence)


def placed(image: MetadataImage, random_below: RandomBelow, replication_factor: int, count: int) -> list[Assignment]:
    """So many partitions of one topic, placed by lot.

    Raises:
        KafkaError: INVALID_REPLICATION_FACTOR.
    """
    placer = Placer(image.brokers.values(), random_below)
    active = {broker_id for broker_id, broker in image.brokers.items() if broker.is_active}
    placements = [placer.place(replication_factor) for _ in range(count)]
    return [
        Assignment(replicas, [broker_id for broker_id in replicas if broker_id in active]) for replicas in placements
    ]


def all_by_hand(image: MetadataImage, wanted: Sequence[tuple[int, list[int]]]) -> list[Assignment]:
    """All partitions of a topic as (index, replicas) chosen by hand, in the order of their index.

    Raises:
        KafkaError: INVALID_REPLICA_ASSIGNMENT.
    """
    found: dict[int, Assignment] = {}
    replication_factor = None
    for index, replicas in wanted:
        if index in found:
            raise bad_assignment(f"Found multiple manual partition assignments for partition {index}")
        found[index] = by_hand(image, index, replicas, replication_factor)
        replication_factor = len(replicas)
    if sorted(found) != list(range(len(found))):
        raise bad_assignment("partitions should be a consecutive 0-based integer sequence")
    return [found[index] for index in range(len(found))]


def by_hand(image: MetadataImage, index: int, replicas: list[int], replication_factor: int | None) -> Assignment:
    """One partition's brokers, chosen by hand.

    Raises:
        KafkaError: INVALID_REPLICA_ASSIGNMENT.
    """
    check_by_hand(image, replicas, replication_factor)
    isr = [broker_id for broker_id in replicas if image.brokers[broker_id].is_active]
    if not isr:
        raise bad_assignment(
            f"All brokers specified in the manual partition assignment for partition {index} are fenced or in "
            "controlled shutdown."
        )
    return Assignment(replicas, isr)


def check_by_hand(image: MetadataImage, replicas: Sequence[int], replication_factor: int | None) -> None:
    """Refuse brokers that cannot hold a partition.

    Raises:
        KafkaError: INVALID_REPLICA_ASSIGNMENT.
    """
    if not replicas:
        raise bad_assignment("The manual partition assignment includes an empty replica list.")
    before = None
    for broker_id in sorted(replicas):
        if broker_id not in image.brokers:
            raise bad_assignment(
                f"The manual partition assignment includes broker {broker_id}, but no such broker is registered."
            )
        if broker_id == before:
            raise bad_assignment(f"The manual partition assignment includes the broker {broker_id} more than once.")
        before = broker_id
    if replication_factor is not None and len(replicas) != replication_factor:
        raise bad_assignment(
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not "
            f"consistent with previous partitions, which have {replication_factor} replica(s)."
        )


def partition_records(
    image: MetadataImage, topic_id: bytes, assignments: Sequence[Assignment], first_index: int = 0
) -> list[Versioned]:
    """The records that make new partitions, numbered from `first_index` on."""
    version = partition_version(image.metadata_version)
    directories = {broker_id: default_directory(image, broker_id) for broker_id in image.brokers}
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


def default_directory(image: MetadataImage, broker_id: int) -> bytes:
    """A broker with one log directory needs not tell us which one it takes."""
    directories = image.brokers[broker_id].directories
    return directories[0] if len(directories) == 1 else UNASSIGNED_DIRECTORY
