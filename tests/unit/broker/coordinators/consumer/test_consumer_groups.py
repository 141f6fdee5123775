"""The consumer group protocol: cases that scenarios cannot show."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.batch_builder import BatchBuilder
from protocol.errors import ErrorCode
from protocol.messages.consumer_groups import ConsumerGroupDescribeRequest
from protocol.messages.groups import JoinGroupRequest
from replication.metadata.image import ResourceType
from tests.support.group_harness import LocalGroupHarness, local_world
from tests.support.group_requests import (
    commit_request,
    consumer_heartbeat,
    heartbeat_request,
    join_request,
    subscription,
)

SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "offsets.topic.num.partitions": 1,
    "group.consumer.assignment.interval.ms": 0,
}


def harness(**settings: int) -> LocalGroupHarness:
    made = local_world({**SETTINGS, **{name.replace("_", "."): value for name, value in settings.items()}})
    made.create_topic("t", 4)
    return made


@pytest.fixture
def made() -> LocalGroupHarness:
    return harness()


def beat(made: LocalGroupHarness, member_id: str, epoch: int = 0, version: int = 1, **fields: Any) -> Any:
    """A heartbeat; the first one is a full one."""
    if epoch == 0:
        fields = {"rebalance_timeout_ms": 1_000, "subscribed_topic_names": ["t"], "owned": {}, **fields}
    return made.ask(consumer_heartbeat(member_id, epoch, **fields), version)


def described(made: LocalGroupHarness) -> Any:
    request = ConsumerGroupDescribeRequest(group_ids=["g"], include_authorized_operations=False)
    return made.ask(request, 1).groups[0]


def test_a_temporary_leave_cancels_the_revocation_timeout(made: LocalGroupHarness) -> None:
    first = beat(made, "a", instance_id="i")
    beat(made, "b")
    beat(made, "a", first.member_epoch, instance_id="i")  # must revoke partitions within a second
    beat(made, "a", -2, instance_id="i")
    made.advance(5_000)
    assert {member.member_id for member in described(made).members} == {"a", "b"}
    made.advance(60_000)
    assert described(made).members == []


def test_a_member_that_rejoins_with_another_instance_id_gives_up_the_first(made: LocalGroupHarness) -> None:
    for instance_id in ("i", "j"):
        joined = beat(made, "a", instance_id=instance_id)
    assert beat(made, "b", instance_id="j").error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    beat(made, "a", -1, instance_id="j")
    assert beat(made, "a", joined.member_epoch, instance_id="i").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert beat(made, "b", instance_id="i").error_code == ErrorCode.NONE


def test_in_version_0_the_coordinator_generates_the_member_id(made: LocalGroupHarness) -> None:
    member_id = beat(made, "", version=0).member_id
    assert member_id
    assert beat(made, member_id, 2, version=0).error_code == 0
    assert beat(made, "", 2, version=0).error_code == ErrorCode.INVALID_REQUEST


def test_group_configs_override_the_brokers(made: LocalGroupHarness) -> None:
    settings = {"consumer.heartbeat.interval.ms": "7000", "consumer.session.timeout.ms": "1"}
    made.holder.image.configs = {(ResourceType.GROUP, "g"): settings}
    assert beat(made, "a").heartbeat_interval_ms == 7_000
    made.advance(44_000)  # not below the least session timeout, 45 s
    assert len(described(made).members) == 1
    made.advance(2_000)
    assert described(made).members == []


def test_the_assignment_interval_is_respected() -> None:
    made = harness(group_consumer_assignment_interval_ms=1_000)
    assert beat(made, "a").member_epoch == 2
    second = beat(made, "b")
    assert (second.member_epoch, second.assignment.topic_partitions) == (2, [])
    assert described(made).group_state == "Assigning"
    made.advance(1_000)
    assert beat(made, "b", 2).member_epoch == 3


def test_a_first_member_without_topics_does_not_start_the_assignment_interval() -> None:
    """The expression is resolved after the first heartbeat; the second member need not wait for its next one."""
    made = harness(group_consumer_assignment_interval_ms=1_000)
    beat(made, "a", subscribed_topic_names=None, subscribed_topic_regex="t")
    joined = beat(made, "b", subscribed_topic_names=None, subscribed_topic_regex="t")
    assert [len(topic.partitions) for topic in joined.assignment.topic_partitions] == [2]


def test_config_changes_apply_to_the_next_heartbeat() -> None:
    made = harness(group_consumer_assignment_interval_ms=1_000)
    beat(made, "a")
    made.group_config_manager.broker = made.settings.consumer._replace(assignment_interval_ms=0)
    assert beat(made, "b").member_epoch == 3
    made.holder.image.configs = {(ResourceType.GROUP, "g"): {"consumer.assignment.interval.ms": "1000"}}
    assert beat(made, "c").member_epoch == 3


def test_a_regular_expression_is_resolved_again_if_its_records_failed(made: LocalGroupHarness) -> None:
    regex: dict[str, Any] = {"subscribed_topic_names": None, "subscribed_topic_regex": "t.*"}
    beat(made, "a", **regex)
    epoch = beat(made, "a", 0, **regex).member_epoch
    made.create_topic("t2", 1)
    made.advance(10_001)
    made.logs[0].refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    assert beat(made, "a", epoch).error_code == 0  # the expression is resolved after it
    made.logs[0].refusal = None
    beat(made, "a", epoch)
    assigned = beat(made, "a", epoch).assignment.topic_partitions
    assert {one.topic_id for one in assigned} == {made.topic_id("t"), made.topic_id("t2")}


def test_a_heartbeat_with_a_failed_append_changes_nothing(made: LocalGroupHarness) -> None:
    beat(made, "a")
    made.logs[0].refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    assert beat(made, "b").error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    made.create_topic("u", 1)
    made.logs[0].refusal = None
    assert [member.member_id for member in described(made).members] == ["a"]
    assert beat(made, "a", 2).error_code == 0


def test_without_group_version_the_protocol_is_unsupported(made: LocalGroupHarness) -> None:
    made.holder.image.features = {}
    assert beat(made, "a").error_code == ErrorCode.UNSUPPORTED_VERSION
    assert described(made).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_a_failed_upgrade_or_downgrade_changes_nothing(made: LocalGroupHarness) -> None:
    first = join(made, "")
    made.logs[0].refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    assert beat(made, "b").error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    made.logs[0].refusal = None
    assert join(made, first.member_id).generation_id == 1
    assert beat(made, "b").member_epoch == 2
    assert join(made, first.member_id).generation_id == 2
    made.logs[0].refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    assert beat(made, "b", -1).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    made.logs[0].refusal = None
    assert {member.member_id for member in described(made).members} == {"b", first.member_id}
    assert beat(made, "b", 2).error_code == 0
    assert beat(made, "b", -1).error_code == 0
    assert described(made).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert join(made, first.member_id).generation_id == 3


def test_a_mixed_group_is_loaded_with_its_classic_members(made: LocalGroupHarness) -> None:
    first = join(made, "")
    beat(made, "b")
    again = join(made, first.member_id)
    made.restart()
    assert heartbeat(made, first.member_id, again.generation_id) == 0
    assert beat(made, "b", again.generation_id).error_code == 0
    beat(made, "b", -1)
    made.restart()
    assert heartbeat(made, first.member_id, again.generation_id) == 0


def test_a_group_without_a_generation_is_upgraded() -> None:
    made = harness(group_initial_rebalance_delay_ms=3_000)
    made.send("old", joining(""), 3)
    assert beat(made, "b").error_code == 0
    response: Any = made.take("old")
    assert response.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert join(made, response.member_id).generation_id == beat(made, "b", 1).member_epoch


def test_an_upgrade_cancels_sync_timeouts_of_an_earlier_consumer_group(made: LocalGroupHarness) -> None:
    first = join(made, "").member_id
    beat(made, "b")
    join(made, first)  # has 10 s to sync, and then need not
    beat(made, "b", -1)
    made.advance(5_000)
    generation = join(made, first).generation_id
    assert beat(made, "b").error_code == 0
    made.advance(6_000)
    assert heartbeat(made, first, generation) == ErrorCode.REBALANCE_IN_PROGRESS


def joining(member_id: str) -> JoinGroupRequest:
    return join_request(member=member_id, protocols=[("range", subscription(0, "t"))])


def join(made: LocalGroupHarness, member_id: str) -> Any:
    """A JoinGroup of a classic consumer, before version 4."""
    return made.ask(joining(member_id), 3, "old")


def heartbeat(made: LocalGroupHarness, member_id: str, generation: int) -> int:
    return int(made.ask(heartbeat_request(member_id, generation), 3, "old").error_code)


@pytest.mark.parametrize("record_type", [11, 17], ids=["share", "streams"])
def test_a_group_of_another_type_does_not_become_a_consumer_group(
    made: LocalGroupHarness, record_type: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Apache Kafka, to which the directory may return, would not load the partition."""
    builder = BatchBuilder()
    key = record_type.to_bytes(2, "big") + b"\0\1g"
    builder.append(1, key, b"\0\0" + bytes(16))
    made.logs[0].store(builder.build())
    made.restart()
    refused = beat(made, "a")
    assert (refused.error_code, refused.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Group g is not a consumer group.",
    )
    made.ask(commit_request(1), 8)
    assert beat(made, "a").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "unknown type" not in caplog.text
    builder = BatchBuilder()
    builder.append(1, key, None)
    made.logs[0].store(builder.build())
    made.restart()
    assert beat(made, "a").error_code == ErrorCode.NONE
