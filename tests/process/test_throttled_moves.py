"""A replica that moves under a throttle (KIP-73) keeps to the rate, on the leader's and on the follower's side."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.embedded import Broker
from protocol.messages.admin import (
    CreateTopicsRequest,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
)
from protocol.messages.cluster import AlterPartitionReassignmentsRequest, ListPartitionReassignmentsRequest
from tests.support.admin_cases import topic as topic_of
from tests.support.batches import batch
from tests.support.cluster import Cluster
from tests.support.config_cases import BROKER, DELETE_SETTING, SET, TOPIC, resource
from tests.support.loading import load
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.waiting import until

pytestmark = pytest.mark.long

MIB = 1 << 20
DATA = 6 * MIB
RATE = MIB // 2
ONE_FETCH = 2 * MIB
"""More than one answer brings of a partition (replica.fetch.max.bytes), which may go beyond the rate."""
SEEN = 3 * MIB
FROM, TO = 1, 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as made:
        yield made


@pytest.fixture
def client(cluster: Cluster) -> Iterator[RawClient]:
    """A client of the broker that the replica leaves."""
    with RawClient(cluster.nodes[FROM].bootstrap) as made:
        yield made


def fill(client: RawClient, topic: str) -> None:
    """A topic with data on one broker."""
    wanted = topic_of(topic, -1, -1, assignments=[(0, [FROM])])
    made = client.ask(CreateTopicsRequest(topics=[wanted], timeout_ms=30_000), 7)
    assert [one.error_code for one in made.topics] == [0]
    value, now_ms = random.Random(1).randbytes(64 * 1024), time.time_ns() // 1_000_000
    load(client, topic, [bytes(batch(now_ms, 1, value=value))] * (DATA // len(value)))


def reassignments() -> ListPartitionReassignmentsRequest:
    return ListPartitionReassignmentsRequest(timeout_ms=30_000, topics=None)


def move(client: RawClient, topic: str) -> None:
    """Reassigns it to another broker."""
    wanted = {"name": topic, "partitions": [{"partition_index": 0, "replicas": [TO]}]}
    answer = client.ask(message(AlterPartitionReassignmentsRequest, timeout_ms=30_000, topics=[wanted]), 0)
    assert [one.error_code for one in answer.responses[0].partitions] == [0]


def throttle(node: Broker, topic: str, side: str, rate: int | None) -> None:
    """Throttles all replicas of a topic on one side of a broker; None: no throttle."""
    how, text = (DELETE_SETTING, None) if rate is None else (SET, str(rate))
    resources = [
        resource(TOPIC, topic, (f"{side}.replication.throttled.replicas", how, text and "*")),
        resource(BROKER, str(node.settings["node.id"]), (f"{side}.replication.throttled.rate", how, text)),
    ]
    with RawClient(node.bootstrap) as client:
        answer = client.ask(IncrementalAlterConfigsRequest(resources=resources, validate_only=False), 1)
    assert [one.error_code for one in answer.responses] == [0, 0]


def rate_at(node: Broker, side: str) -> str | None:
    """The rate that a broker applies."""
    with RawClient(node.bootstrap) as client:
        number, name = node.settings["node.id"], f"{side}.replication.throttled.rate"
        requested = DescribeConfigsResource(resource_type=BROKER, resource_name=str(number), configuration_keys=[name])
        (answer,) = client.ask(DescribeConfigsRequest(resources=[requested]), 4).results
    return answer.configs[0].value if answer.configs else None


@pytest.mark.parametrize(("side", "broker"), [("leader", FROM), ("follower", TO)])
def test_a_move_keeps_to_its_rate_until_the_throttle_is_removed(
    cluster: Cluster, client: RawClient, side: str, broker: int
) -> None:
    topic = f"held-by-the-{side}"
    fill(client, topic)
    log = Path(cluster.nodes[TO].data_dir, f"{topic}-0", f"{0:020}.log")
    throttle(cluster.nodes[broker], topic, side, RATE)
    until(lambda: rate_at(cluster.nodes[broker], side) == str(RATE), "the broker knows of it")
    begun = time.monotonic()
    move(client, topic)

    def moved() -> int:
        size = log.stat().st_size if log.exists() else 0
        allowed = RATE * (time.monotonic() - begun) + ONE_FETCH
        assert size <= allowed, f"{size} bytes after {time.monotonic() - begun:.2f} s"
        return size

    until(lambda: moved() >= SEEN, "half of it has come")
    assert client.ask(reassignments(), 0).topics != []
    throttle(cluster.nodes[broker], topic, side, None)
    until(lambda: client.ask(reassignments(), 0).topics == [], "it is moved")
    assert log.stat().st_size >= DATA
