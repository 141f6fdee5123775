"""A replica that moves under a throttle (KIP-73) keeps to the rate, on the leader's and on the follower's side."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from barnabas.embedded import Broker
from protocol.messages.cluster import AlterPartitionReassignmentsRequest, ListPartitionReassignmentsRequest
from protocol.messages.logs import DescribeLogDirsRequest
from tests.conformance.brokers import alter_configs, describe_configs
from tests.support.batches import batch
from tests.support.cluster import Cluster
from tests.support.config_cases import BROKER, DELETE_SETTING, SET, TOPIC
from tests.support.follower import Client
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
def client(cluster: Cluster) -> Iterator[Client]:
    """A client of the broker that the replica leaves."""
    made = Client(cluster.nodes[FROM].bootstrap)
    yield made
    made.raw.close()


def fill(client: Client, topic: str) -> None:
    """A topic with data on one broker."""
    client.create(topic, [FROM])
    value, now_ms = random.Random(1).randbytes(64 * 1024), time.time_ns() // 1_000_000
    load(client.raw, topic, [bytes(batch(now_ms, 1, value=value))] * (DATA // len(value)))


def reassignments() -> ListPartitionReassignmentsRequest:
    return ListPartitionReassignmentsRequest(timeout_ms=30_000, topics=None)


def move(client: Client, topic: str) -> None:
    """Reassigns it to another broker."""
    wanted = {"name": topic, "partitions": [{"partition_index": 0, "replicas": [TO]}]}
    answer = client.raw.ask(message(AlterPartitionReassignmentsRequest, timeout_ms=30_000, topics=[wanted]), 0)
    assert [one.error_code for one in answer.responses[0].partitions] == [0]


def throttle(node: Broker, topic: str, side: str, rate: int | None) -> None:
    """Throttles all replicas of a topic on one side of a broker; None: no throttle."""
    how, text = (DELETE_SETTING, None) if rate is None else (SET, str(rate))
    with RawClient(node.bootstrap) as client:
        alter_configs(client, TOPIC, topic, (f"{side}.replication.throttled.replicas", how, text and "*"))
        number = str(node.settings["node.id"])
        alter_configs(client, BROKER, number, (f"{side}.replication.throttled.rate", how, text))


def held_bytes(node: Broker, topic: str) -> int:
    """The size of a replica, in bytes; 0 if the broker has none."""
    requested = message(DescribeLogDirsRequest, topics=[{"topic": topic, "partitions": [0]}])
    with RawClient(node.bootstrap) as client:
        results = client.ask(requested, 5).results
    return sum(one.partition_size for result in results for held in result.topics for one in held.partitions)


def rate_at(node: Broker, side: str) -> str | None:
    """The rate that a broker applies."""
    with RawClient(node.bootstrap) as client:
        name = f"{side}.replication.throttled.rate"
        configs = describe_configs(client, BROKER, str(node.settings["node.id"]), [name]).configs
    return configs[0].value if configs else None


@pytest.mark.parametrize(("side", "broker"), [("leader", FROM), ("follower", TO)])
def test_a_move_keeps_to_its_rate_until_the_throttle_is_removed(
    cluster: Cluster, client: Client, side: str, broker: int
) -> None:
    topic = f"held-by-the-{side}"
    fill(client, topic)
    throttle(cluster.nodes[broker], topic, side, RATE)
    until(lambda: rate_at(cluster.nodes[broker], side) == str(RATE), "the broker knows of it")
    begun = time.monotonic()
    move(client, topic)

    def moved() -> int:
        size = held_bytes(cluster.nodes[TO], topic)
        allowed = RATE * (time.monotonic() - begun) + ONE_FETCH
        assert size <= allowed, f"{size} bytes after {time.monotonic() - begun:.2f} s"
        return size

    until(lambda: moved() >= SEEN, "half of it has come")
    assert client.raw.ask(reassignments(), 0).topics != []
    throttle(cluster.nodes[broker], topic, side, None)
    until(lambda: client.raw.ask(reassignments(), 0).topics == [], "it is moved")
    assert held_bytes(cluster.nodes[TO], topic) >= DATA
