"""Groups of consumers: list, describe, committed offsets, delete.

RULES    1. A group is asked for as one of the consumer protocol (KIP-848) first, then as one of the classic protocol, as
            Kafka's own client does.
         2. Classic groups have an assignment that only their members understand; it is decoded if it is a consumer's. Bytes
            that are none are no partitions: any client can write them.
NOT HERE Lag and the reset of offsets (`lag.py`, `reset.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kafka.protocol.admin.groups import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer.group import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

from barnabas.admin.client import Client
from barnabas.admin.consumer_group_describe import ConsumerGroupDescribeRequest
from barnabas.admin.errors import Refused, check
from barnabas.admin.topic_arrays import topic_array
from barnabas.client.topic_partition import TopicPartition

_NOT_FOUND, _UNSUPPORTED = 69, 35
_IN_USE = dict.fromkeys((25, 68), "its members, or the deliveries of its schedule topic, use it: end them first")
"""UNKNOWN_MEMBER_ID and NON_EMPTY_GROUP."""
_LAST_WITH_NAMES = 9
"""The last version of OffsetFetch and OffsetCommit with topic names; later ones have ids."""


class GroupRow(NamedTuple):
    """A group in a list. The type is classic, consumer, share or streams; empty if the cluster does not say."""

    name: str
    type: str
    protocol: str
    state: str
    coordinator: int


class Member(NamedTuple):
    """A member; `epoch` and `target` only with the consumer protocol."""

    id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: list[TopicPartition]
    epoch: int | None
    target: list[TopicPartition] | None


class GroupDescription(NamedTuple):
    """A group; epochs only with the consumer protocol."""

    name: str
    type: str
    state: str
    coordinator: int
    assignor: str
    epoch: int | None
    assignment_epoch: int | None
    members: list[Member]


class Committed(NamedTuple):
    """A committed offset, with the epoch of the record before it (-1: unknown) and the client's text."""

    offset: int
    leader_epoch: int
    metadata: str


def list_groups(client: Client, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupRow]:
    """Returns the groups of all nodes by name, of these states and types if given. Raises Refused."""
    states, types = list(states), list(types)
    versions = {"min_version": 5} if types else {"min_version": 4} if states else {}
    found = []
    for node in client.node_ids():
        response = client.ask_loaded(ListGroupsRequest(states_filter=states, types_filter=types, **versions), node)
        check(response.error_code, None, "list groups", "Describe on the cluster")
        found += [
            GroupRow(group.group_id, group.group_type or "", group.protocol_type, group.group_state or "", node)
            for group in response.groups
        ]
    return sorted(found)


def describe_group(client: Client, name: str) -> GroupDescription:
    """Returns a group of either protocol (rule 1). Raises Refused if there is none."""
    try:
        found = _ask_one(client, consumer_request([name]), name)
    except Refused as failure:
        if failure.code not in {_NOT_FOUND, _UNSUPPORTED}:
            raise
    else:
        return consumer_description(found, client.coordinator(name))
    found = _ask_one(client, classic_request([name]), name)
    if found.group_state == "Dead":
        check(_NOT_FOUND, None, f"describe group {name}")
    return classic_description(found, client.coordinator(name))


def _ask_one(client: Client, request: Any, name: str) -> Any:
    found = client.ask_coordinator(request, name).groups[0]
    check(found.error_code, found.error_message, f"describe group {name}", f"Describe on group {name}")
    return found


def consumer_request(names: list[str]) -> Any:
    """Returns the request for descriptions of groups of the consumer protocol."""
    return ConsumerGroupDescribeRequest(group_ids=names, include_authorized_operations=False)


def classic_request(names: list[str]) -> Any:
    """Returns the request for descriptions of classic groups."""
    return DescribeGroupsRequest(groups=names, include_authorized_operations=False)


def consumer_description(found: Any, node: int) -> GroupDescription:
    """Returns a group in the response to `consumer_request`."""
    members = [
        Member(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            _partitions(member.assignment.topic_partitions),
            member.member_epoch,
            _partitions(member.target_assignment.topic_partitions),
        )
        for member in found.members
    ]
    return GroupDescription(
        found.group_id,
        "consumer",
        found.group_state,
        node,
        found.assignor_name,
        found.group_epoch,
        found.assignment_epoch,
        sorted(members, key=_by_client),
    )


def _partitions(topics: Any) -> list[TopicPartition]:
    return sorted(TopicPartition(topic.topic_name, number) for topic in topics for number in topic.partitions)


def _by_client(member: Member) -> tuple[str, str]:
    return member.client_id, member.id


def classic_description(found: Any, node: int) -> GroupDescription:
    """Returns a group in the response to `classic_request`."""
    members = [
        Member(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            _decode(member.member_assignment) if found.protocol_type == "consumer" else [],
            None,
            None,
        )
        for member in found.members
    ]
    return GroupDescription(
        found.group_id,
        "classic",
        found.group_state,
        node,
        found.protocol_data,
        None,
        None,
        sorted(members, key=_by_client),
    )


def _decode(assignment: bytes) -> list[TopicPartition]:
    """The partitions of a consumer's assignment; empty before the first assignment, and for other bytes (rule 2)."""
    if not assignment:
        return []
    try:
        topics = ConsumerProtocolAssignment.decode(assignment).assigned_partitions
    except (struct.error, ValueError, TypeError, IndexError):
        return []
    return sorted(TopicPartition(topic.topic, number) for topic in topics for number in topic.partitions)


def committed_offsets(client: Client, name: str) -> dict[TopicPartition, Committed]:
    """Returns all committed offsets of a group, by partition. Raises Refused."""
    response = client.ask_coordinator(offsets_request([name], min_version=2), name)
    return offsets_in(response.groups[0] if response.groups else response, name)


def offsets_request(names: list[str], min_version: int) -> Any:
    """Returns the request for all committed offsets of groups; before version 8 of one group."""
    kind: Any = OffsetFetchRequest.OffsetFetchRequestGroup
    return OffsetFetchRequest(
        group_id=names[0],
        topics=None,
        groups=[kind(group_id=name, topics=None) for name in names],
        min_version=min_version,
        max_version=_LAST_WITH_NAMES,
    )


def offsets_in(found: Any, name: str) -> dict[TopicPartition, Committed]:
    """Returns the offsets of a group in the response to `offsets_request`. Raises Refused."""
    check(found.error_code, None, f"read offsets of group {name}", f"Describe on group {name}")
    offsets = {}
    for topic in found.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            check(part.error_code, None, f"read the offset of {tp}", f"Describe on topic {topic.name}")
            if part.committed_offset >= 0:
                epoch = part.committed_leader_epoch
                offsets[tp] = Committed(part.committed_offset, -1 if epoch is None else epoch, part.metadata or "")
    return dict(sorted(offsets.items()))


def commit_offsets(client: Client, name: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commits offsets for a group without members. Raises Refused: the first error."""
    kinds: Any = OffsetCommitRequest.OffsetCommitRequestTopic

    def item(tp: TopicPartition) -> Any:
        return kinds.OffsetCommitRequestPartition(
            partition_index=tp.partition, committed_offset=offsets[tp], committed_metadata=""
        )

    topics = topic_array(kinds, offsets, item)
    request = OffsetCommitRequest(
        group_id=name, generation_id_or_member_epoch=-1, member_id="", topics=topics, max_version=_LAST_WITH_NAMES
    )
    _check_partitions(client.ask_coordinator(request, name), f"set offsets of group {name}", name)


def delete_offsets(client: Client, name: str, partitions: Iterable[TopicPartition]) -> None:
    """Deletes committed offsets of a group. Raises Refused: the first error."""
    kinds: Any = OffsetDeleteRequest.OffsetDeleteRequestTopic
    topics = topic_array(kinds, partitions, lambda tp: kinds.OffsetDeleteRequestPartition(partition_index=tp.partition))
    response = client.ask_coordinator(OffsetDeleteRequest(group_id=name, topics=topics), name)
    check(
        response.error_code,
        _IN_USE.get(response.error_code),
        f"delete offsets of group {name}",
        f"Delete on group {name}",
    )
    _check_partitions(response, f"delete offsets of group {name}", name)


def _check_partitions(response: Any, action: str, group: str) -> None:
    for topic in response.topics:
        for part in topic.partitions:
            is_topic = part.error_code == 29  # TOPIC_AUTHORIZATION_FAILED
            right = f"Read on topic {topic.name}" if is_topic else f"Read on group {group}"
            check(
                part.error_code, _IN_USE.get(part.error_code), f"{action} at {topic.name}-{part.partition_index}", right
            )


def delete_group(client: Client, name: str) -> None:
    """Deletes a group without members. Raises Refused."""
    found = client.ask_coordinator(DeleteGroupsRequest(groups_names=[name]), name).results[0]
    check(found.error_code, _IN_USE.get(found.error_code), f"delete group {name}", f"Delete on group {name}")
