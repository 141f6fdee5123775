"""KIP-392: the preferred read replica for a consumer with a rack, against Barnabas and Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from protocol.errors import ErrorCode
from protocol.messages.produce_fetch import FetchPartition, FetchRequest, FetchTopic
from tests.support.follower_harness import BOTH, Cluster, FollowerHarness, running, unregistered_follower

pytestmark = pytest.mark.long

NO_REPLICA = -1
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
_VERSION = 12


class Fetched(NamedTuple):
    """A partition's part of the Fetch response."""

    code: int
    preferred: int
    high_watermark: int
    has_records: bool


@pytest.fixture(scope="module", params=BOTH)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Broker 1, in the rack `here`."""
    settings = {"replica_selector_class": SELECTOR, "broker_rack": "here", "replica_lag_time_max_ms": 5000}
    with running(request.param, **settings) as made:
        yield made


@pytest.fixture
def world(cluster: Cluster) -> Iterator[FollowerHarness]:
    """A follower in the rack `there`."""
    with unregistered_follower(cluster) as made:
        yield made.join(rack="there")


def fetch_with_rack(
    world: FollowerHarness, topic: tuple[str, bytes], rack: str, offset: int = 0, version: int = _VERSION
) -> Fetched:
    """Fetch with a rack; waits half a second if there are no records."""
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        rack_id=rack if version >= 11 else "",
        topics=[FetchTopic(topic=topic[0], partitions=[partition])],
    )
    (data,) = world.client.raw.ask(request, version).responses[0].partitions
    preferred = data.preferred_read_replica if version >= 11 else NO_REPLICA
    return Fetched(data.error_code, preferred, data.high_watermark, bool(data.records))


def test_a_consumer_is_directed_to_the_replica_of_its_rack(world: FollowerHarness) -> None:
    """Without records; a consumer in the leader's rack, or in no replica's rack, reads from the leader."""
    topic = world.topic()
    assert world.produced(topic) == ErrorCode.NONE
    world.fetch_until(topic, 3, [1, world.id])
    assert fetch_with_rack(world, topic, "there") == Fetched(0, world.id, 3, has_records=False)
    for rack in ("here", "elsewhere", ""):
        assert fetch_with_rack(world, topic, rack) == Fetched(0, NO_REPLICA, 3, has_records=True), rack
    assert fetch_with_rack(world, topic, "there", version=10) == Fetched(0, NO_REPLICA, 3, has_records=True)


def test_a_follower_that_does_not_hold_the_offset_is_not_read_from(world: FollowerHarness) -> None:
    """Nor a follower outside of the ISR."""
    topic = world.topic()
    world.follower.fetch(topic, 0)
    assert world.produced(topic) == ErrorCode.NONE
    assert world.produced(topic) == ErrorCode.NONE
    world.fetch_until(topic, 3, [1, world.id])
    assert fetch_with_rack(world, topic, "there", 3).preferred == world.id
    assert fetch_with_rack(world, topic, "there", 4).preferred == NO_REPLICA
    world.heartbeat_until(topic, [1])
    assert fetch_with_rack(world, topic, "there") == Fetched(0, NO_REPLICA, 6, has_records=True)
