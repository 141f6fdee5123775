"""The data directories of three nodes, served alternately by Barnabas and by Apache Kafka (docs/data-directory.md)."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient

from tests.conformance.test_cluster_tools import SETTINGS
from tests.support.cluster import Cluster
from tests.support.kafka import needs_kafka
from tests.support.kafka_cluster import ApacheCluster
from tests.support.librdkafka import create_topic, produce, read_to_end
from tests.support.waiting import until

pytestmark = [needs_kafka, pytest.mark.long]

PARTITIONS = 3
COUNT = 60
QUICK = {**SETTINGS, "broker.session.timeout.ms": "3000"}
"""After an unclean stop the other broker's node waits for the end of the old session."""


def write(bootstrap: str, name: str) -> list[bytes]:
    """Produces COUNT records with acks=all."""
    values = [f"{name}-{number}".encode() for number in range(COUNT)]
    produce(bootstrap, "t", values, PARTITIONS, acks="all")
    return values


def read(bootstrap: str) -> list[bytes]:
    return sorted(message.value() or b"" for message in read_to_end(bootstrap, "t"))


def is_in_sync(bootstrap: str) -> bool:
    partitions = AdminClient({"bootstrap.servers": bootstrap}).list_topics("t", timeout=30).topics["t"].partitions
    return all(len(one.isrs) == 3 for one in partitions.values())


def test_three_nodes_alternate_between_kafka_and_barnabas() -> None:
    """Kafka continues with our records, quorum and metadata; and we with Kafka's, although two of its nodes were killed."""
    with Cluster(settings=QUICK) as ours:
        create_topic(ours.bootstrap, "t", PARTITIONS, 3)
        written = write(ours.bootstrap, "ours")
        for node in ours.nodes.values():
            node.stop()
        with ApacheCluster(3, QUICK, instead_of=ours) as kafka:
            assert read(kafka.bootstrap) == sorted(written)
            written += write(kafka.bootstrap, "kafka")
            kafka.stop(1)
        ours.start()
        until(lambda: is_in_sync(ours.bootstrap), "all replicas are in sync", 60)
        written += write(ours.bootstrap, "again")
        assert read(ours.bootstrap) == sorted(written)
