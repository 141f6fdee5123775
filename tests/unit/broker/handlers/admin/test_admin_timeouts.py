"""Guards rule 2 of broker/handlers/admin/topics.py and cluster.py: changes are not waited for longer than the client says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.handlers.admin.cluster_admin import ClusterHandlers
from broker.handlers.admin.topics import AdminHandlers
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
from replication.timer_queue import Deadlines

CONNECTION = ConnectionInfo(1, "PLAINTEXT", ("127.0.0.1", 9092), ("127.0.0.1", 40000), "User:ANONYMOUS")


class Stage:
    """A controller that keeps its replies to itself."""

    def __init__(self) -> None:
        self.deadlines = Deadlines()
        self.handlers = AdminHandlers(
            1, self, lambda: MetadataImage("c"), AllowAll(), deletion_enabled=True, deadlines=self.deadlines
        )
        self.cluster = ClusterHandlers(self, AllowAll(), self.deadlines)
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
        """Have it handled in the middle of the first second."""
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
def test_who_has_waited_long_enough_is_told_so(wish: Any, results: Callable[[Any], Any]) -> None:
    """Whatever becomes of it later."""
    stage = Stage()
    stage.ask(wish)
    stage.deadlines.run_due(1499)
    assert stage.answers == []
    stage.deadlines.run_due(1500)
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
def test_elections_and_reassignments_are_not_waited_for_longer_either(wish: Any, results: Callable[[Any], Any]) -> None:
    """As where no controller is active."""
    stage = Stage()
    stage.ask(wish)
    stage.deadlines.run_due(1500)
    (answer,) = stage.answers
    (result,) = results(answer)
    assert answer.error_code == result.error_code == ErrorCode.REQUEST_TIMED_OUT
    stage.replies[0](answer)
    assert len(stage.answers) == 1


def test_no_deadline_outlives_its_request() -> None:
    """Neither an answered one, nor one whose client has gone; without a time-out there is none."""
    stage = Stage()
    stage.ask(create(1000))
    stage.replies[0](CreateTopicsResponse(topics=[]))
    assert len(stage.deadlines) == 0
    stage.ask(create(1000)).cancel()
    stage.ask(create(0))
    assert len(stage.deadlines) == 0
    assert len(stage.answers) == 1


def test_the_first_version_of_an_election_has_errors_of_partitions_only() -> None:
    """Its answer could not be encoded else."""
    stage = Stage()
    asked = [ElectedPartitions(topic="t", partitions=[0])]
    stage.ask(ElectLeadersRequest(topic_partitions=asked, timeout_ms=1000), version=0)
    stage.deadlines.run_due(1500)
    (answer,) = stage.answers
    assert answer.error_code == ErrorCode.NONE
    assert answer.replica_election_results[0].partition_result[0].error_code == ErrorCode.REQUEST_TIMED_OUT
