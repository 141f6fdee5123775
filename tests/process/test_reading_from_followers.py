"""Three nodes in three racks: consumers read from the nearest replica (KIP-392), and from another one if it fails."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.process.test_cluster import PARTITIONS, Writer, create, leaders
from tests.support.cluster import Cluster
from tests.support.waiting import until

pytestmark = pytest.mark.long

SETTINGS = {
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "broker.rack": "rack-{node}",
}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(settings=SETTINGS) as made:
        yield made


class Reader:
    """A consumer in a rack, and the nodes that it fetches from."""

    def __init__(self, cluster: Cluster, topic: str, rack: str) -> None:
        self.fetches: dict[int, int] = {}
        self.found: dict[tuple[int | None, int | None], bytes | None] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": "near",
                "client.rack": rack,
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 20,
                "statistics.interval.ms": 50,
                "stats_cb": self._note,
            }
        )
        self._consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])

    def _note(self, stats: str) -> None:
        brokers = json.loads(stats)["brokers"].values()
        self.fetches = {broker["nodeid"]: broker["req"].get("Fetch", 0) for broker in brokers}

    def has_all(self, writer: Writer) -> bool:
        """Whether all acknowledged records were read, and no more arrive."""
        while (message := self._consumer.poll(0.2)) is not None:
            if message.error() is None:
                self.found[message.partition(), message.offset()] = message.value()
        return self.found == writer.acknowledged

    def asks_only(self, *nodes: int) -> bool:
        """Whether it fetches from these nodes only."""
        before = self.fetches
        self._consumer.poll(0.5)
        requested = {node for node, count in self.fetches.items() if count > before.get(node, 0)}
        return requested == set(nodes)

    def close(self) -> None:
        self._consumer.close()


def test_a_consumer_reads_in_its_rack_and_falls_back_to_other_racks(cluster: Cluster) -> None:
    admin = create(cluster, "near")
    assert {leader for leader, _ in leaders(admin, "near").values()} == {1, 2, 3}
    writer = Writer(cluster, "near")
    reader = Reader(cluster, "near", "rack-2")
    writer.write(300)
    writer.flush()
    until(lambda: reader.has_all(writer), "all was read")
    until(lambda: reader.asks_only(2), "broker 2 alone is asked")
    writer.write(300)
    writer.flush()
    until(lambda: reader.has_all(writer), "what came later was read there")
    cluster.nodes[2].kill()
    writer.write(300)
    writer.flush()
    until(
        lambda: reader.has_all(writer),
        "the records of its absence are read",
        within_s=60,
    )
    reader.close()
