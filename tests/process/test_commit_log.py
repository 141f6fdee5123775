"""Topics in the commit log, on a node that is killed and on nodes with different engines.

NOT HERE All other tests of processes with this engine: STORAGE_ENGINE=commitlog (tests/support/storage_engine.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

import barnabas
from tests.support.librdkafka import create_topic, produce, read_to_end, transactional_producer
from tests.support.storage_engine import SETTING

pytestmark = pytest.mark.long
QUICK = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}


def values(bootstrap: str, topic: str) -> list[bytes | None]:
    return sorted((found.value() for found in read_to_end(bootstrap, topic, "read_committed")), key=str)


def test_records_transactions_and_deleted_records_survive_kills(tmp_path: Path) -> None:
    with barnabas.Broker(tmp_path / "data", settings={**QUICK, SETTING: "commitlog"}) as broker:
        create_topic(broker.bootstrap, "t", 1)
        produce(broker.bootstrap, "t", [b"%03d" % number for number in range(100)])
        client = transactional_producer(broker.bootstrap, "x")
        for value, ends in ((b"kept", client.commit_transaction), (b"gone", client.abort_transaction)):
            client.begin_transaction()
            client.produce("t", value)
            client.flush()
            ends()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        (deleted,) = admin.delete_records([TopicPartition("t", 0, 50)]).values()
        assert deleted.result(30).low_watermark == 50
        expected = sorted([*(b"%03d" % number for number in range(50, 100)), b"kept"], key=str)
        for stop in (broker.stop, broker.kill, broker.kill):  # a clean stop writes the log start down
            assert values(broker.bootstrap, "t") == expected
            stop()
            broker.start()
        assert values(broker.bootstrap, "t") == expected
        assert {path.name for path in (tmp_path / "data").iterdir()} >= {"commitlog"}
        assert not (tmp_path / "data" / "t-0").exists()


def test_replicas_of_different_engines_take_over_from_each_other() -> None:
    with barnabas.Cluster(3, settings={**QUICK, "min.insync.replicas": 2}) as cluster:
        for number, node in cluster.nodes.items():
            node.settings[SETTING] = "segments" if number == 2 else "commitlog"
            node.restart()
        create_topic(cluster.bootstrap, "t", 3, 3)
        written: list[bytes] = []
        for number, victim in enumerate(cluster.nodes.values()):
            more = [b"%d-%03d" % (number, value) for value in range(60)]
            produce(cluster.bootstrap, "t", more, 3, acks="all")
            written += more
            victim.kill()
            more = [b"%d+%03d" % (number, value) for value in range(60)]
            produce(cluster.bootstrap, "t", more, 3, acks="all")
            written += more
            victim.start()
        assert values(cluster.bootstrap, "t") == sorted(written, key=str)
        folders = {number: (Path(node.data_dir) / "t-0").exists() for number, node in cluster.nodes.items()}
        assert folders == {1: False, 2: True, 3: False}
