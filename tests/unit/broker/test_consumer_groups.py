"""broker/coordinators/consumer_groups.py: what no scenario can show."""

from __future__ import annotations

from typing import Any

from protocol.errors import ErrorCode
from protocol.messages.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from replication.image import ResourceType
from tests.support.group_world import LocalWorld, local_world

SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "offsets.topic.num.partitions": 1,
    "group.consumer.assignment.interval.ms": 0,
}


def world(**settings: int) -> LocalWorld:
    made = local_world({**SETTINGS, **{name.replace("_", "."): value for name, value in settings.items()}})
    made.create_topic("t", 4)
    return made


def beat(made: LocalWorld, member_id: str, epoch: int = 0, version: int = 1, **fields: Any) -> Any:
    """A heartbeat; the first one is a full one."""
    if epoch == 0:
        fields = {"rebalance_timeout_ms": 1_000, "subscribed_topic_names": ["t"], "topic_partitions": [], **fields}
    request = ConsumerGroupHeartbeatRequest(group_id="g", member_id=member_id, member_epoch=epoch, **fields)
    return made.ask(request, version)


def described(made: LocalWorld) -> Any:
    request = ConsumerGroupDescribeRequest(group_ids=["g"], include_authorized_operations=False)
    return made.ask(request, 1).groups[0]


def test_a_static_member_that_goes_for_a_while_owes_nothing() -> None:
    """rule 3: the time to give up partitions ends with the going; only its session can end it."""
    made = world()
    first = beat(made, "a", instance_id="i")
    beat(made, "b")
    beat(made, "a", first.member_epoch, instance_id="i")  # is told to give up, and has a second
    beat(made, "a", -2, instance_id="i")
    made.advance(5_000)
    assert {member.member_id for member in described(made).members} == {"a", "b"}
    made.advance(60_000)
    assert described(made).members == []


def test_in_version_0_the_coordinator_makes_the_member_id() -> None:
    """consumer_requests.py: and only when joining."""
    made = world()
    member_id = beat(made, "", version=0).member_id
    assert member_id
    assert beat(made, member_id, 2, version=0).error_code == 0
    assert beat(made, "", 2, version=0).error_code == ErrorCode.INVALID_REQUEST


def test_a_group_may_have_settings_of_its_own() -> None:
    """What is stored for the group counts, within the broker's limits."""
    made = world()
    settings = {"consumer.heartbeat.interval.ms": "7000", "consumer.session.timeout.ms": "1"}
    made.holder.image.configs = {(ResourceType.GROUP, "g"): settings}
    assert beat(made, "a").heartbeat_interval_ms == 7_000
    made.advance(44_000)  # not below the least session timeout, 45 s
    assert len(described(made).members) == 1
    made.advance(2_000)
    assert described(made).members == []


def test_assignments_keep_their_distance() -> None:
    """rule 1: who comes too soon after an assignment waits in the old epoch for the next."""
    made = world(group_consumer_assignment_interval_ms=1_000)
    assert beat(made, "a").member_epoch == 2
    second = beat(made, "b")
    assert (second.member_epoch, second.assignment.topic_partitions) == (2, [])
    assert described(made).group_state == "Assigning"
    made.advance(1_000)
    assert beat(made, "b", 2).member_epoch == 3


def test_a_heartbeat_that_the_log_refuses_changes_nothing() -> None:
    """runtime.py rule 3, and rule 4: topics are compared again later."""
    made = world()
    beat(made, "a")
    made.logs[0].refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    assert beat(made, "b").error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    made.create_topic("u", 1)
    made.logs[0].refusal = None
    assert [member.member_id for member in described(made).members] == ["a"]
    assert beat(made, "a", 2).error_code == 0


def test_a_group_without_group_version_refuses() -> None:
    """handlers/consumer_groups.py rule 1."""
    made = world()
    made.holder.image.features = {}
    assert beat(made, "a").error_code == ErrorCode.UNSUPPORTED_VERSION
    assert described(made).error_code == ErrorCode.UNSUPPORTED_VERSION
