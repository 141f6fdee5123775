"""Converted commit logs: Apache Kafka serves the same from the directories, and so does Barnabas after the way back.

NOT HERE Stops during a conversion (tests/unit/storage/directories/test_conversion.py), directories without a commit log
         (test_alternating_brokers.py, test_alternating_clusters.py).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from barnabas import Broker
from tests.conformance.test_alternating_clusters import PARTITIONS, QUICK, is_in_sync, read, write
from tests.support.cluster import Cluster
from tests.support.kafka import ApacheKafka, needs_kafka
from tests.support.kafka_cluster import ApacheCluster
from tests.support.librdkafka import assert_arrived, create_topic, produce, read_to_end, transactional_producer
from tests.support.storage_engine import SETTING
from tests.support.timestamps import RECENT_MS
from tests.support.waiting import until

pytestmark = [needs_kafka, pytest.mark.long]

WAIT_S = 30.0
OURS = {
    SETTING: "commitlog",
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "log.retention.check.interval.ms": 100,
}
TOPICS = {"plain": 3, "transactions": 1, "trimmed": 1, "expired": 1, "named": 1}
SMALL: dict[str, Any] = {"internal.segment.bytes": "4000"}

Observed = dict[tuple[str, str | int], Any]


def converted(directories: Sequence[Path], engine: str) -> str:
    """The report of a conversion."""
    options = [option for directory in directories for option in ("--log-dir", str(directory))]
    command = [sys.executable, "-m", "barnabas", "convert", *options, "--to", engine]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def fill(bootstrap: str) -> Producer:
    """Batches of every codec in small segments, transactions of each end, deleted and expired records.

    Returns the producer of the open transaction.
    """
    create_topic(bootstrap, "plain", TOPICS["plain"], **SMALL)
    create_topic(bootstrap, "named", barnabas_storage_engine="commitlog")
    for topic in ("transactions", "trimmed"):
        create_topic(bootstrap, topic, **SMALL)
    create_topic(bootstrap, "expired", retention_ms="1", **SMALL)
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        settings = {"compression.type": codec, "enable.idempotence": number % 2 == 0, "batch.num.messages": 7}
        producer = Producer({"bootstrap.servers": bootstrap, **settings})
        for index in range(90):
            producer.produce(
                *("plain", f"{codec} {index}" * 8, f"{index}"), partition=index % 3,
                timestamp=RECENT_MS + 1000 * index, headers=[("h", b"1")], on_delivery=assert_arrived,
            )  # fmt: skip
        assert producer.flush(WAIT_S) == 0
    produce(bootstrap, "named", [b"n"] * 10)
    produce(bootstrap, "trimmed", [b"%03d" % number * 30 for number in range(100)], batch_num_messages=10)
    produce(bootstrap, "expired", [b"e" * 500 for _ in range(50)], batch_num_messages=5)
    start = TopicPartition("trimmed", 0, 57)
    client = AdminClient({"bootstrap.servers": bootstrap})
    assert client.delete_records([start])[start].result(WAIT_S).low_watermark == 57
    for number in range(30):
        producer = transactional_producer(bootstrap, f"tx-{number % 3}")
        producer.begin_transaction()
        for index in range(4):
            producer.produce("transactions", f"{number} {index}" * 20)
        producer.flush(WAIT_S)
        (producer.abort_transaction if number % 2 else producer.commit_transaction)(WAIT_S)
    unfinished = transactional_producer(bootstrap, "open", transaction_timeout_ms=600_000)
    unfinished.begin_transaction()
    unfinished.produce("transactions", b"open")
    unfinished.flush(WAIT_S)
    produce(bootstrap, "transactions", [b"behind"])
    return unfinished


def observed(bootstrap: str) -> Observed:
    """What clients see of every topic: records, stable records, offsets, also by time."""
    found: Observed = {}
    client = AdminClient({"bootstrap.servers": bootstrap})
    for topic, partitions in TOPICS.items():
        for isolation in ("read_uncommitted", "read_committed"):
            found[topic, isolation] = sorted(
                (r.partition() or 0, r.offset() or 0, r.timestamp()[1], r.key(), r.value(), str(r.headers()))
                for r in read_to_end(bootstrap, topic, isolation)
            )
        places = [TopicPartition(topic, index) for index in range(partitions)]
        for spec in (OffsetSpec.earliest(), OffsetSpec.latest(), OffsetSpec.max_timestamp()):
            offsets = client.list_offsets(dict.fromkeys(places, spec))
            found[topic, type(spec).__name__] = [offsets[place].result(WAIT_S).offset for place in places]
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "times"})
        for time_ms in (0, RECENT_MS + 1, RECENT_MS + 44_500, RECENT_MS + 89_000):
            times = [TopicPartition(topic, index, time_ms) for index in range(partitions)]
            found[topic, time_ms] = [(p.partition, p.offset) for p in consumer.offsets_for_times(times, WAIT_S)]
        consumer.close()
    # Both brokers may answer with a deleted record whose segment remains; the conversion leaves such records out.
    del found["trimmed", "MaxTimestampSpec"]
    return found


def is_expired(bootstrap: str) -> bool:
    place = TopicPartition("expired", 0)
    client = AdminClient({"bootstrap.servers": bootstrap})
    return bool(client.list_offsets({place: OffsetSpec.earliest()})[place].result(WAIT_S).offset == 50)


def test_apache_kafka_serves_the_same_from_a_converted_directory(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data, settings=OURS) as broker:
        unfinished = fill(broker.bootstrap)
        until(lambda: is_expired(broker.bootstrap), "retention", WAIT_S)
        before = observed(broker.bootstrap)
    assert len(before["transactions", "read_committed"]) == 60
    assert (data / "commitlog").is_dir()
    assert "The topic named has another barnabas.storage.engine" in converted([data], "segments")
    assert not (data / "commitlog").exists()
    with ApacheKafka({"log.retention.ms": -1}, data_dir=data) as kafka:
        assert observed(kafka.bootstrap) == before
        produce(kafka.bootstrap, "plain", [b"of Kafka"] * 30, 3)
        extended = observed(kafka.bootstrap)
        assert len(list((data / "plain-0").glob("*.log"))) > 1, "segments are kept"
    converted([data], "commitlog")
    with Broker(data, settings=OURS) as broker:
        assert observed(broker.bootstrap) == extended
        transactional_producer(broker.bootstrap, "open")  # aborts the transaction
        stable = [row[4] for row in observed(broker.bootstrap)["transactions", "read_committed"]]
        assert (len(stable), stable[-1]) == (61, b"behind")
    del unfinished


def test_three_converted_nodes_continue_with_apache_kafka() -> None:
    """One of them was killed while records were written, so that a follower has truncated its log."""
    with Cluster(settings={**QUICK, SETTING: "commitlog"}) as ours:
        create_topic(ours.bootstrap, "t", PARTITIONS, 3, **SMALL)
        written = write(ours.bootstrap, "first")
        for node in ours.nodes.values():
            node.kill()
            written += write(ours.bootstrap, f"{node.data_dir}")
            node.start()
            until(lambda: is_in_sync(ours.bootstrap), "all replicas are in sync", 60)
        for node in ours.nodes.values():
            node.stop()
        for node in ours.nodes.values():
            converted([Path(str(node.data_dir))], "segments")
        with ApacheCluster(3, QUICK, instead_of=ours) as kafka:
            until(lambda: is_in_sync(kafka.bootstrap), "all replicas are in sync", 60)
            assert read(kafka.bootstrap) == sorted(written)
            written += write(kafka.bootstrap, "kafka")
        for node in ours.nodes.values():
            converted([Path(str(node.data_dir))], "commitlog")
        ours.start()
        until(lambda: is_in_sync(ours.bootstrap), "all replicas are in sync", 60)
        assert read(ours.bootstrap) == sorted(written)
