"""The records of consumer groups in `__consumer_offsets`, as Apache Kafka 4.3 writes them.

FORMAT   type 3   group epoch, metadata hash                    type 6   assignment epoch and time
         type 5   a member's metadata                           type 7   a member's target assignment
         type 8   a member's current assignment                 type 16  the topics of a regular expression
         type 4   the topics of a group, until Apache Kafka 4.0; ignored
         type 11, 17   the group epoch of a share group, of a streams group; only their keys are read
RULES    1. A tombstone deletes the entry of its key.
         2. The partitions of a topic are sorted; each has the epoch in which it was assigned.
NOT HERE When a record is written (`consumer_group_heartbeat.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from broker.coordinators.classic.classic_group import MemberProtocol
from broker.coordinators.consumer.assignors import Partitions
from broker.coordinators.consumer.consumer_group import (
    AssignedPartitions,
    ClassicMemberInfo,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    ResolvedRegex,
)
from broker.coordinators.runtime.stored_records import StoredRecord, version_of
from protocol.codec import decode
from protocol.errors import MalformedRequest
from protocol.messages.common import TopicById
from protocol.messages.stored_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    CurrentAssignmentTopicPartitions,
)
from protocol.schema import Message

_STATES: Final[Mapping[int, MemberState]] = {state.value: state for state in MemberState}

_CLASSES: Final[Mapping[int, tuple[type[Message], type[Message]]]] = {
    key.API_KEY: (key, value)
    for key, value in (
        (ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
        (ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
        (ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
        (ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
        (ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
        (ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
    )
}
TYPES: Final = frozenset(_CLASSES)
TYPES_OF_OTHER_GROUPS: Final = frozenset({11, 17})
KEYS: Final = frozenset(key for key, _ in _CLASSES.values())


def read(record_type: int, key: bytes, value: bytes | None) -> StoredRecord:
    """Decode a record of one of `TYPES`."""
    key_class, value_class = _CLASSES[record_type]
    found = None if value is None else decode(value_class, version_of(value, value_class.MAX_VERSION), value, 2)
    return StoredRecord(decode(key_class, 0, key, 2), found)


def read_group_id(key: bytes) -> str:
    """The group id of a key of one of `TYPES_OF_OTHER_GROUPS`."""
    return decode(ConsumerGroupMetadataKey, 0, key, 2).group_id


# ---- records of a group


def epoch_record(group_id: str, epoch: int, hash_of_metadata: int) -> StoredRecord:
    """The group epoch."""
    return StoredRecord(
        ConsumerGroupMetadataKey(group_id=group_id),
        ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=hash_of_metadata),
    )


def assignment_epoch_record(group_id: str, epoch: int, wall_ms: int) -> StoredRecord:
    """The assignment epoch."""
    return StoredRecord(
        ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id),
        ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=wall_ms),
    )


def regex_record(group_id: str, regex: str, resolved: ResolvedRegex) -> StoredRecord:
    """The topics of a regular expression."""
    return StoredRecord(
        ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex),
        ConsumerGroupRegularExpressionValue(
            topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.wall_ms
        ),
    )


def regex_tombstone(group_id: str, regex: str) -> StoredRecord:
    """The record that deletes a regular expression."""
    return StoredRecord(ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), None)


def group_records(group: ConsumerGroup) -> list[StoredRecord]:
    """All records of a group, without regular expressions."""
    group_id = group.group_id
    members = group.members.values()
    return [
        *(member_record(group_id, member) for member in members),
        epoch_record(group_id, group.epoch, group.metadata_hash),
        *(target_record(group_id, member_id, target) for member_id, target in group.targets.items()),
        assignment_epoch_record(group_id, group.assignment_epoch, group.assignment_wall_ms),
        *(current_record(group_id, member) for member in members),
    ]


def group_tombstones(group: ConsumerGroup, renamed: Mapping[str, str] = MappingProxyType({})) -> list[StoredRecord]:
    """The tombstones of all records of a group; `renamed` maps old to new member ids."""
    group_id = group.group_id
    member_ids = [renamed.get(member_id, member_id) for member_id in group.members]
    of_members = [member_tombstones(group_id, member_id) for member_id in member_ids]
    return [
        *(current for current, _, _ in of_members),
        *(target for _, target, _ in of_members),
        StoredRecord(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None),
        *(member for _, _, member in of_members),
        *(regex_tombstone(group_id, regex) for regex in group.regexes),
        StoredRecord(ConsumerGroupMetadataKey(group_id=group_id), None),
    ]


# ---- records of a member


def member_record(group_id: str, member: ConsumerMember) -> StoredRecord:
    """A member's metadata."""
    classic = member.classic
    value = ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
    )
    if classic is not None:
        value.classic_member_metadata = ClassicMemberMetadata(
            session_timeout_ms=classic.session_timeout_ms,
            supported_protocols=[ClassicProtocol(name=name, metadata=data) for name, data in classic.protocols],
        )
    return StoredRecord(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id), value)


def target_record(group_id: str, member_id: str, target: Partitions) -> StoredRecord:
    """A member's target assignment."""
    partitions = [TopicById(topic_id=topic_id, partitions=sorted(found)) for topic_id, found in target.items()]
    return StoredRecord(
        ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        ConsumerGroupTargetAssignmentMemberValue(topic_partitions=partitions),
    )


def current_record(group_id: str, member: ConsumerMember) -> StoredRecord:
    """A member's current assignment."""
    return StoredRecord(
        ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id),
        ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=member.epoch,
            previous_member_epoch=member.previous_epoch,
            state=member.state,
            assigned_partitions=_write_assignment(member.assigned),
            partitions_pending_revocation=_write_assignment(member.revoking),
        ),
    )


def member_tombstones(group_id: str, member_id: str) -> list[StoredRecord]:
    """The tombstones of a member."""
    return [
        StoredRecord(ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None),
        StoredRecord(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None),
        StoredRecord(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None),
    ]


def _write_assignment(assigned: AssignedPartitions) -> list[CurrentAssignmentTopicPartitions]:
    found = []
    for topic_id, epochs in assigned.items():
        partitions = sorted(epochs)
        found.append(
            CurrentAssignmentTopicPartitions(
                topic_id=topic_id,
                partitions=partitions,
                assignment_epochs=[epochs[partition] for partition in partitions],
            )
        )
    return found


def _read_assignment(stored: list[CurrentAssignmentTopicPartitions], epoch: int) -> AssignedPartitions:
    """Partitions with their epochs; before 4.3 records have only the member epoch."""
    found = {}
    for one in stored:
        epochs = one.assignment_epochs or [epoch] * len(one.partitions)
        if len(epochs) != len(one.partitions):
            raise MalformedRequest("a stored assignment has not one epoch for each partition")
        found[one.topic_id] = dict(zip(one.partitions, epochs, strict=True))
    return found


# ---- applying


def apply(groups: dict[str, ConsumerGroup], record: StoredRecord) -> None:
    """Apply a record to the groups."""
    key, value = record.key, record.value
    group_id: str = key.group_id
    group = groups.get(group_id)
    if group is None:
        if value is None:
            return
        group = groups[group_id] = ConsumerGroup(group_id)
    if isinstance(key, ConsumerGroupMetadataKey):
        if value is None:
            del groups[group_id]
        elif isinstance(value, ConsumerGroupMetadataValue):
            group.epoch, group.metadata_hash = value.epoch, value.metadata_hash
    elif isinstance(key, ConsumerGroupRegularExpressionKey):
        _apply_regex(group, key.regular_expression, value)
    elif isinstance(key, ConsumerGroupTargetAssignmentMetadataKey):
        if isinstance(value, ConsumerGroupTargetAssignmentMetadataValue):
            group.assignment_epoch, group.assignment_wall_ms = value.assignment_epoch, value.assignment_timestamp
        else:
            group.assignment_epoch = group.assignment_wall_ms = 0
    else:
        _apply_to_member(group, key.member_id, key, value)


def _apply_regex(group: ConsumerGroup, regex: str, value: Message | None) -> None:
    if isinstance(value, ConsumerGroupRegularExpressionValue):
        group.regexes[regex] = ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)
    else:
        group.regexes.pop(regex, None)


def _apply_to_member(group: ConsumerGroup, member_id: str, key: Message, value: Message | None) -> None:
    member = group.members.get(member_id)
    if isinstance(key, ConsumerGroupTargetAssignmentMemberKey):
        if isinstance(value, ConsumerGroupTargetAssignmentMemberValue):
            group.targets[member_id] = {one.topic_id: frozenset(one.partitions) for one in value.topic_partitions}
        else:
            group.targets.pop(member_id, None)
    elif isinstance(value, ConsumerGroupMemberMetadataValue):
        group.update_member(_with_metadata(member or ConsumerMember(member_id), value))
    elif isinstance(value, ConsumerGroupCurrentMemberAssignmentValue):
        group.update_member(_with_current_assignment(member or ConsumerMember(member_id), value))
    elif isinstance(key, ConsumerGroupMemberMetadataKey):
        group.remove(member_id)
    elif member is not None:
        group.update_member(_without_assignment(member))


def _with_metadata(member: ConsumerMember, value: ConsumerGroupMemberMetadataValue) -> ConsumerMember:
    classic = value.classic_member_metadata
    return member._replace(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=frozenset(value.subscribed_topic_names),
        regex=value.subscribed_topic_regex or "",
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        assignor=value.server_assignor,
        classic=None
        if classic is None
        else ClassicMemberInfo(
            classic.session_timeout_ms,
            tuple(MemberProtocol(one.name, one.metadata) for one in classic.supported_protocols),
        ),
    )


def _with_current_assignment(
    member: ConsumerMember, value: ConsumerGroupCurrentMemberAssignmentValue
) -> ConsumerMember:
    return member._replace(
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=_STATES.get(value.state, MemberState.UNRELEASED_PARTITIONS),  # unknown state of a later release
        assigned=_read_assignment(value.assigned_partitions, value.member_epoch),
        revoking=_read_assignment(value.partitions_pending_revocation, value.member_epoch),
    )


def _without_assignment(member: ConsumerMember) -> ConsumerMember:
    """The current assignment was deleted; the member's tombstone follows."""
    return member._replace(epoch=-1, previous_epoch=-1, state=MemberState.STABLE, assigned={}, revoking={})
