"""Other replicas and other leaders for partitions, as kafka-reassign-partitions and kafka-leader-election ask for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    ElectedPartitions,
    ElectLeadersRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.support.raw_client import RawClient

Place = tuple[str, int]
_ANSWER_S = 30.0


def give_replicas(bootstrap: str, wanted: Mapping[Place, Sequence[int]]) -> int:
    """Ask for these replicas, in this order; how many partitions were refused them."""
    topics: dict[str, list[Any]] = defaultdict(list)
    for (topic, index), replicas in wanted.items():
        topics[topic].append(ReassignablePartition(partition_index=index, replicas=list(replicas)))
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=20_000, topics=[ReassignableTopic(name=name, partitions=some) for name, some in topics.items()]
    )
    with RawClient(bootstrap, _ANSWER_S) as client:
        told = client.ask(request, 0)
    assert told.error_code == 0, f"no reassignment: {told.error_code} {told.error_message}"
    return sum(one.error_code != 0 for topic in told.responses for one in topic.partitions)


def elect_preferred(bootstrap: str, places: Iterable[Place]) -> None:
    """Ask for the first replicas as leaders; those that cannot lead, or do so already, are let be."""
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, index in places:
        topics[topic].append(index)
    request = ElectLeadersRequest(
        topic_partitions=[ElectedPartitions(topic=name, partitions=some) for name, some in topics.items()],
        timeout_ms=20_000,
    )
    with RawClient(bootstrap, _ANSWER_S) as client:
        told = client.ask(request, 2)
    assert told.error_code == 0, f"no election: {told.error_code}"
