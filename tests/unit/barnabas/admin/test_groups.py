"""Descriptions of groups (barnabas/admin/groups.py)."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

from barnabas.admin.groups import classic_description
from barnabas.client.topic_partition import TopicPartition

_TOPIC = ConsumerProtocolAssignment.TopicPartition(topic="t", partitions=[1, 0])
ASSIGNMENT = ConsumerProtocolAssignment(assigned_partitions=[_TOPIC], user_data=None).encode(version=0)


def partitions(assignment: bytes) -> list[TopicPartition]:
    """The partitions of a member with this assignment."""
    member = SimpleNamespace(
        member_id="m", group_instance_id=None, client_id="c", client_host="h", member_assignment=assignment
    )
    group = SimpleNamespace(
        group_id="g", group_state="Stable", protocol_type="consumer", protocol_data="range", members=[member]
    )
    return classic_description(group, 1).members[0].assignment


def test_the_partitions_of_a_member_are_those_of_its_assignment() -> None:
    assert partitions(ASSIGNMENT) == [TopicPartition("t", 0), TopicPartition("t", 1)]


@pytest.mark.parametrize(
    "assignment",
    [b"\xff", b"\xff\xff\xff", b"\0\0\x7f\xff\xff\xff", b"\0\0\0\0\0\1\0\3\xff\xfe\xfd\0\0\0\0\0\0\0\0"],
    ids=["one byte", "no count", "many topics", "no UTF-8"],
)
def test_an_assignment_that_is_none_has_no_partitions(assignment: bytes) -> None:
    """Any client can write these bytes, and groups lag describes all groups."""
    assert partitions(assignment) == []


def test_no_change_of_an_assignment_is_an_error() -> None:
    rng = random.Random(1)
    for _ in range(2_000):
        changed = bytearray(ASSIGNMENT)
        changed[rng.randrange(len(changed))] = rng.randrange(256)
        partitions(bytes(changed[: rng.randrange(len(changed) + 1)]))
