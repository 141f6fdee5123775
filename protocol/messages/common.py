"""What several messages share: the first fields of responses, partitions of a topic, endpoints, versions.

RULES    1. A generic struct has an array of its `P`, a struct or a number, which the annotation of a field names:
            `Topic[ListOffsetsPartition]`, `Topic[Int32]`.
"""

from __future__ import annotations

from typing import Generic

from protocol.schema import Int16, Int32, Message, P, UInt16, Uuid


class Response(Message):
    """The first field of most responses: how long a client over a quota must wait (KIP-219)."""

    throttle_time_ms: Int32 = 0


class ErrorResponse(Response):
    """The first fields of a response with an error for the whole request."""

    error_code: Int16


class ErrorMessageResponse(ErrorResponse):
    """The first fields of a response with such an error and a sentence about it."""

    error_message: str | None = None


class Topic(Message, Generic[P]):
    """A topic by name, with a `P` for each partition."""

    name: str
    partitions: list[P]


class TopicById(Message, Generic[P]):
    """A topic by id, with a `P` for each partition."""

    topic_id: Uuid
    partitions: list[P]


class QuorumTopic(Message, Generic[P]):
    """The metadata topic, with a struct for its partition."""

    topic_name: str
    partitions: list[P]


class TopicPartitions(Message, Generic[P]):
    """A topic by name, with a `P` for each partition; the field of the name is `topic`."""

    topic: str
    partitions: list[P]


class PartitionIndexes(Message):
    """Partitions of a topic; their field is `partition_indexes`."""

    name: str
    partition_indexes: list[Int32]


class PartitionIndex(Message):
    """One partition of a topic."""

    partition_index: Int32


class PartitionError(Message):
    """The result of one partition."""

    partition_index: Int32
    error_code: Int16


class PartitionErrorMessage(PartitionError):
    """The result of one partition, with a sentence about an error."""

    error_message: str | None = None


class ListenerEndpoint(Message):
    """The address of a listener of a node."""

    name: str
    host: str
    port: UInt16


class KRaftVersionFeature(Message):
    """The range of kraft.version that a voter supports."""

    min_supported_version: Int16
    max_supported_version: Int16
