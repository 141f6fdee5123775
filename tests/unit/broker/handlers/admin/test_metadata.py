"""Metadata responses: brokers and topics come from the metadata image."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.config.broker_config import BrokerConfig
from broker.handlers.admin.metadata import MAX_PARTITIONS_AT_ONCE, MetadataHandlers
from broker.peers.endpoints import AdvertisedEndpoints
from broker.security.authorizer import AllowAll
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages import stored_records
from protocol.messages.admin import CreatableTopicResult, CreateTopicsResponse
from protocol.messages.metadata import DescribeClusterRequest, MetadataRequest, MetadataRequestTopic, MetadataResponse
from replication.completion import Completion, completed
from replication.cooperative_tasks import STEPS_PER_SLICE, CallSoon, run_inline
from tests.support.replica_harness import SELF, ReplicaHarness


def handlers_of(harness: ReplicaHarness, soon: CallSoon = run_inline) -> MetadataHandlers:
    """The handlers of broker 1."""
    controller: Any = harness  # no topic is created
    return MetadataHandlers(
        controller,
        AdvertisedEndpoints(SELF, frozenset()),
        AllowAll(),
        BrokerConfig({"auto.create.topics.enable": "false", "max.request.partition.size.limit": "100"}),
        lambda _: None,
        soon,
    )


def routes_of(harness: ReplicaHarness, *topics: str) -> MetadataResponse:
    """Broker 1's responses."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic) for topic in topics])
    answer = handlers_of(harness).metadata(harness.context(ApiKey.METADATA, 12), request)
    assert isinstance(answer, MetadataResponse)
    return answer


def test_metadata_contains_brokers_topics_and_leaders(tmp_path: Path) -> None:
    harness = ReplicaHarness(tmp_path)
    harness.create("t", partitions=2, replicas=(1, 2, 3), leader=2)
    answer = routes_of(harness, "t")
    assert [(broker.node_id, broker.host, broker.port) for broker in answer.brokers] == [
        (1, "host1", 9001), (2, "host2", 9002), (3, "host3", 9003),
    ]  # fmt: skip
    assert [(p.leader_id, p.replica_nodes) for p in answer.topics[0].partitions] == [(2, [1, 2, 3])] * 2
    harness.change("t", 1, leader=3)
    harness.apply(stored_records.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=101, fenced=1))
    answer = routes_of(harness, "t")
    assert [broker.node_id for broker in answer.brokers] == [2, 3]
    assert [(p.leader_id, p.leader_epoch) for p in answer.topics[0].partitions] == [(2, 0), (3, 1)]


@pytest.mark.parametrize(("with_fenced", "listed"), [(False, [2, 3]), (True, [1, 2, 3])])
def test_a_fenced_broker_is_not_described_as_the_controller(
    tmp_path: Path, *, with_fenced: bool, listed: list[int]
) -> None:
    """Clients send the controller's requests to it; Apache Kafka names a broker that is not fenced."""
    harness = ReplicaHarness(tmp_path)
    harness.apply(stored_records.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=101, fenced=1))
    request = DescribeClusterRequest(include_fenced_brokers=with_fenced)
    answer: Any = handlers_of(harness).describe_cluster(harness.context(ApiKey.DESCRIBE_CLUSTER, 2), request)
    assert ([broker.broker_id for broker in answer.brokers], answer.controller_id) == (listed, 2)


def test_version_0_names_only_replicas_on_unfenced_brokers(tmp_path: Path) -> None:
    """Old clients cannot read a response whose partitions name brokers that it does not contain; as in Apache Kafka."""
    harness = ReplicaHarness(tmp_path)
    harness.create("t", replicas=(1, 2, 3), leader=2)
    harness.create("u", replicas=(2, 3), leader=2)
    harness.apply(stored_records.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=101, fenced=1))
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in ("t", "u")])
    described = {}
    for version in (0, 1):
        answer: Any = handlers_of(harness).metadata(harness.context(ApiKey.METADATA, version), request)
        described[version] = [
            (p.error_code, p.leader_id, p.replica_nodes, p.isr_nodes)
            for topic in answer.topics
            for p in topic.partitions
        ]
    assert described[0] == [(ErrorCode.REPLICA_NOT_AVAILABLE, 2, [2, 3], [2, 3]), (ErrorCode.NONE, 2, [2, 3], [2, 3])]
    assert described[1] == [(ErrorCode.NONE, 2, [1, 2, 3], [1, 2, 3]), (ErrorCode.NONE, 2, [2, 3], [2, 3])]


@pytest.mark.parametrize(
    ("given", "partitions", "replicas"),
    [
        ({}, -1, -1),
        ({"num.partitions": "5"}, 5, -1),
        ({"num.partitions": "1", "default.replication.factor": "2"}, 1, 2),
    ],
)
def test_auto_created_topics_have_the_given_settings_of_the_broker_else_those_of_the_controller(
    tmp_path: Path, given: dict[str, str], partitions: int, replicas: int
) -> None:
    (topic,) = topics_created_by(tmp_path, given, MetadataRequestTopic(name="new"))
    assert (topic.name, topic.num_partitions, topic.replication_factor) == ("new", partitions, replicas)


def test_a_request_by_topic_id_creates_no_topic(tmp_path: Path) -> None:
    """Its names do not count, as in Apache Kafka."""
    requested = [MetadataRequestTopic(name="new"), MetadataRequestTopic(topic_id=b"?" * 16, name="other")]
    assert topics_created_by(tmp_path, {}, *requested) == []


def test_a_topic_that_is_being_created_is_not_submitted_again(tmp_path: Path) -> None:
    """As in Apache Kafka: every producer of a new topic asks many times until it exists."""
    harness, created = ReplicaHarness(tmp_path), list[tuple[list[str], Completion[Any]]]()

    def submit(request: Any, *_: object) -> Completion[Any]:
        created.append(([topic.name for topic in request.topics], Completion()))
        return created[-1][1]

    controller: Any = SimpleNamespace(image=harness.image, submit=submit)
    addresses = AdvertisedEndpoints(SELF, frozenset())
    handlers = MetadataHandlers(controller, addresses, AllowAll(), BrokerConfig({}), lambda _: None, run_inline)

    def ask(*names: str) -> list[list[str]]:
        """The topics of each CreateTopics so far, after a Metadata request."""
        topics = [MetadataRequestTopic(name=name) for name in names]
        answer = handlers.metadata(harness.context(ApiKey.METADATA, 12), MetadataRequest(topics=topics))
        assert isinstance(answer, MetadataResponse)
        assert {topic.error_code for topic in answer.topics} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        return [submitted for submitted, _ in created]

    assert ask("a") == ask("a") == [["a"]]
    assert ask("a", "b") == [["a"], ["b"]]
    failed = CreatableTopicResult(name="a", error_code=ErrorCode.INVALID_REPLICATION_FACTOR, error_message="why")
    created[0][1].complete(CreateTopicsResponse(topics=[failed]))
    assert ask("a", "b") == [["a"], ["b"], ["a"]]


def test_why_a_topic_is_not_auto_created_is_logged_once_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A producer of such a topic asks ten times a second."""
    harness = ReplicaHarness(tmp_path)

    def submit(request: Any, *_: object) -> Completion[Any]:
        code = ErrorCode.INVALID_REPLICATION_FACTOR
        failed = [CreatableTopicResult(name=one.name, error_code=code, error_message="why") for one in request.topics]
        return completed(CreateTopicsResponse(topics=failed))

    controller: Any = SimpleNamespace(image=harness.image, submit=submit)
    addresses = AdvertisedEndpoints(SELF, frozenset())
    handlers = MetadataHandlers(controller, addresses, AllowAll(), BrokerConfig({}), lambda _: None, run_inline)
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in ("a", "b")])
    lines = [f"auto-creation of topic {name} failed: why" for name in ("a", "b")]
    for at_ms, times in ((0, 1), (100, 1), (59_999, 1), (60_000, 2)):
        handlers.metadata(harness.context(ApiKey.METADATA, 12)._replace(mono_ms=at_ms), request)
        assert caplog.messages == lines * times


def topics_created_by(path: Path, settings: dict[str, str], *requested: MetadataRequestTopic) -> list[Any]:
    """The topics of the CreateTopics that a Metadata request causes."""
    harness, created = ReplicaHarness(path), list[Any]()

    def submit(request: Any, *_: object) -> Completion[Any]:
        created.extend(request.topics)
        return Completion()

    controller: Any = SimpleNamespace(image=harness.image, submit=submit)
    config, addresses = BrokerConfig(settings), AdvertisedEndpoints(SELF, frozenset())
    handlers = MetadataHandlers(controller, addresses, AllowAll(), config, lambda _: None, run_inline)
    handlers.metadata(harness.context(ApiKey.METADATA, 12), MetadataRequest(topics=list(requested)))
    return created


class Turns:
    """A loop that the test drives."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()
        self.taken = 0

    def take_all(self) -> None:
        """Run until nothing is scheduled."""
        while self.waiting:
            self.taken += 1
            self.waiting.popleft()()


def test_a_large_metadata_response_is_created_in_slices(tmp_path: Path) -> None:
    harness, turns = ReplicaHarness(tmp_path), Turns()
    many = MAX_PARTITIONS_AT_ONCE + 1
    harness.create("t", partitions=many)
    harness.create("u", partitions=1)
    handlers = handlers_of(harness, turns.waiting.append)
    pending = handlers.metadata(harness.context(ApiKey.METADATA, 12), MetadataRequest(topics=None))
    assert isinstance(pending, Completion)
    harness.change("t", many - 1, leader=-1)
    turns.take_all()
    answer = pending.result()
    assert [(topic.name, len(topic.partitions)) for topic in answer.topics] == [("t", many), ("u", 1)]
    assert [p.partition_index for p in answer.topics[0].partitions] == list(range(many))
    assert {p.leader_id for p in answer.topics[0].partitions} == {SELF}
    assert turns.taken == (many + 1) // STEPS_PER_SLICE


def test_a_cancelled_metadata_response_stops_its_steps(tmp_path: Path) -> None:
    harness, turns = ReplicaHarness(tmp_path), Turns()
    harness.create("t", partitions=MAX_PARTITIONS_AT_ONCE + 1)
    handlers = handlers_of(harness, turns.waiting.append)
    pending = handlers.metadata(harness.context(ApiKey.METADATA, 12), MetadataRequest(topics=None))
    assert isinstance(pending, Completion)
    pending.cancel()
    turns.take_all()
    assert turns.taken == 1
