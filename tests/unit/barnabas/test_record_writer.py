"""Writing to a topic of which one partition has no leader."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import pytest

from barnabas.cli.partitioning import Partitioner
from barnabas.cli.records.parsed_record import ParsedRecord
from barnabas.client import cluster as cluster_module
from barnabas.client import record_writer
from barnabas.client.cluster import Cluster, Node, Retriable
from barnabas.client.errors import ClientError
from barnabas.client.record_writer import RecordWriter, WriteOptions
from barnabas.client.topic_partition import TopicPartition
from barnabas.client.wire import Api, Fields, array, text

LED, LEADERLESS = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Leader(Node):
    """The leader of partition 0, which stores every batch, unless its request is longer than `limit`."""

    def __init__(self, stored: list[bytes], limit: int) -> None:
        self._stored = stored
        self._limit = limit

    def ask(self, api: Api, body: bytes) -> Fields:
        assert api is Api.PRODUCE
        if len(body) > self._limit:
            raise Retriable("The node stopped answering: Connection reset by peer")
        self._stored.append(body)
        return Fields(array([text(LED.topic) + array([struct.pack(">ihqqq", LED.partition, 0, 0, -1, 0)])]))

    def close(self) -> None:
        pass


class HalfLedCluster(Cluster):
    """A cluster whose topic has a leader for partition 0 and none for partition 1."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.limit = 1 << 30

    def connect(self, node_id: int) -> Node:
        assert node_id == 1
        return Leader(self.stored, self.limit)

    def _metadata(
        self, topics: Iterable[str] | None, *, may_create: bool = False
    ) -> dict[str, tuple[int, dict[int, tuple[int, int]]]]:
        return {LED.topic: (0, {LED.partition: (0, 1), LEADERLESS.partition: (5, -1)})}


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cluster_module, record_writer):
        monkeypatch.setattr(module, "PATIENCE_S", -1.0)
    monkeypatch.setattr(cluster_module.Retriable, "patience_s", -1.0)


@pytest.mark.usefixtures("no_patience")
def test_a_partition_without_leader_does_not_stop_writing_to_others() -> None:
    cluster = HalfLedCluster()
    partitioner = Partitioner(cluster, LED.topic, None, may_create=False)
    writer = RecordWriter(cluster, WriteOptions(acks=1))
    for number in range(4):
        partition = partitioner.partition(ParsedRecord(b"%d" % number, None))
        assert partition == LED, "records without key go to partitions with a leader"
        writer.append(partition, None, b"%d" % number)
    writer.close()
    assert writer.written == 4


@pytest.mark.usefixtures("no_patience")
def test_a_record_for_a_partition_without_leader_is_refused_after_the_others_are_written() -> None:
    cluster = HalfLedCluster()
    partitioner = Partitioner(cluster, LED.topic, None, may_create=False)
    writer = RecordWriter(cluster, WriteOptions(acks=1))
    for partition in (LEADERLESS, LED):
        assert partitioner.partition(ParsedRecord(b"v", None, partition=partition.partition)) == partition
        writer.append(partition, None, b"v")
    with pytest.raises(ClientError, match="orders-1: the partition has no leader"):
        writer.close()
    assert len(cluster.stored) == 1


def test_a_partition_that_the_topic_has_no_longer_is_one_sentence() -> None:
    """The topic was deleted, and created again with fewer partitions."""
    writer = RecordWriter(HalfLedCluster(), WriteOptions(acks=1))
    writer.append(TopicPartition("orders", 2), None, b"v")
    with pytest.raises(ClientError, match=r"The topic orders has no partition 2, only 0 to 1\."):
        writer.close()


def test_a_record_above_the_limit_of_requests_ends_the_writer_after_those_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node says nothing about a request above socket.request.max.bytes: it closes the connection, each time."""
    monkeypatch.setattr(record_writer, "HUGE_BYTES", 1000)
    monkeypatch.setattr(record_writer, "PAUSE_S", 0.0)
    cluster = HalfLedCluster()
    cluster.limit = 1100
    writer = RecordWriter(cluster, WriteOptions(acks=1))
    for value in (b"a", b"b", b"x" * 2000):
        writer.append(LED, None, value)
    with pytest.raises(ClientError, match=r"raise its socket\.request\.max\.bytes, or write smaller records"):
        writer.close()
    assert len(cluster.stored) == 2
