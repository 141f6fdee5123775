"""Stored records that contradict themselves: the partition is not served, or the group is served without them."""

from __future__ import annotations

import pytest

from broker.coordinators.group_coordinator import OFFSETS_TOPIC
from broker.coordinators.runtime.stored_records import StoredRecord, encode_record
from protocol.batch_builder import BatchBuilder
from protocol.errors import ErrorCode
from protocol.messages.groups import JoinGroupResponse
from protocol.messages.stored_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    CurrentAssignmentTopicPartitions,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
)
from tests.support.group_harness import LocalGroupHarness
from tests.support.group_requests import fetch_request, join_request


def loaded(record: StoredRecord) -> LocalGroupHarness:
    """A broker that has loaded this record."""
    made = LocalGroupHarness(offsets_partitions=1)
    made.create_topic(OFFSETS_TOPIC, 1)
    builder = BatchBuilder()
    builder.append(1, *encode_record(record))
    made.logs[0].store(builder.build())
    made.restart()
    return made


def member(member_id: str, instance_id: str | None = None) -> MemberMetadata:
    return MemberMetadata(
        member_id=member_id,
        group_instance_id=instance_id,
        client_id="c",
        client_host="/h",
        rebalance_timeout=10_000,
        session_timeout=10_000,
        subscription=b"",
        assignment=b"",
    )


def group(leader: str | None, *members: MemberMetadata) -> StoredRecord:
    value = GroupMetadataValue(
        protocol_type="consumer", generation=1, protocol="range", leader=leader, members=list(members)
    )
    return StoredRecord(GroupMetadataKey(group="g"), value, 3)


def current_assignment(partitions: list[int], epochs: list[int]) -> StoredRecord:
    assigned = CurrentAssignmentTopicPartitions(topic_id=bytes(16), partitions=partitions, assignment_epochs=epochs)
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=1,
        previous_member_epoch=0,
        state=0,
        assigned_partitions=[assigned],
        partitions_pending_revocation=[],
    )
    return StoredRecord(ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="a"), value)


@pytest.mark.parametrize(
    "record",
    [
        group("a", member("a"), member("a")),
        group("a", member("a", "i"), member("b", "i")),
        current_assignment([0, 1], [1]),
        current_assignment([0], [1, 2]),
    ],
    ids=["a member twice", "an instance id twice", "a missing epoch", "an epoch too many"],
)
def test_a_partition_with_a_contradictory_record_is_not_served(record: StoredRecord) -> None:
    made = loaded(record)
    assert made.ask(fetch_request(), 8).groups[0].error_code == ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("leader", [None, "", "gone"])
def test_a_loaded_group_without_its_leader_elects_another_one(leader: str | None) -> None:
    made = loaded(group(leader, member("a"), member("b")))
    for name in ("a", "b"):
        made.send(name, join_request(member=name), 3)
    leaders = {answer.leader for answer in (made.take("a"), made.take("b")) if isinstance(answer, JoinGroupResponse)}
    assert leaders == {"a"}


@pytest.mark.parametrize("leader", [None, "", "gone"])
def test_a_loaded_empty_group_has_no_leader(leader: str | None) -> None:
    made = loaded(group(leader))
    joined = made.ask(join_request(), 3)
    assert joined.leader == joined.member_id
