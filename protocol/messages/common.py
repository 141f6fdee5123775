"""Structs that several messages share: partitions of a topic, endpoints, versions.

RULES    1. A generic struct has an array of its `P`, which the annotation of a field names: `Topic[ListOffsetsPartition]`.
"""

from __future__ import annotations

from typing import Generic

from protocol.schema import Int16, Int32, Message, P, UInt16, Uuid


class Topic(Message, Generic[P]):
    """A topic by name, with a struct for each partition."""

    name: str
    partitions: list[P]


class TopicById(Message, Generic[P]):
    """A topic by id, with a struct for each partition."""

    topic_id: Uuid
    partitions: list[P]


class QuorumTopic(Message, Generic[P]):
    """The metadata topic, with a struct for its partition."""

    topic_name: str
    partitions: list[P]


class TopicPartitions(Message):
    """Partitions of a topic."""

    topic: str
    partitions: list[Int32]


class NamedPartitions(Message):
    """Partitions of a topic; the topic's field is `name`."""

    name: str
    partitions: list[Int32]


class PartitionIndexes(Message):
    """Partitions of a topic; their field is `partition_indexes`."""

    name: str
    partition_indexes: list[Int32]


class TopicIdPartitions(Message):
    """Partitions of a topic by id."""

    topic_id: Uuid
    partitions: list[Int32]


class PartitionIndex(Message):
    """One partition of a topic."""

    partition_index: Int32


class PartitionError(Message):
    """The result of one partition."""

    partition_index: Int32
    error_code: Int16


class ListenerEndpoint(Message):
    """The address of a listener of a node."""

    name: str
    host: str
    port: UInt16


class KRaftVersionFeature(Message):
    """The range of kraft.version that a voter supports."""

    min_supported_version: Int16
    max_supported_version: Int16
