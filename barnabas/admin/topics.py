"""Topics: list, describe, create, change the number of partitions, delete, delete records.

NOT HERE A topic's configs (`configs.py`), replicas and leaders (`partitions.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kafka.protocol.admin.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
)

from barnabas.admin.client import Client
from barnabas.admin.errors import check
from barnabas.admin.topic_arrays import topic_array
from barnabas.client.topic_partition import TopicPartition

DEFAULT = -1
"""The number of partitions or replicas that the cluster's settings give."""


class TopicRow(NamedTuple):
    """A topic in a list. `replicas` is the replication factor of its first partition."""

    name: str
    partitions: int
    replicas: int
    internal: bool
    under_replicated: int
    offline: int


class PartitionRow(NamedTuple):
    """A partition; the leader is -1 if there is none now."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    offline_replicas: list[int]


class TopicDescription(NamedTuple):
    """A topic with its partitions. The id is Kafka's text form; empty if the cluster is older than topic ids."""

    name: str
    id: str
    internal: bool
    partitions: list[PartitionRow]


def list_topics(client: Client) -> list[TopicRow]:
    """Returns all topics that the user may see, by name."""
    return sorted(_row(topic) for topic in client.metadata().topics if topic.name is not None)


def _row(topic: Any) -> TopicRow:
    parts = topic.partitions
    return TopicRow(
        topic.name,
        len(parts),
        len(parts[0].replica_nodes) if parts else 0,
        bool(topic.is_internal),
        sum(len(part.isr_nodes) < len(part.replica_nodes) for part in parts),
        sum(part.leader_id < 0 for part in parts),
    )


def describe_topics(client: Client, names: Iterable[str]) -> list[TopicDescription]:
    """Returns these topics in this order. Raises Refused if one is missing."""
    order = list(names)
    found = {}
    for topic in client.metadata(order).topics:
        check(topic.error_code, None, f"describe topic {topic.name}", f"Describe on topic {topic.name}")
        partitions = sorted(_partition(part) for part in topic.partitions)
        found[topic.name] = TopicDescription(topic.name, id_text(topic.topic_id), bool(topic.is_internal), partitions)
    return [found[name] for name in order]


def _partition(part: Any) -> PartitionRow:
    return PartitionRow(
        part.partition_index,
        part.leader_id,
        part.leader_epoch,
        list(part.replica_nodes),
        list(part.isr_nodes),
        list(part.offline_replicas or ()),
    )


def id_text(value: Any) -> str:
    """A topic id or directory id as Kafka prints it: URL-safe base64 without padding; empty for none."""
    from base64 import urlsafe_b64encode

    if value is None or not value.int:
        return ""
    return urlsafe_b64encode(value.bytes).decode().rstrip("=")


def partitions_of(client: Client, names: Iterable[str]) -> list[TopicPartition]:
    """Returns all partitions of these topics. Raises Refused if a topic is missing."""
    return [
        TopicPartition(topic.name, row.partition)
        for topic in describe_topics(client, names)
        for row in topic.partitions
    ]


class Created(NamedTuple):
    """What the cluster created, or would create. Numbers are -1 if it does not say."""

    name: str
    partitions: int
    replicas: int


def create_topic(
    client: Client,
    name: str,
    *,
    partitions: int = DEFAULT,
    replicas: int = DEFAULT,
    assignment: Mapping[int, list[int]] | None = None,
    configs: Mapping[str, str] | None = None,
    validate_only: bool = False,
) -> Created:
    """Creates a topic, or only checks whether it could be created.

    Args:
        client: The cluster.
        name: The name.
        partitions: How many.
        replicas: The replication factor.
        assignment: The broker ids of each partition; replaces the two numbers.
        configs: Topic configs.
        validate_only: Create nothing.

    Raises:
        Refused: with Kafka's message.
    """
    kinds: Any = CreateTopicsRequest.CreatableTopic
    topic = kinds(
        name=name,
        num_partitions=DEFAULT if assignment else partitions,
        replication_factor=DEFAULT if assignment else replicas,
        assignments=[
            kinds.CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in (assignment or {}).items()
        ],
        configs=[kinds.CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
    )
    timeout_ms = int(client.timeout_s * 1000)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms, validate_only=validate_only)
    found = client.ask_controller(request).topics[0]
    check(found.error_code, found.error_message, f"create topic {name}", f"Create on topic {name}")
    return Created(name, found.num_partitions, found.replication_factor)


def add_partitions(
    client: Client, name: str, count: int, assignment: list[list[int]] | None = None, *, validate_only: bool = False
) -> None:
    """Raises a topic's number of partitions to `count`; `assignment` has the brokers of each new one. Raises Refused."""
    kinds: Any = CreatePartitionsRequest.CreatePartitionsTopic
    brokers = None if assignment is None else [kinds.CreatePartitionsAssignment(broker_ids=ids) for ids in assignment]
    request = CreatePartitionsRequest(
        topics=[kinds(name=name, count=count, assignments=brokers)],
        timeout_ms=int(client.timeout_s * 1000),
        validate_only=validate_only,
    )
    found = client.ask_controller(request).results[0]
    check(found.error_code, found.error_message, f"alter topic {name}", f"Alter on topic {name}")


def delete_topic(client: Client, name: str) -> None:
    """Deletes a topic. Raises Refused."""
    topics = [DeleteTopicsRequest.DeleteTopicState(name=name)]
    request = DeleteTopicsRequest(topics=topics, topic_names=[name], timeout_ms=int(client.timeout_s * 1000))
    found = client.ask_controller(request).responses[0]
    check(found.error_code, found.error_message, f"delete topic {name}", f"Delete on topic {name}")


def delete_records(client: Client, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Deletes the records below an offset of each partition (-1: below its high watermark).

    Returns:
        The new log start offsets.

    Raises:
        Refused: the first error.
    """
    kinds: Any = DeleteRecordsRequest.DeleteRecordsTopic

    def item(tp: TopicPartition) -> Any:
        return kinds.DeleteRecordsPartition(partition_index=tp.partition, offset=before[tp])

    def request(partitions: list[TopicPartition]) -> Any:
        return DeleteRecordsRequest(
            topics=topic_array(kinds, partitions, item), timeout_ms=int(client.timeout_s * 1000)
        )

    starts = {}
    for tp, part in client.ask_leaders(before, request):
        check(part.error_code, None, f"delete records of {tp}", f"Delete on topic {tp.topic}")
        starts[tp] = int(part.low_watermark)
    return starts
