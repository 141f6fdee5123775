"""Three nodes, each broker and controller: replication, failover, controlled shutdown, transactions."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from protocol.errors import ErrorCode
from protocol.messages.cluster import DescribeQuorumRequest, RemoveRaftVoterRequest
from tests.support.cluster import Cluster
from tests.support.feature_cases import KRAFT, UP, updates
from tests.support.librdkafka import create_topic, read_to_end
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.waiting import until

PARTITIONS = 6


class Writer:
    """Writes unique numbers with acks=all, and records the acknowledged offsets."""

    def __init__(self, cluster: Cluster, topic: str, **settings: Any) -> None:
        settings = {"enable.idempotence": True, "linger.ms": 2, "message.timeout.ms": 60_000, **settings}
        self.producer = Producer({"bootstrap.servers": cluster.bootstrap, **settings})
        self.topic = topic
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.failed: list[str] = []
        self.written = 0

    def write(self, count: int) -> None:
        """Writes more numbers."""
        for number in range(self.written, self.written + count):
            self.producer.produce(
                self.topic, b"%d" % number, partition=number % PARTITIONS, on_delivery=self._delivered
            )
            self.producer.poll(0)
        self.written += count

    def flush(self) -> None:
        """Waits until all are acknowledged."""
        assert self.producer.flush(60) == 0
        assert self.failed == []

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            self.acknowledged[message.partition(), message.offset()] = message.value()


def read_all(cluster: Cluster, topic: str) -> dict[tuple[int, int], bytes]:
    """Every record of a topic by partition and offset."""
    return {(record.partition(), record.offset()): record.value() for record in read_to_end(cluster.bootstrap, topic)}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as made:
        yield made


def create(cluster: Cluster, topic: str) -> AdminClient:
    create_topic(cluster.bootstrap, topic, PARTITIONS, 3)
    cluster.wait_until_known(topic)
    return AdminClient({"bootstrap.servers": cluster.bootstrap})


def leaders(admin: AdminClient, topic: str) -> dict[int, tuple[int, list[int]]]:
    """Leader and ISR of each partition."""
    found = admin.list_topics(topic, timeout=30).topics[topic].partitions
    return {index: (partition.leader, sorted(partition.isrs)) for index, partition in found.items()}


@pytest.mark.parametrize("victims", [(1,), pytest.param((2, 3), marks=pytest.mark.long)])
def test_acknowledged_records_survive_their_leaders(cluster: Cluster, victims: tuple[int, ...]) -> None:
    admin = create(cluster, "kept")
    writer = Writer(cluster, "kept")
    for victim in victims:
        writer.write(600)
        writer.flush()
        cluster.nodes[victim].kill()
        writer.write(600)
        writer.flush()
        assert victim not in {leader for leader, _ in leaders(admin, "kept").values()}
        cluster.start()
        until(lambda: all(isr == [1, 2, 3] for _, isr in leaders(admin, "kept").values()), "all are in sync")
    assert read_all(cluster, "kept") == writer.acknowledged
    assert len(writer.acknowledged) == writer.written


@pytest.mark.long
def test_a_node_with_an_empty_disk_gets_its_replicas_again(cluster: Cluster) -> None:
    """Its log directory has another id than the one that the metadata name for them."""
    admin = create(cluster, "kept")
    writer = Writer(cluster, "kept")
    writer.write(600)
    writer.flush()
    cluster.nodes[3].kill()
    shutil.rmtree(cluster.folder / "3")
    cluster.start()
    until(lambda: all(isr == [1, 2, 3] for _, isr in leaders(admin, "kept").values()), "all are in sync")
    assert read_all(cluster, "kept") == writer.acknowledged


@pytest.fixture
def patient() -> Iterator[Cluster]:
    """Brokers with a session timeout longer than the test."""
    with Cluster(settings={"broker.session.timeout.ms": "60000"}) as made:
        yield made


@pytest.mark.long
def test_a_controlled_shutdown_moves_leaders_first(patient: Cluster) -> None:
    admin = create(patient, "handed")
    writer = Writer(patient, "handed")
    for node in list(patient.nodes.values()):
        writer.write(300)
        node.stop()
        writer.write(300)
        writer.flush()
        assert "no heartbeat within" not in "".join(other.log() for other in patient.nodes.values())
        node.start()
        until(lambda: all(isr == [1, 2, 3] for _, isr in leaders(admin, "handed").values()), "all are in sync")
    assert read_all(patient, "handed") == writer.acknowledged


def test_transactions_span_all_brokers(cluster: Cluster) -> None:
    create(cluster, "paid")
    for name in ("a", "b", "c"):  # whose coordinators are likely to be on different brokers
        writer = Writer(cluster, "paid", **{"transactional.id": name})
        writer.producer.init_transactions(30)
        for turn in range(4):
            writer.producer.begin_transaction()
            writer.write(60)
            if turn % 2:
                # librdkafka counts a refused AddPartitionsToTxn (CONCURRENT_TRANSACTIONS) as sent. An abort before its
                # retry ends a transaction that the coordinator has not begun: INVALID_TXN_STATE, by Apache Kafka too.
                writer.flush()
                writer.producer.abort_transaction(30)
            else:
                writer.producer.commit_transaction(30)
    found = read_to_end(cluster.bootstrap, "paid", "read_committed")
    committed = [number for number in range(240) if number // 60 % 2 == 0]
    assert sorted(int(record.value()) for record in found) == sorted(3 * committed)


NO_DIRECTORY = bytes(16)


def voters(cluster: Cluster) -> dict[int, bytes]:
    """Voters and their directory ids according to node 1."""
    requested = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
    with RawClient(cluster.nodes[1].bootstrap) as client:
        (partition,) = client.ask(message(DescribeQuorumRequest, topics=[requested]), 2).topics[0].partitions
    return {voter.replica_id: voter.replica_directory_id for voter in partition.current_voters}


@pytest.mark.long
def test_static_voters_move_to_the_log_with_kraft_version_1_and_can_be_removed(cluster: Cluster) -> None:
    def is_raised() -> bool:
        code: int = client.ask(updates((KRAFT, 1, UP)), 2).error_code
        return code == ErrorCode.NONE

    create(cluster, "before")
    assert voters(cluster) == dict.fromkeys((1, 2, 3), NO_DIRECTORY), "static voters have no directory"
    removed = RemoveRaftVoterRequest(cluster_id=None, voter_id=3, voter_directory_id=b"3" * 16)
    with RawClient(cluster.nodes[1].bootstrap) as client:
        assert client.ask(removed, 0).error_code == ErrorCode.UNSUPPORTED_VERSION
        until(is_raised, "all voters have said what they support")
        until(lambda: NO_DIRECTORY not in voters(cluster).values(), "the voters have directories")
        removed.voter_directory_id = voters(cluster)[3]
        until(lambda: client.ask(removed, 0).error_code == ErrorCode.NONE, "node 3 has no vote")
    for node in cluster.nodes.values():
        node.kill()
    cluster.start()
    assert sorted(voters(cluster)) == [1, 2]
    create(cluster, "after")
