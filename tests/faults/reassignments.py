"""Partition reassignment and preferred leader election, as kafka-reassign-partitions and kafka-leader-election request them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from protocol.messages.cluster import AlterPartitionReassignmentsRequest, ElectLeadersRequest
from tests.support.messages import message
from tests.support.raw_client import RawClient

TopicPartition = tuple[str, int]
_ANSWER_S = 30.0


def give_replicas(bootstrap: str, wanted: Mapping[TopicPartition, Sequence[int]]) -> int:
    """Requests these replica lists; the number of partitions that were refused."""
    topics: dict[str, list[Any]] = defaultdict(list)
    for (topic, index), replicas in wanted.items():
        topics[topic].append({"partition_index": index, "replicas": list(replicas)})
    named = [{"name": name, "partitions": some} for name, some in topics.items()]
    request = message(AlterPartitionReassignmentsRequest, timeout_ms=20_000, topics=named)
    with RawClient(bootstrap, _ANSWER_S) as client:
        response = client.ask(request, 0)
    assert response.error_code == 0, f"no reassignment: {response.error_code} {response.error_message}"
    return sum(one.error_code != 0 for topic in response.responses for one in topic.partitions)


def elect_preferred(bootstrap: str, partitions: Iterable[TopicPartition]) -> None:
    """Requests the preferred leaders; partitions whose preferred replica cannot lead keep their leader."""
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, index in partitions:
        topics[topic].append(index)
    named = [{"topic": name, "partitions": some} for name, some in topics.items()]
    request = message(ElectLeadersRequest, topic_partitions=named, timeout_ms=20_000)
    with RawClient(bootstrap, _ANSWER_S) as client:
        response = client.ask(request, 2)
    assert response.error_code == 0, f"no election: {response.error_code}"
