"""Validation of consumer group requests, with Apache Kafka's order and messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from broker.coordinators.consumer.assignors import TopicPartition
from broker.coordinators.consumer.consumer_group import (
    JOIN_GROUP_MEMBER_EPOCH,
    LEAVE_GROUP_MEMBER_EPOCH,
    LEAVE_GROUP_STATIC_MEMBER_EPOCH,
    AssignedPartitions,
    ConsumerGroup,
    ConsumerMember,
    Owned,
)
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest


def check_ids(request: ConsumerGroupHeartbeatRequest, api_version: int) -> None:
    """Check that no id is empty; in version 0 a member may join without an id. Raises KafkaError: INVALID_REQUEST."""
    epoch = request.member_epoch
    if api_version > 0 or epoch > JOIN_GROUP_MEMBER_EPOCH or epoch == LEAVE_GROUP_MEMBER_EPOCH:
        _check_text(request.member_id, "MemberId")
    _check_text(request.group_id, "GroupId")
    _check_text(request.instance_id, "InstanceId")
    _check_text(request.rack_id, "RackId")


def check_heartbeat(request: ConsumerGroupHeartbeatRequest, assignors: Sequence[str]) -> None:
    """Validate a request with ids, without the group.

    Raises:
        KafkaError: INVALID_REQUEST or UNSUPPORTED_ASSIGNOR.
    """
    epoch = request.member_epoch
    if epoch == JOIN_GROUP_MEMBER_EPOCH:
        _check_joining(request)
    elif epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        if request.instance_id is None:
            raise _invalid("InstanceId can't be null.")
    elif epoch < LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def _check_joining(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise _invalid("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise _invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")


def _check_text(text: str | None, name: str) -> None:
    if text is not None and not text.strip():
        raise _invalid(f"{name} can't be empty.")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def check_epoch(member: ConsumerMember, request: ConsumerGroupHeartbeatRequest) -> None:
    """Validate the member epoch or, after a lost response, the previous one; raises KafkaError: FENCED_MEMBER_EPOCH."""
    epoch = request.member_epoch
    if epoch in {JOIN_GROUP_MEMBER_EPOCH, member.epoch}:
        return
    if epoch == member.previous_epoch < member.epoch and _is_within(owned_by(request), member.assigned):
        return
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {'greater' if epoch > member.epoch else 'smaller'} member epoch ({epoch}) "
        f"than the one known by the group coordinator ({member.epoch}). The member must abandon all its partitions "
        "and rejoin.",
    )


def owned_by(request: ConsumerGroupHeartbeatRequest) -> Owned | None:
    """The partitions in the request; None if it has no such field."""
    if request.topic_partitions is None:
        return None
    return {one.topic_id: one.partitions for one in request.topic_partitions}


def _is_within(owned: Owned | None, assigned: AssignedPartitions) -> bool:
    """Whether all owned partitions are assigned; as in Kafka an unassigned topic must not be listed, even if empty."""
    if owned is None:
        return False
    return all(topic_id in assigned and assigned[topic_id].keys() >= set(has) for topic_id, has in owned.items())


def validate_offset_commit(
    group: ConsumerGroup,
    member_id: str,
    instance_id: str | None,
    epoch: int,
    partitions: Iterable[TopicPartition],
    api_version: int | None,
) -> ErrorCode:
    """The error of an offset commit; `api_version` is None in a transaction."""
    if epoch < 0 and not group.members:
        return ErrorCode.NONE  # an admin client or a consumer without group management
    if api_version is None and epoch == -1 and not member_id and instance_id is None:
        return ErrorCode.NONE
    member = group.members.get(member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if member.classic is None and api_version is not None and api_version < 9:
        return ErrorCode.UNSUPPORTED_VERSION
    if epoch == member.epoch or (epoch < member.epoch and all(_was_owned(member, epoch, one) for one in partitions)):
        return ErrorCode.NONE
    if member.classic is None and api_version is not None:
        return ErrorCode.STALE_MEMBER_EPOCH
    return ErrorCode.ILLEGAL_GENERATION  # known to producers


def _was_owned(member: ConsumerMember, epoch: int, partition: TopicPartition) -> bool:
    """Whether the partition was assigned to the member in this earlier epoch and still is."""
    topic_id, index = partition
    for assigned in (member.assigned, member.revoking):
        since = assigned.get(topic_id, {}).get(index)
        if since is not None:
            return epoch >= since
    return False


def check_fetch(group: ConsumerGroup, member_id: str | None, epoch: int) -> ErrorCode:
    """The error of an offset fetch; an admin client sends no member."""
    if member_id is None and epoch < 0:
        return ErrorCode.NONE
    member = group.members.get(member_id or "")
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if epoch == member.epoch:
        return ErrorCode.NONE
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
