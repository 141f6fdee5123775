"""The data directories of three nodes, served alternately by Barnabas and by Apache Kafka (docs/data-directory.md)."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.test_cluster_tools import SETTINGS
from tests.support.cluster import Cluster
from tests.support.kafka import needs_kafka
from tests.support.kafka_cluster import ApacheCluster
from tests.support.waiting import until

pytestmark = [needs_kafka, pytest.mark.long]

PARTITIONS = 3
COUNT = 60
QUICK = {**SETTINGS, "broker.session.timeout.ms": "3000"}
"""After an unclean stop the other broker's node waits for the end of the old session."""


def write(bootstrap: str, name: str) -> list[bytes]:
    """Produces COUNT records with acks=all."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    failed: list[object] = []
    values = [f"{name}-{number}".encode() for number in range(COUNT)]
    for number, value in enumerate(values):
        producer.produce(
            "t",
            value,
            partition=number % PARTITIONS,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(60) == 0
    assert failed == []
    return values


def read(bootstrap: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition("t", index, 0) for index in range(PARTITIONS)])
    found = []
    while len(found) < count:
        message = consumer.poll(30)
        assert message is not None, f"{len(found)} of {count}"
        if message.error() is None:
            found.append(message.value())
    consumer.close()
    return found


def is_in_sync(bootstrap: str) -> bool:
    partitions = AdminClient({"bootstrap.servers": bootstrap}).list_topics("t", timeout=30).topics["t"].partitions
    return all(len(one.isrs) == 3 for one in partitions.values())


def test_three_nodes_alternate_between_kafka_and_barnabas() -> None:
    """Kafka continues with our records, quorum and metadata; and we with Kafka's, although two of its nodes were killed."""
    with Cluster(settings=QUICK) as ours:
        admin = AdminClient({"bootstrap.servers": ours.bootstrap})
        admin.create_topics([NewTopic("t", PARTITIONS, 3)])["t"].result(30)
        written = write(ours.bootstrap, "ours")
        for node in ours.nodes.values():
            node.stop()
        with ApacheCluster(3, QUICK, instead_of=ours) as kafka:
            assert sorted(read(kafka.bootstrap, COUNT)) == sorted(written)
            written += write(kafka.bootstrap, "kafka")
            kafka.stop(1)
        ours.start()
        until(lambda: is_in_sync(ours.bootstrap), "all replicas are in sync", 60)
        written += write(ours.bootstrap, "again")
        assert sorted(read(ours.bootstrap, 3 * COUNT)) == sorted(written)
