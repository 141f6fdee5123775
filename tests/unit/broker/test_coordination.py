"""The group APIs at their edge: coordinators, rights, the forms of old versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.coordinators.groups import OFFSETS_TOPIC
from broker.coordinators.java import abs_hash
from broker.handlers.coordination import CoordinationHandlers
from broker.handlers.router import Pending, RequestContext
from broker.security.authorizer import Operation, Resource
from protocol.errors import ErrorCode
from protocol.messages.admin import CreatableTopic, CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    SyncGroupRequest,
)
from protocol.messages.metadata import FindCoordinatorRequest
from replication.image import PartitionState
from tests.support.group_world import NODE, LocalWorld
from tests.unit.broker.test_runtime import commit_request, join_request


class Deny:
    """Allows everything but what it is given."""

    def __init__(self, *denied: tuple[str, str, str]) -> None:
        self.denied = set(denied)

    def authorize(self, principal: str, operation: str, resource_type: str, resource_name: str) -> bool:
        return (operation, resource_type, resource_name) not in self.denied


def world() -> LocalWorld:
    made = LocalWorld()
    made.create_topic(OFFSETS_TOPIC, 5)
    made.create_topic("t", 1)
    made.create_topic("secret", 1)
    return made


# ---- FindCoordinator


@pytest.mark.parametrize("version", range(7))
def test_the_coordinator_is_the_leader_of_the_groups_partition(version: int) -> None:
    """One key until version 3, several since 4; an error message since 1."""
    made = world()
    request = FindCoordinatorRequest(coordinator_keys=["g", ""]) if version >= 4 else FindCoordinatorRequest(key="g")
    answer = made.ask(request, version)
    if version < 4:
        assert (answer.error_code, answer.node_id, answer.host, answer.port) == (0, NODE, "127.0.0.1", 9092)
        assert answer.error_message == ("NONE" if version else None)
    else:
        assert [(one.key, one.node_id, one.error_code) for one in answer.coordinators] == [
            ("g", NODE, 0),
            ("", NODE, 0),
        ]


def test_a_partition_without_a_leader_has_no_coordinator() -> None:
    """COORDINATOR_NOT_AVAILABLE, node -1: the client asks again."""
    made = world()
    index = abs_hash("g") % 5
    partitions = made.holder.image.topics_by_name[OFFSETS_TOPIC].partitions
    partitions[index] = PartitionState((NODE,), (NODE,), -1, 1, 1)
    (one,) = made.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4).coordinators
    assert (one.error_code, one.node_id, one.port) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, -1)


@pytest.mark.parametrize(("key_type", "error"), [(1, 15), (2, 42), (5, 42)])
def test_coordinators_of_other_kinds_are_not_here(key_type: int, error: int) -> None:
    """Transactions: not available; share groups and what nobody knows: INVALID_REQUEST, as from Kafka."""
    made = world()
    answer = made.ask(FindCoordinatorRequest(coordinator_keys=["g"], key_type=key_type), 6)
    assert answer.coordinators[0].error_code == error
    assert made.ask(FindCoordinatorRequest(key="g", key_type=key_type), 3).error_code == error


def asking(
    made: LocalWorld, create: Callable[[CreateTopicsRequest, int, Callable[[CreateTopicsResponse], None]], None]
) -> tuple[CoordinationHandlers, RequestContext]:
    old = made.handlers
    topic = CreatableTopic(name=OFFSETS_TOPIC, num_partitions=5, replication_factor=3)
    handlers = CoordinationHandlers(made.runtime, old._image, old._addresses, old._authorizer, create, topic)
    return handlers, RequestContext(10, 4, 1, "x", made.connection, 0, 0)


def test_the_first_question_makes_the_topic_and_waits_for_it() -> None:
    """coordination.py rule 3: several questions meanwhile make it once, and all are answered."""
    made = LocalWorld()
    replies: list[Callable[[CreateTopicsResponse], None]] = []
    asked: list[CreateTopicsRequest] = []

    def create(request: CreateTopicsRequest, _: int, reply: Callable[[CreateTopicsResponse], None]) -> None:
        asked.append(request)
        replies.append(reply)

    handlers, context = asking(made, create)
    first = handlers.find_coordinator(context, FindCoordinatorRequest(coordinator_keys=["a"]))
    second = handlers.find_coordinator(context, FindCoordinatorRequest(coordinator_keys=["b"]))
    assert len(asked) == 1
    assert asked[0].topics[0].replication_factor == 3
    made.create_topic(OFFSETS_TOPIC, 5)
    replies[0](
        CreateTopicsResponse(topics=[CreatableTopicResult(name=OFFSETS_TOPIC, error_code=0, error_message=None)])
    )
    for waiting in (first, second):
        assert isinstance(waiting, Pending)
        answers: list[Any] = []
        waiting.deliver_to(answers.append, lambda _: None)
        assert answers[0].coordinators[0].node_id == NODE


def test_a_topic_that_cannot_be_made_is_explained() -> None:
    """coordination.py rule 3: the controller's sentence reaches the client, and the next question tries again."""
    made = LocalWorld()
    sentence = "Unable to replicate the partition 3 time(s): only 1 broker(s) are registered."
    tries = []

    def create(_request: CreateTopicsRequest, _ms: int, reply: Callable[[CreateTopicsResponse], None]) -> None:
        tries.append(1)
        error = ErrorCode.INVALID_REPLICATION_FACTOR
        result = CreatableTopicResult(name=OFFSETS_TOPIC, error_code=error, error_message=sentence)
        reply(CreateTopicsResponse(topics=[result]))

    handlers, context = asking(made, create)
    for _ in range(2):
        answers: list[Any] = []
        pending = handlers.find_coordinator(context, FindCoordinatorRequest(coordinator_keys=["a"]))
        assert isinstance(pending, Pending)
        pending.deliver_to(answers.append, lambda _: None)
        (one,) = answers[0].coordinators
        assert one.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert sentence in one.error_message
    assert len(tries) == 2


# ---- rights


def test_a_group_that_may_not_be_read_answers_nothing() -> None:
    """coordination.py rule 1: GROUP_AUTHORIZATION_FAILED wherever there is room for it."""
    made = world()
    made.ask(commit_request(1), 8)
    made.authorize_by(
        Deny(
            *((operation, Resource.GROUP, "g") for operation in (Operation.READ, Operation.DESCRIBE, Operation.DELETE))
        )
    )
    denied = ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert made.ask(join_request(), 5).error_code == denied
    sync = SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=[])
    assert made.ask(sync, 3).error_code == denied
    assert made.ask(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4).error_code == denied
    leave = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id="m")])
    assert made.ask(leave, 4).error_code == denied
    assert made.ask(commit_request(1), 8).topics[0].partitions[0].error_code == denied
    fetch = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
    assert made.ask(fetch, 8).groups[0].error_code == denied
    old = OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])])
    assert made.ask(old, 1).topics[0].partitions[0].error_code == denied
    assert made.ask(old, 2).error_code == denied
    assert made.ask(DescribeGroupsRequest(groups=["g"]), 5).groups[0].error_code == denied
    assert made.ask(DeleteGroupsRequest(groups_names=["g", "other"]), 2).results[-1].error_code == denied
    assert made.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4).coordinators[0].error_code == denied


def test_groups_are_listed_by_right() -> None:
    """Who may describe the cluster sees all groups, others those that they may describe."""
    made = world()
    made.ask(commit_request(1), 8)
    made.ask(commit_request(1, group="hidden"), 8)
    hidden = (Operation.DESCRIBE, Resource.GROUP, "hidden")
    made.authorize_by(Deny(hidden))
    assert len(made.ask(ListGroupsRequest(), 5).groups) == 2
    made.authorize_by(Deny(hidden, (Operation.DESCRIBE, Resource.CLUSTER, "kafka-cluster")))
    assert [group.group_id for group in made.ask(ListGroupsRequest(), 5).groups] == ["g"]


def test_topics_that_may_not_be_read_are_left_out_of_commits_and_fetches() -> None:
    """coordination.py rule 1: TOPIC_AUTHORIZATION_FAILED when named, silence when all are asked for."""
    made = world()
    request = commit_request(1)
    secret = commit_request(2).topics[0]
    secret.name = "secret"
    request.topics.append(secret)
    made.ask(request, 8)
    made.authorize_by(Deny((Operation.READ, Resource.TOPIC, "secret"), (Operation.DESCRIBE, Resource.TOPIC, "secret")))
    answer = made.ask(request, 8)
    errors = {topic.name: topic.partitions[0].error_code for topic in answer.topics}
    assert errors == {"t": 0, "secret": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    everything = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
    assert [topic.name for topic in made.ask(everything, 8).groups[0].topics] == ["t"]
    named = OffsetFetchRequest(
        group_id="g",
        topics=[OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in ("secret", "t")],
    )
    found = {topic.name: topic.partitions[0] for topic in made.ask(named, 5).topics}
    assert found["t"].committed_offset == 1
    assert (found["secret"].committed_offset, found["secret"].error_code) == (-1, 29)
