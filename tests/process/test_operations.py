"""What docs/operations.md tells operators to do: backup and restore, and a rolling restart under load.

RULES    1. A copy of a stopped node's directory is a backup; so is an atomic snapshot of a running one's.
         2. A cluster of three loses no acknowledged record and refuses none while its nodes are restarted one by one, each when
            `barnabas health --safe-to-stop` says so.
NOT HERE Changing between Barnabas and Apache Kafka (tests/conformance/test_alternating_brokers.py).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import barnabas
from barnabas import health
from tests.support.librdkafka import create_topic, produce, read_to_end
from tests.support.waiting import until

pytestmark = pytest.mark.long


def values(bootstrap: str) -> list[bytes]:
    return [message.value() for message in read_to_end(bootstrap, "kept")]


def committed(bootstrap: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    offset: int = consumer.committed([TopicPartition("kept", 0)], timeout=60)[0].offset
    consumer.close()
    return offset


def commit(bootstrap: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    consumer.commit(offsets=[TopicPartition("kept", 0, offset)], asynchronous=False)
    consumer.close()


@pytest.mark.parametrize("is_running", [False, True], ids=["stopped", "snapshot"])
def test_a_copy_of_the_directory_is_a_backup(tmp_path: Path, is_running: bool) -> None:
    """A snapshot is atomic: the process does nothing while its files are copied."""
    original, backup = tmp_path / "data", tmp_path / "backup"
    with barnabas.Broker(original) as broker:
        create_topic(broker.bootstrap, "kept")
        produce(broker.bootstrap, "kept", [b"%d" % number for number in range(100)])
        commit(broker.bootstrap, 42)
        if is_running:
            os.kill(broker.pid, signal.SIGSTOP)
            shutil.copytree(original, backup)
            os.kill(broker.pid, signal.SIGCONT)
        else:
            broker.stop()
            shutil.copytree(original, backup)
            broker.start()
        produce(broker.bootstrap, "kept", [b"later"])
        assert len(values(broker.bootstrap)) == 101
    shutil.rmtree(original)
    shutil.copytree(backup, original)
    with barnabas.Broker(original) as broker:
        assert values(broker.bootstrap) == [b"%d" % number for number in range(100)]
        assert committed(broker.bootstrap) == 42
        produce(broker.bootstrap, "kept", [b"goes on"])
        assert len(values(broker.bootstrap)) == 101


def metrics_address(node: barnabas.Broker) -> str:
    """The address of the metrics listener since the last start."""
    found: list[str] = until(
        lambda: re.findall(r"metrics are at http://(.*)/metrics", node.log()), "the metrics listen"
    )
    return found[-1]


@pytest.mark.smoke
def test_a_node_is_safe_to_stop_while_the_others_have_all_replicas(capsys: pytest.CaptureFixture[str]) -> None:
    """Three replicas, two must be in sync: one node may stop, then no other until it is back."""
    with barnabas.Cluster(3, settings={"barnabas.metrics.listener": "HTTP://127.0.0.1:0"}) as cluster:
        create_topic(cluster.bootstrap, "kept", 3, 3, min_insync_replicas="2")
        addresses = {number: metrics_address(node) for number, node in cluster.nodes.items()}
        for address in addresses.values():
            assert health.main(["--safe-to-stop", "--wait", "60", address]) == 0
            assert probe(address, "/healthz") == probe(address, "/readyz") == 200
        cluster.nodes[3].stop()
        until(lambda: health.main(["--safe-to-stop", addresses[1]]) == 1, "the stopped node has left the ISR")
        assert "3 partitions would have fewer in-sync replicas than min.insync.replicas" in capsys.readouterr().err
        assert health.main(["--safe-to-stop", addresses[3]]) == 1
        assert f"no answer from the metrics listener {addresses[3]}: " in capsys.readouterr().err
        waiting = threading.Thread(target=cluster.nodes[3].start)
        waiting.start()
        assert health.main(["--safe-to-stop", "--wait", "60", addresses[1]]) == 0
        waiting.join()
        assert probe(metrics_address(cluster.nodes[3]), "/readyz") == 200


def probe(address: str, path: str) -> int:
    """The status of a probe of the metrics listener."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_rolling_restart_loses_and_refuses_nothing() -> None:
    """The next node is restarted when all partitions can do without it."""
    with barnabas.Cluster(3, settings={"barnabas.metrics.listener": "HTTP://127.0.0.1:0"}) as cluster:
        bootstrap = cluster.bootstrap
        create_topic(bootstrap, "kept", 3, 3, min_insync_replicas="2")
        producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "enable.idempotence": True})
        errors: list[object] = []
        sent: list[bytes] = []
        over = threading.Event()

        def write() -> None:
            while not over.wait(0.005):
                sent.append(b"%d" % len(sent))
                producer.produce(
                    "kept", sent[-1], on_delivery=lambda error, _: errors.append(error) if error is not None else None
                )
                producer.poll(0)

        writer = threading.Thread(target=write)
        writer.start()
        for node in cluster.nodes.values():
            assert health.main(["--safe-to-stop", "--wait", "60", metrics_address(node)]) == 0
            node.stop()
            node.start()
        until(lambda: _all_in_sync(bootstrap), "all replicas are in sync")
        over.set()
        writer.join()
        assert producer.flush(60) == 0
        assert errors == []
        read = [message.value() for message in _read_all(bootstrap, 3)]
        assert sorted(read, key=int) == sent


def _all_in_sync(bootstrap: str) -> bool:
    metadata = Producer({"bootstrap.servers": bootstrap}).list_topics("kept", timeout=60)
    return all(len(partition.isrs) == 3 for partition in metadata.topics["kept"].partitions.values())


def _read_all(bootstrap: str, partitions: int) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "r", "enable.partition.eof": False})
    assigned = [TopicPartition("kept", number, 0) for number in range(partitions)]
    total = sum(consumer.get_watermark_offsets(one, timeout=60)[1] for one in assigned)
    consumer.assign(assigned)
    found = consumer.consume(total, 60)
    consumer.close()
    return list(found)
