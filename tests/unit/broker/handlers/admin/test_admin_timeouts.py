"""Timeouts of admin requests (broker/handlers/admin/topics.py and cluster_admin.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.handlers.admin.cluster_admin import ClusterHandlers
from broker.handlers.admin.topics import TopicHandlers
from broker.handlers.router import ConnectionInfo, Pending, RequestContext
from broker.security.authorizer import AllowAll
from protocol.errors import ErrorCode
from protocol.messages.admin import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    ElectedPartitions,
    ElectLeadersRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from replication.metadata.image import MetadataImage
from replication.timer_queue import TimerQueue

CONNECTION = ConnectionInfo(1, "PLAINTEXT", ("127.0.0.1", 9092), ("127.0.0.1", 40000), "User:ANONYMOUS")


class Stage:
    """A controller that keeps its replies."""

    def __init__(self) -> None:
        self.timers = TimerQueue()
        self.handlers = TopicHandlers(
            1, self, lambda: MetadataImage("c"), AllowAll(), deletion_enabled=True, timers=self.timers
        )
        self.cluster = ClusterHandlers(self, AllowAll(), self.timers)
        self.replies: list[Callable[[Any], None]] = []
        self.answers: list[Any] = []

    @property
    def image(self) -> MetadataImage:
        """Of the controller."""
        return MetadataImage("c")

    def submit(self, request: Any, *, wall_ms: int, reply: Callable[[Any], None]) -> None:
        """Of the controller."""
        self.replies.append(reply)

    def ask(self, request: Any, version: int = 6) -> Pending:
        """Handle a request."""
        context = RequestContext(request.API_KEY, version, 1, "c", CONNECTION, 500, 0)
        handle: Callable[[Any, Any], Any] = {
            CreateTopicsRequest: self.handlers.create_topics,
            DeleteTopicsRequest: self.handlers.delete_topics,
            CreatePartitionsRequest: self.handlers.create_partitions,
            ElectLeadersRequest: self.cluster.elect_leaders,
            AlterPartitionReassignmentsRequest: self.cluster.alter_reassignments,
        }[type(request)]
        pending = handle(context, request)
        assert isinstance(pending, Pending)
        pending.deliver_to(self.answers.append, lambda reason: None)
        return pending


def create(timeout_ms: int) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)], timeout_ms=timeout_ms
    )


@pytest.mark.parametrize(
    ("wish", "results"),
    [
        (create(1000), lambda answer: answer.topics),
        (
            DeleteTopicsRequest(topic_names=[], topics=[DeleteTopicState(name="t")], timeout_ms=1000),
            lambda answer: answer.responses,
        ),
        (
            CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="t", count=2)], timeout_ms=1000),
            lambda answer: answer.results,
        ),
    ],
)
def test_requests_time_out_after_the_clients_timeout(wish: Any, results: Callable[[Any], Any]) -> None:
    stage = Stage()
    stage.ask(wish)
    stage.timers.run_due(1499)
    assert stage.answers == []
    stage.timers.run_due(1500)
    ((answer,),) = (stage.answers,)
    ((result,),) = (results(answer),)
    assert (result.name, result.error_code, result.error_message) == (
        "t",
        ErrorCode.REQUEST_TIMED_OUT,
        "The request timed out.",
    )
    stage.replies[0](type(answer)(**{name: [] for name in ("topics", "responses", "results") if hasattr(answer, name)}))
    assert len(stage.answers) == 1


@pytest.mark.parametrize(
    ("wish", "results"),
    [
        (
            ElectLeadersRequest(topic_partitions=[ElectedPartitions(topic="t", partitions=[0])], timeout_ms=1000),
            lambda answer: answer.replica_election_results[0].partition_result,
        ),
        (
            AlterPartitionReassignmentsRequest(
                topics=[ReassignableTopic(name="t", partitions=[ReassignablePartition(partition_index=0)])],
                timeout_ms=1000,
            ),
            lambda answer: answer.responses[0].partitions,
        ),
    ],
)
def test_elections_and_reassignments_time_out(wish: Any, results: Callable[[Any], Any]) -> None:
    stage = Stage()
    stage.ask(wish)
    stage.timers.run_due(1500)
    (answer,) = stage.answers
    (result,) = results(answer)
    assert answer.error_code == result.error_code == ErrorCode.REQUEST_TIMED_OUT
    stage.replies[0](answer)
    assert len(stage.answers) == 1


def test_no_timer_outlives_its_request() -> None:
    stage = Stage()
    stage.ask(create(1000))
    stage.replies[0](CreateTopicsResponse(topics=[]))
    assert len(stage.timers) == 0
    stage.ask(create(1000)).cancel()
    stage.ask(create(0))
    assert len(stage.timers) == 0
    assert len(stage.answers) == 1


def test_elect_leaders_version_0_has_only_partition_errors() -> None:
    stage = Stage()
    requested = [ElectedPartitions(topic="t", partitions=[0])]
    stage.ask(ElectLeadersRequest(topic_partitions=requested, timeout_ms=1000), version=0)
    stage.timers.run_due(1500)
    (answer,) = stage.answers
    assert answer.error_code == ErrorCode.NONE
    assert answer.replica_election_results[0].partition_result[0].error_code == ErrorCode.REQUEST_TIMED_OUT
