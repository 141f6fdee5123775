"""KIP-392: the preferred read replica for a consumer with a rack, against Barnabas and Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from protocol.errors import ErrorCode
from tests.conformance.brokers import fetched
from tests.support.follower_harness import BOTH, Cluster, FollowerHarness, running, unregistered_follower
from tests.support.waiting import until

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
def harness(cluster: Cluster) -> Iterator[FollowerHarness]:
    """A follower in the rack `there`."""
    with unregistered_follower(cluster) as made:
        yield made.join(rack="there")


def fetch_with_rack(
    harness: FollowerHarness, topic: tuple[str, bytes], rack: str, offset: int = 0, version: int = _VERSION
) -> Fetched:
    """Fetch with a rack; waits half a second if there are no records."""
    fields: dict[str, Any] = {"rack_id": rack} if version >= 11 else {}
    data = fetched(harness.client.raw, topic[0], offset, version=version, max_wait_ms=500, **fields)
    preferred = data.preferred_read_replica if version >= 11 else NO_REPLICA
    return Fetched(data.error_code, preferred, data.high_watermark, bool(data.records))


def test_a_consumer_is_directed_to_the_replica_of_its_rack(harness: FollowerHarness) -> None:
    """Without records; a consumer in the leader's rack, or in no replica's rack, reads from the leader."""
    topic = harness.topic()
    assert harness.produced(topic) == ErrorCode.NONE
    harness.fetch_until(topic, 3, [1, harness.id])
    assert fetch_with_rack(harness, topic, "there") == Fetched(0, harness.id, 3, has_records=False)
    for rack in ("here", "elsewhere", ""):
        assert fetch_with_rack(harness, topic, rack) == Fetched(0, NO_REPLICA, 3, has_records=True), rack
    assert fetch_with_rack(harness, topic, "there", version=10) == Fetched(0, NO_REPLICA, 3, has_records=True)


def test_a_follower_that_does_not_hold_the_offset_is_not_read_from(harness: FollowerHarness) -> None:
    """Nor a follower outside of the ISR."""
    topic = harness.topic()
    harness.follower.fetch(topic, 0)
    assert harness.produced(topic) == ErrorCode.NONE
    assert harness.produced(topic) == ErrorCode.NONE
    harness.fetch_until(topic, 3, [1, harness.id])
    assert fetch_with_rack(harness, topic, "there", 3).preferred == harness.id
    assert fetch_with_rack(harness, topic, "there", 4).preferred == NO_REPLICA
    harness.heartbeat_until(topic, [1])
    # Apache Kafka's broker publishes its metadata before its partition takes the ISR from them.
    own_records = Fetched(0, NO_REPLICA, 6, has_records=True)
    until(lambda: fetch_with_rack(harness, topic, "there") == own_records, "the leader answers with its records")
