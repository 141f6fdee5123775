"""Metadata snapshots of Apache Kafka, loaded by Barnabas.

NOT HERE Snapshots of Barnabas, loaded by Apache Kafka (`test_alternating_brokers.py`).
"""

from __future__ import annotations

import os
from collections import Counter
from itertools import pairwise
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewPartitions, ResourceType

from barnabas import Broker
from protocol.messages import stored_records
from protocol.schema import Message
from replication.metadata.image import MetadataImage
from replication.metadata.image_records import image_records
from replication.metadata.metadata_records import SnapshotName, read_batches, read_snapshot, snapshot_name
from tests.support.kafka import ApacheKafka, needs_kafka
from tests.support.librdkafka import config_value, create_topic, set_configs
from tests.support.waiting import until

WAIT_S = 30
_TRANSACTION = (
    stored_records.BeginTransactionRecord,
    stored_records.EndTransactionRecord,
    stored_records.AbortTransactionRecord,
)


class Cluster:
    """What a client can change and describe."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap})

    def create(self, *names: str) -> None:
        for name in names:
            create_topic(self.bootstrap, name, 2, retention_ms="70000")

    def change(self, prefix: str) -> None:
        """Topics, partitions, deletions and configs."""
        names = [f"{prefix}-{number}" for number in range(12)]
        self.create(*names)
        self.admin.create_partitions([NewPartitions(names[0], 5)])[names[0]].result(WAIT_S)
        for future in self.admin.delete_topics(names[6:]).values():
            future.result(WAIT_S)
        set_configs(self.bootstrap, ResourceType.TOPIC, names[1], {"segment.ms": "3600000"})
        set_configs(self.bootstrap, ResourceType.BROKER, "1", {"log.retention.ms": "990000"})

    def check(self, *prefixes: str) -> None:
        """The result of `change` for these prefixes, and no other topic except internal ones."""
        topics = {
            name: len(topic.partitions)
            for name, topic in self.admin.list_topics(timeout=WAIT_S).topics.items()
            if not name.startswith("__")
        }
        assert topics == {f"{prefix}-{n}": 2 if n else 5 for prefix in prefixes for n in range(6)}
        for prefix in prefixes:
            assert config_value(self.bootstrap, ResourceType.TOPIC, f"{prefix}-1", "segment.ms") == "3600000"
            assert config_value(self.bootstrap, ResourceType.TOPIC, f"{prefix}-5", "retention.ms") == "70000"
        assert config_value(self.bootstrap, ResourceType.BROKER, "1", "log.retention.ms") == "990000"


def snapshots(directory: Path) -> list[SnapshotName]:
    """The snapshots of a data directory with content, oldest first."""
    names = filter(None, map(snapshot_name, os.listdir(directory / "__cluster_metadata-0")))
    return sorted(name for name in names if name.end_offset)


@needs_kafka
def test_we_continue_from_a_kafka_snapshot(tmp_path: Path) -> None:
    """Kafka's log before it is deleted; and from the same log Barnabas would write the same snapshot."""
    directory = tmp_path / "data"
    metadata = directory / "__cluster_metadata-0"
    often = {"metadata.log.max.record.bytes.between.snapshots": 2000, "internal.metadata.log.segment.bytes": 4000}
    with ApacheKafka(often, data_dir=directory) as kafka:
        Cluster(kafka.bootstrap).change("a")
        until(lambda: snapshots(directory), "a snapshot")
        Cluster(kafka.bootstrap).change("b")
        before = snapshots(directory)[-1]
        Cluster(kafka.bootstrap).create("z")
        until(lambda: snapshots(directory)[-1] > before, "another snapshot")
    newest = snapshots(directory)[-1]
    found = read_snapshot((metadata / str(newest)).read_bytes(), str(newest))
    assert Counter(_written(found.data)) == Counter(_written_from_the_log(metadata, newest))
    _trim_as_kafka_does(metadata, newest)
    with Broker(data_dir=directory) as ours:
        cluster = Cluster(ours.bootstrap)
        cluster.admin.delete_topics(["z"])["z"].result(WAIT_S)
        cluster.check("a", "b")
        cluster.change("c")
    with ApacheKafka(data_dir=directory) as kafka:
        Cluster(kafka.bootstrap).check("a", "b", "c")


def _written(records: list[Message]) -> list[str]:
    """The records as text; a broker's features are sorted, since Kafka's are in the order of a hash map."""
    for record in records:
        if isinstance(record, stored_records.RegisterBrokerRecord | stored_records.RegisterControllerRecord):
            record.features.sort(key=lambda feature: feature.name)
    return [repr(record) for record in records]


def _written_from_the_log(metadata: Path, name: SnapshotName) -> list[str]:
    """The records of the snapshot that Barnabas would write at that offset."""
    data = b"".join(path.read_bytes() for path in sorted(metadata.glob("*.log")))
    batches = [batch for batch in read_batches(data) if not batch.is_control and batch.last_offset < name.end_offset]
    seen = [message for batch in batches for message in batch.messages if not isinstance(message, _TRANSACTION)]
    image, _ = MetadataImage("").apply(seen, offset=name.end_offset - 1, epoch=name.leader_epoch)
    return _written([message for message, _ in image_records(image)])


def _trim_as_kafka_does(metadata: Path, newest: SnapshotName) -> None:
    """What Kafka's cleaner does a minute later: deletes older snapshots, and segments below the newest."""
    for name in (SnapshotName(0, 0), *snapshots(metadata.parent)[:-1]):
        (metadata / str(name)).unlink()
    segments = sorted(metadata.glob("*.log"))
    for path, following in pairwise(segments):
        if int(following.stem) <= newest.end_offset:
            for sibling in metadata.glob(f"{path.stem}.*"):
                sibling.unlink()
    assert not (metadata / f"{0:020d}.log").exists(), "something was trimmed"
