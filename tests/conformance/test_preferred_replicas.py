"""KIP-392 on the wire: to whom a leader sends a consumer that tells its rack; the same against Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from protocol.errors import ErrorCode
from protocol.messages.produce_fetch import FetchPartition, FetchRequest, FetchTopic
from tests.support.follower_harness import BOTH, Cluster, World, beginning, running

NOBODY = -1
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
_VERSION = 12


class Told(NamedTuple):
    """What a consumer is told of a partition."""

    code: int
    preferred: int
    high_watermark: int
    has_records: bool


@pytest.fixture(scope="module", params=BOTH)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Broker 1, of the rack `here`."""
    settings = {"replica_selector_class": SELECTOR, "broker_rack": "here", "replica_lag_time_max_ms": 5000}
    with running(request.param, **settings) as made:
        yield made


@pytest.fixture
def world(cluster: Cluster) -> Iterator[World]:
    """A follower in the rack `there`."""
    with beginning(cluster) as made:
        yield made.join(rack="there")


def told(world: World, topic: tuple[str, bytes], rack: str, offset: int = 0, version: int = _VERSION) -> Told:
    """The answer to a Fetch from that rack, which waits half a second where there is nothing."""
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        rack_id=rack if version >= 11 else "",
        topics=[FetchTopic(topic=topic[0], partitions=[partition])],
    )
    (data,) = world.client.raw.ask(request, version).responses[0].partitions
    preferred = data.preferred_read_replica if version >= 11 else NOBODY
    return Told(data.error_code, preferred, data.high_watermark, bool(data.records))


def test_a_consumer_is_sent_to_its_rack(world: World) -> None:
    """Without records; whoever is in the leader's rack, or in no replica's, reads from the leader."""
    topic = world.topic()
    assert world.produced(topic) == ErrorCode.NONE
    world.fetch_until(topic, 3, [1, world.id])
    assert told(world, topic, "there") == Told(0, world.id, 3, has_records=False)
    for rack in ("here", "elsewhere", ""):
        assert told(world, topic, rack) == Told(0, NOBODY, 3, has_records=True), rack
    assert told(world, topic, "there", version=10) == Told(0, NOBODY, 3, has_records=True)


def test_a_follower_that_does_not_hold_the_offset_is_not_read_from(world: World) -> None:
    """Nor one that is not in sync."""
    topic = world.topic()
    world.follower.fetch(topic, 0)
    assert world.produced(topic) == ErrorCode.NONE
    assert world.produced(topic) == ErrorCode.NONE
    world.fetch_until(topic, 3, [1, world.id])
    assert told(world, topic, "there", 3).preferred == world.id
    assert told(world, topic, "there", 4).preferred == NOBODY
    world.live_until(topic, [1])
    assert told(world, topic, "there") == Told(0, NOBODY, 6, has_records=True)
