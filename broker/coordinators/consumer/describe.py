"""Consumer groups in ConsumerGroupDescribe responses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from broker.coordinators.consumer.consumer_group import ConsumerGroup, ConsumerMember, preferred_assignor
from protocol.errors import ErrorCode
from protocol.messages.consumer_groups import (
    ConsumerGroupDescribeResponseAssignment,
    ConsumerGroupDescribeResponseGroup,
    ConsumerGroupDescribeResponseMember,
    ConsumerGroupDescribeResponseTopicPartitions,
)
from replication.metadata.image import MetadataImage

CLASSIC_MEMBER = 0
CONSUMER_MEMBER = 1


def describe(
    group: ConsumerGroup, assignors: tuple[str, ...], image: MetadataImage
) -> ConsumerGroupDescribeResponseGroup:
    """The description of a group."""
    return ConsumerGroupDescribeResponseGroup(
        error_code=ErrorCode.NONE,
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=preferred_assignor(group.members.values(), assignors),
        members=[_member(group, member, image) for member in group.members.values()],
    )


def _member(group: ConsumerGroup, member: ConsumerMember, image: MetadataImage) -> ConsumerGroupDescribeResponseMember:
    return ConsumerGroupDescribeResponseMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        assignment=_assignment(_owned(member), image),
        target_assignment=_assignment(group.targets.get(member.member_id, {}), image),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def _owned(member: ConsumerMember) -> dict[bytes, set[int]]:
    """All partitions that the member owns."""
    owned: dict[bytes, set[int]] = {}
    for topic_id, partition in member.partitions():
        owned.setdefault(topic_id, set()).add(partition)
    return owned


def _assignment(
    assigned: Mapping[bytes, Iterable[int]], image: MetadataImage
) -> ConsumerGroupDescribeResponseAssignment:
    """Deleted topics are left out."""
    topics = image.topics_by_id
    return ConsumerGroupDescribeResponseAssignment(
        topic_partitions=[
            ConsumerGroupDescribeResponseTopicPartitions(
                topic_id=topic_id, topic_name=topics[topic_id].name, partitions=sorted(partitions)
            )
            for topic_id, partitions in assigned.items()
            if topic_id in topics
        ]
    )


def describe_error(group_id: str, error: ErrorCode, message: str | None = None) -> ConsumerGroupDescribeResponseGroup:
    """A failed description."""
    return ConsumerGroupDescribeResponseGroup(error_code=error, error_message=message, group_id=group_id)


def topics_in(group: ConsumerGroupDescribeResponseGroup) -> Sequence[str]:
    """The topics in a description."""
    return [
        topic.topic_name
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions
    ]
