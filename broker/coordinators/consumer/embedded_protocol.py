"""The embedded consumer protocol of JoinGroup and SyncGroup: subscriptions and assignments.

FORMAT   i16 version, then the message in that version
RULES    1. A newer version is read and written as the newest known one.
         2. Deleted topics are left out.
NOT HERE Subscriptions for the expiry of offsets (`classic_group.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from struct import Struct, error

from broker.coordinators.consumer.assignors import Partitions
from protocol.codec import decode, encode
from protocol.errors import MalformedRequest
from protocol.messages.common import TopicPartitions
from protocol.messages.groups import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from replication.metadata.image import MetadataImage

_I16 = Struct(">h")


def version_of(data: bytes, highest: int) -> int:
    """The version to decode.

    Raises:
        MalformedRequest: there is none.
    """
    try:
        (version,) = _I16.unpack_from(data)
    except error:
        raise MalformedRequest("an embedded message has no version") from None
    if version < 0:
        raise MalformedRequest(f"an embedded message has version {version}")
    return int(min(version, highest))


def read_subscription(metadata: bytes) -> ConsumerProtocolSubscription:
    """Decode a subscription; raises MalformedRequest."""
    version = version_of(metadata, ConsumerProtocolSubscription.MAX_VERSION)
    return decode(ConsumerProtocolSubscription, version, metadata, _I16.size)


def read_assignment(assignment: bytes) -> ConsumerProtocolAssignment:
    """Decode an assignment; empty bytes are an empty assignment. Raises MalformedRequest."""
    if not assignment:
        return ConsumerProtocolAssignment(assigned_partitions=[])
    version = version_of(assignment, ConsumerProtocolAssignment.MAX_VERSION)
    return decode(ConsumerProtocolAssignment, version, assignment, _I16.size)


def write_assignment(assigned: Mapping[bytes, Collection[int]], metadata: bytes, image: MetadataImage) -> bytes:
    """Encode an assignment in the version of the member's subscription; MalformedRequest if that has none."""
    version = version_of(metadata, ConsumerProtocolAssignment.MAX_VERSION)
    topics = image.topics_by_id
    partitions = [
        TopicPartitions(topic=topics[topic_id].name, partitions=sorted(found))
        for topic_id, found in assigned.items()
        if topic_id in topics
    ]
    return _I16.pack(version) + encode(ConsumerProtocolAssignment(assigned_partitions=partitions), version)


def by_topic_id(named: Iterable[TopicPartitions[int]], image: MetadataImage) -> Partitions:
    """Named partitions by topic id."""
    topics = image.topics_by_name
    return {topics[one.topic].topic_id: frozenset(one.partitions) for one in named if one.topic in topics}
