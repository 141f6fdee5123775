"""Timeouts of admin requests (broker/handlers/admin/topics.py and cluster_admin.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.config.broker_config import BrokerConfig
from broker.handlers.admin.cluster_admin import ClusterHandlers
from broker.handlers.admin.topics import TopicHandlers
from broker.handlers.router import RequestContext
from broker.network.exchange import ConnectionInfo
from broker.security.authorizer import AllowAll
from protocol.errors import ErrorCode
from protocol.messages import admin, cluster
from protocol.schema import Message
from replication.completion import Completion
from replication.metadata.image import MetadataImage
from replication.timer_queue import TimerQueue
from tests.support.messages import message

CONNECTION = ConnectionInfo(1, "PLAINTEXT", ("127.0.0.1", 9092), ("127.0.0.1", 40000), "User:ANONYMOUS")
TIMED_OUT = ErrorCode.REQUEST_TIMED_OUT
ELECTION = [{"topic": "t", "partitions": [0]}]


class Stage:
    """A controller that keeps its replies."""

    def __init__(self) -> None:
        self.timers = TimerQueue()
        self.image = MetadataImage("c")
        topics = TopicHandlers(self, AllowAll(), self.timers, BrokerConfig({}), None)
        routes = (*topics.routes(), *ClusterHandlers(self, AllowAll(), self.timers).routes())
        self.handlers = {route.api_key: route.handler for route in routes}
        self.replies: list[Completion[Any]] = []
        self.answers: list[Any] = []

    def submit(self, request: Any, _client: object = None) -> Completion[Any]:
        """Of the controller."""
        self.replies.append(Completion())
        return self.replies[-1]

    def ask(self, cls: type[Message], version: int = 6, **fields: Any) -> Completion[Any]:
        """Handle a request."""
        context = RequestContext(cls.API_KEY, version, 1, "c", CONNECTION, 500, 0)
        pending = self.handlers[cls.API_KEY](context, message(cls, **fields))
        assert isinstance(pending, Completion)
        pending.then(lambda late: self.answers.append(late.result()))
        return pending

    def create(self, timeout_ms: int) -> Completion[Any]:
        """Create a topic."""
        topic = {"name": "t", "num_partitions": 1, "replication_factor": 1}
        return self.ask(admin.CreateTopicsRequest, topics=[topic], timeout_ms=timeout_ms)


@pytest.mark.parametrize(
    ("cls", "fields", "results", "code"),
    [
        (admin.CreateTopicsRequest, {"topics": [{"name": "t", "num_partitions": 1, "replication_factor": 1}]},
         lambda answer: answer.topics, None),
        (admin.DeleteTopicsRequest, {"topic_names": [], "topics": [{"name": "t"}]},
         lambda answer: answer.responses, None),
        (admin.CreatePartitionsRequest, {"topics": [{"name": "t", "count": 2}]}, lambda answer: answer.results, None),
        (cluster.ElectLeadersRequest, {"topic_partitions": ELECTION},
         lambda answer: answer.replica_election_results[0].partition_result, TIMED_OUT),
        (cluster.AlterPartitionReassignmentsRequest,
         {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "replicas": None}]}]},
         lambda answer: answer.responses[0].partitions, TIMED_OUT),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)  # fmt: skip
def test_requests_time_out_after_the_clients_timeout(
    cls: type[Message], fields: dict[str, Any], results: Callable[[Any], Any], code: ErrorCode | None
) -> None:
    """Elections and reassignments also have an error of the whole request."""
    stage = Stage()
    stage.ask(cls, **fields, timeout_ms=1000)
    stage.timers.run_due(1499)
    assert stage.answers == []
    stage.timers.run_due(1500)
    (answer,) = stage.answers
    (result,) = results(answer)
    assert (result.error_code, result.error_message) == (TIMED_OUT, "The request timed out.")
    assert getattr(result, "name", "t") == "t"
    assert getattr(answer, "error_code", None) == code
    stage.replies[0].complete(answer)
    assert len(stage.answers) == 1


def test_no_timer_outlives_its_request() -> None:
    stage = Stage()
    stage.create(1000)
    stage.replies[0].complete(admin.CreateTopicsResponse(topics=[]))
    assert len(stage.timers) == 0
    stage.create(1000).cancel()
    stage.create(0)
    assert len(stage.timers) == 0
    assert len(stage.answers) == 1


def test_elect_leaders_version_0_has_only_partition_errors() -> None:
    stage = Stage()
    stage.ask(cluster.ElectLeadersRequest, 0, topic_partitions=ELECTION, timeout_ms=1000)
    stage.timers.run_due(1500)
    (answer,) = stage.answers
    assert answer.error_code == ErrorCode.NONE
    assert answer.replica_election_results[0].partition_result[0].error_code == TIMED_OUT
