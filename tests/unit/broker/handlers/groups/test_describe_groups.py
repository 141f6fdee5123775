"""DescribeGroups and ListGroups, and the commits that they wait for."""

from __future__ import annotations

from typing import Any

from protocol.errors import ErrorCode
from protocol.messages.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from protocol.messages.groups import DescribeGroupsRequest, ListGroupsRequest
from protocol.schema import Message
from tests.unit.broker.coordinators.runtime.test_coordinator_runtime import harness


def test_group_descriptions_wait_for_their_commits() -> None:
    made = harness()
    made.logs[0].is_holding = True
    made.send("a", _consumer_joining("new"), 1)
    questions: list[tuple[Message, int]] = [
        (ListGroupsRequest(), 5),
        (DescribeGroupsRequest(groups=["new"]), 5),
        (ConsumerGroupDescribeRequest(group_ids=["new"], include_authorized_operations=False), 1),
    ]
    for actor, (question, version) in zip("bcd", questions, strict=True):
        made.send(actor, question, version)
        assert made.take(actor) is None
    made.logs[0].release()
    listed, _, described = (made.take(actor) for actor in "bcd")
    assert [group.group_id for group in listed.groups] == ["new"]  # type: ignore[union-attr]
    assert len(described.groups[0].members) == 1  # type: ignore[union-attr]

    made.send("a", _consumer_joining("lost"), 1)
    for actor, (question, version) in zip("bcd", questions, strict=True):
        made.send(actor, question, version)
    made.logs[0].release(ErrorCode.NOT_ENOUGH_REPLICAS)
    answers: list[Any] = [made.take(actor) for actor in "bcd"]
    unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert [answers[0].error_code, *(one.groups[0].error_code for one in answers[1:])] == [unavailable] * 3
    assert not answers[2].groups[0].members


def _consumer_joining(group_id: str) -> ConsumerGroupHeartbeatRequest:
    request = ConsumerGroupHeartbeatRequest(group_id=group_id, member_id="m", member_epoch=0)
    request.rebalance_timeout_ms, request.subscribed_topic_names, request.topic_partitions = 60_000, ["t"], []
    return request
