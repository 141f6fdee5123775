"""DeleteRecords, DescribeLogDirs, AlterReplicaLogDirs: this broker and Apache Kafka do and answer the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient, TopicPartition

from barnabas import Broker
from protocol.errors import ErrorCode
from protocol.messages.admin import (
    AlterableConfig,
    AlterConfigsResource,
    CreateTopicsRequest,
    IncrementalAlterConfigsRequest,
)
from protocol.messages.logs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from protocol.messages.produce_fetch import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from protocol.primitives import ZERO_UUID
from tests.conformance.clients import Sent, produce_kafka_python
from tests.support.admin_cases import topic
from tests.support.batches import batch
from tests.support.kafka import ApacheKafka, needs_kafka
from tests.support.loading import fetch_request, produce_request
from tests.support.raw_client import RawClient
from tests.support.timestamps import RECENT_MS
from tests.support.waiting import until

E = ErrorCode
POLICIES = {"plain": "delete", "compacted": "compact", "both": "compact,delete", "free": "delete"}
BATCHES = 10


@pytest.fixture(scope="module", params=["barnabas", pytest.param("apache-kafka", marks=needs_kafka)])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawClient]:
    """One broker with two log directories, and topics of ten batches each."""
    path = tmp_path_factory.mktemp(request.param)
    directories = f"{path / 'a'},{path / 'b'}"
    started: Any = None
    if request.param == "apache-kafka":
        started = ApacheKafka({"log.dirs": directories}, data_dir=path / "a")
    with started or Broker(data_dir=directories) as broker, RawClient(broker.bootstrap) as client:
        made = client.ask(
            CreateTopicsRequest(
                topics=[topic(name, configs=[("cleanup.policy", policy)]) for name, policy in POLICIES.items()],
                timeout_ms=10_000,
            ),
            7,
        )
        assert {row.error_code for row in made.topics} == {0}, made
        for name in POLICIES:
            for _ in range(BATCHES):
                until(lambda name=name: produce(client, name) == E.NONE, f"{name} takes records")
        yield client


def produce(client: RawClient, name: str) -> int:
    return (
        client.ask(produce_request({name: [bytes(batch(RECENT_MS, 1))]}), 9)
        .responses[0]
        .partition_responses[0]
        .error_code
    )


def delete(client: RawClient, name: str, index: int, offset: int) -> tuple[int, ErrorCode]:
    """What DeleteRecords answers: low watermark and code."""
    partition = DeleteRecordsPartition(partition_index=index, offset=offset)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=name, partitions=[partition])], timeout_ms=5000)
    (told,) = client.ask(request, 2).topics
    (row,) = told.partitions
    assert (told.name, row.partition_index) == (name, index)
    return row.low_watermark, ErrorCode(row.error_code)


def test_records_are_deleted_or_not_as_in_kafka(client: RawClient) -> None:
    """Step by step on one partition, and the refusals."""
    steps = [
        (("plain", 0, 0), (0, E.NONE)),
        (("plain", 0, 4), (4, E.NONE)),
        (("plain", 0, 2), (4, E.NONE)),
        (("plain", 0, 11), (-1, E.OFFSET_OUT_OF_RANGE)),
        (("plain", 0, -2), (-1, E.OFFSET_OUT_OF_RANGE)),
        (("plain", 1, 0), (-1, E.UNKNOWN_TOPIC_OR_PARTITION)),
        (("nope", 0, 0), (-1, E.UNKNOWN_TOPIC_OR_PARTITION)),
        (("a b", 0, 0), (-1, E.UNKNOWN_TOPIC_OR_PARTITION)),
        (("__consumer_offsets", 0, 0), (-1, E.UNKNOWN_TOPIC_OR_PARTITION)),
        (("compacted", 0, 1), (-1, E.POLICY_VIOLATION)),
        (("compacted", 0, -2), (-1, E.POLICY_VIOLATION)),
        (("both", 0, 1), (1, E.NONE)),
    ]
    assert [(asked, delete(client, *asked)) for asked, _ in steps] == steps
    assert [fetch(client, offset) for offset in (0, 3, 4)] == [E.OFFSET_OUT_OF_RANGE, E.OFFSET_OUT_OF_RANGE, E.NONE]
    assert earliest(client, "plain") == 4
    assert delete(client, "plain", 0, -1) == (BATCHES, E.NONE)
    assert earliest(client, "plain") == BATCHES


def fetch(client: RawClient, offset: int) -> int:
    return client.ask(fetch_request(12, {("plain", ZERO_UUID, 0): offset}), 12).responses[0].partitions[0].error_code


def earliest(client: RawClient, name: str) -> int:
    asked = ListOffsetsPartition(partition_index=0, timestamp=-2)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=name, partitions=[asked])])
    return client.ask(request, 7).topics[0].partitions[0].offset


def test_directories_are_described_as_in_kafka(client: RawClient) -> None:
    """All partitions, some, none; sizes to the byte."""
    size = len(batch(RECENT_MS, 1)) * BATCHES
    everything = client.ask(DescribeLogDirsRequest(topics=None), 5)
    assert everything.error_code == 0
    assert [Path(result.log_dir).name for result in sorted(everything.results, key=lambda r: r.log_dir)] == ["a", "b"]
    logs = {
        topic.name: [(p.partition_index, p.partition_size, p.offset_lag, p.is_future_key) for p in topic.partitions]
        for result in everything.results
        for topic in result.topics
    }
    assert logs == {name: [(0, size, 0, False)] for name in POLICIES}
    for result in everything.results:
        assert 0 < result.usable_bytes < result.total_bytes
        assert not result.is_cordoned
    some = DescribeLogDirsRequest(
        topics=[
            DescribableLogDirTopic(topic="free", partitions=[0, 7]),
            DescribableLogDirTopic(topic="no", partitions=[0]),
        ]
    )
    for version in range(1, 6):
        told = client.ask(some, version).results
        assert [(t.name, len(t.partitions)) for r in told for t in r.topics] == [("free", 1)]
        assert [[t.name for t in r.topics] for r in client.ask(DescribeLogDirsRequest(topics=[]), version).results] == [
            [], []
        ]  # fmt: skip


def lies_in(client: RawClient, name: str) -> list[tuple[str, int, bool]]:
    """(directory, size, whether it is a copy) of each log of a partition."""
    asked = DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic=name, partitions=[0])])
    return [
        (result.log_dir, log.partition_size, log.is_future_key)
        for result in client.ask(asked, 5).results
        for told in result.topics
        for log in told.partitions
    ]


def alter(client: RawClient, name: str, index: int, path: str, version: int = 2) -> ErrorCode:
    """What AlterReplicaLogDirs answers."""
    wanted = AlterReplicaLogDir(path=path, topics=[AlterReplicaLogDirTopic(name=name, partitions=[index])])
    (told,) = client.ask(AlterReplicaLogDirsRequest(dirs=[wanted]), version).results
    (row,) = told.partitions
    assert (told.topic_name, row.partition_index) == (name, index)
    return ErrorCode(row.error_code)


def test_replicas_are_moved_as_in_kafka(client: RawClient) -> None:
    """Refusals; there and back again with every byte, while records are appended; a wish for a topic to come."""
    paths = [result.log_dir for result in client.ask(DescribeLogDirsRequest(topics=[]), 5).results]
    assert alter(client, "free", 0, "/nowhere") == E.LOG_DIR_NOT_FOUND
    assert alter(client, "free", 7, paths[0]) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert alter(client, "n" * 213, 0, paths[0]) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert alter(client, "n" * 214, 0, paths[0]) == E.INVALID_TOPIC_EXCEPTION
    written = BATCHES
    for version in (1, 2):
        ((here, _, _),) = lies_in(client, "free")
        (there,) = set(paths) - {here}
        assert alter(client, "free", 0, here, version) == E.NONE
        assert alter(client, "free", 0, there, version) == E.NONE
        for _ in range(20):
            assert produce(client, "free") == E.NONE
            written += 1
        size = len(batch(RECENT_MS, 1)) * written
        until(lambda there=there, size=size: lies_in(client, "free") == [(there, size, False)], "it is moved")
    assert earliest(client, "free") == 0
    for number, path in enumerate(paths):
        name = f"to-come-{number}"
        assert alter(client, name, 0, path) == E.UNKNOWN_TOPIC_OR_PARTITION
        client.ask(CreateTopicsRequest(topics=[topic(name)], timeout_ms=10_000), 7)
        until(lambda name=name: produce(client, name) == E.NONE, "it takes records")
        assert [where for where, _, _ in lies_in(client, name)] == [path]


def cordon(client: RawClient, value: str | None) -> list[tuple[str, bool]]:
    """Set cordoned.log.dirs; the directories with whether they are cordoned."""
    change = AlterableConfig(name="cordoned.log.dirs", config_operation=0 if value is not None else 1, value=value)
    resource = AlterConfigsResource(resource_type=4, resource_name="1", configs=[change])
    (told,) = client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses
    assert told.error_code == E.NONE, told
    return sorted(
        (result.log_dir, result.is_cordoned) for result in client.ask(DescribeLogDirsRequest(topics=[]), 5).results
    )


def test_cordoned_directories_take_no_new_replicas(client: RawClient) -> None:
    """KIP-1066, while the broker runs: neither new partitions nor moves; what is there stays."""
    first, second = sorted(result.log_dir for result in client.ask(DescribeLogDirsRequest(topics=[]), 5).results)

    def until_cordoned(value: str | None, *paths: str) -> None:
        wanted = [(path, path in paths) for path in (first, second)]
        until(lambda: cordon(client, value) == wanted, f"{paths} are cordoned")

    def create(name: str) -> int:
        return client.ask(CreateTopicsRequest(topics=[topic(name)], timeout_ms=10_000), 7).topics[0].error_code

    until_cordoned(second, second)
    for number in range(4):
        name = f"beside-{number}"
        assert create(name) == E.NONE
        until(lambda name=name: produce(client, name) == E.NONE, "it takes records")
        assert [where for where, _, _ in lies_in(client, name)] == [first]
    for name in ("beside-0", "absent"):
        assert alter(client, name, 0, second) == E.INVALID_REPLICA_ASSIGNMENT
    until_cordoned("*", first, second)
    assert create("nowhere") == E.INVALID_REPLICATION_FACTOR
    assert produce(client, "beside-0") == E.NONE
    until_cordoned(None)
    assert create("anywhere") == E.NONE
    assert alter(client, "beside-0", 0, second) == E.NONE
    until(lambda: [where for where, _, copy in lies_in(client, "beside-0") if not copy] == [second], "it is moved")


@needs_kafka
@pytest.mark.turn(0)
def test_no_more_of_a_deletion_is_undone_by_a_kill_than_in_kafka(tmp_path: Path) -> None:
    """Kafka forgets what was deleted within a segment since the checkpoint of a minute ago."""
    with ApacheKafka(data_dir=tmp_path) as kafka, RawClient(kafka.bootstrap) as client:
        client.ask(CreateTopicsRequest(topics=[topic("plain")], timeout_ms=10_000), 7)
        for _ in range(BATCHES):
            until(lambda: produce(client, "plain") == E.NONE, "it takes records")
        assert delete(client, "plain", 0, 4) == (4, E.NONE)
        kafka.kill()
    with ApacheKafka(data_dir=tmp_path) as kafka, RawClient(kafka.bootstrap) as client:
        until(lambda: produce(client, "plain") == E.NONE, "it leads again")
        assert earliest(client, "plain") == 0


def test_static_cordons_hold_from_the_start_and_dynamic_ones_over_a_restart(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in "ab"]
    settings = {"cordoned.log.dirs": "*"}
    with Broker(data_dir=",".join(paths), settings=settings) as broker, RawClient(broker.bootstrap) as client:
        refused = client.ask(CreateTopicsRequest(topics=[topic("none")], timeout_ms=10_000), 7).topics[0]
        assert refused.error_code == E.INVALID_REPLICATION_FACTOR
        until(lambda: cordon(client, paths[1]) == [(paths[0], False), (paths[1], True)], "one is free")
    with Broker(data_dir=",".join(paths), settings=settings) as broker, RawClient(broker.bootstrap) as client:
        for name in "xyz":
            assert not client.ask(CreateTopicsRequest(topics=[topic(name)], timeout_ms=10_000), 7).topics[0].error_code
            assert [where for where, _, _ in lies_in(client, name)] == [paths[0]]


def test_what_was_deleted_stays_deleted(tmp_path: Path) -> None:
    """After a clean stop, and after a kill when log-start-offset-checkpoint was written."""
    settings = {"replica.high.watermark.checkpoint.interval.ms": "100"}
    checkpoint = tmp_path / "log-start-offset-checkpoint"
    with Broker(data_dir=tmp_path, settings=settings) as broker, RawClient(broker.bootstrap) as client:
        client.ask(CreateTopicsRequest(topics=[topic("plain")], timeout_ms=10_000), 7)
        for _ in range(BATCHES):
            assert produce(client, "plain") == E.NONE
        assert delete(client, "plain", 0, 4) == (4, E.NONE)
    with Broker(data_dir=tmp_path, settings=settings) as broker, RawClient(broker.bootstrap) as client:
        assert (earliest(client, "plain"), fetch(client, 3), fetch(client, 4)) == (4, E.OFFSET_OUT_OF_RANGE, E.NONE)
        assert delete(client, "plain", 0, 7) == (7, E.NONE)
        until(lambda: "plain 0 7" in checkpoint.read_text(), "the checkpoint is written")
        os.kill(broker.pid, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{broker.pid}/cmdline").read_bytes(), "the broker is dead")
    with Broker(data_dir=tmp_path, settings=settings) as broker, RawClient(broker.bootstrap) as client:
        assert (earliest(client, "plain"), fetch(client, 6), fetch(client, 7)) == (7, E.OFFSET_OUT_OF_RANGE, E.NONE)


def test_clients_delete_records(kafka_broker, kafka_topic) -> None:
    """kafka-python's admin client, and confluent-kafka's."""
    bootstrap = kafka_broker.bootstrap
    produce_kafka_python(bootstrap, kafka_topic, [Sent(None, b"x") for _ in range(5)], "none")
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    deleted = admin.delete_records({TopicPartition(kafka_topic, 0): 2})
    assert next(iter(deleted.values()))["low_watermark"] == 2
    admin.close()
    wanted = confluent_kafka.TopicPartition(kafka_topic, 0, confluent_kafka.OFFSET_END)
    librdkafka = AdminClient({"bootstrap.servers": bootstrap})
    (future,) = librdkafka.delete_records([wanted]).values()
    assert future.result(30).low_watermark == 5
