"""DeleteRecords, DescribeLogDirs, AlterReplicaLogDirs: this broker and Apache Kafka answer and act alike."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from barnabas import Broker
from protocol.errors import ErrorCode
from protocol.messages.admin import CreateTopicsRequest
from protocol.messages.logs import AlterReplicaLogDirsRequest, DescribeLogDirsRequest
from tests.conformance.brokers import EARLIEST, KAFKA, alter_configs, append, delete_records, fetched, offset_at
from tests.support.batches import batch
from tests.support.config_cases import BROKER, DELETE_SETTING, SET
from tests.support.follower_harness import BOTH
from tests.support.kafka import ApacheKafka, needs_kafka
from tests.support.loading import create, topic
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.timestamps import RECENT_MS
from tests.support.waiting import until

E = ErrorCode
POLICIES = {"plain": "delete", "compacted": "compact", "both": "compact,delete", "free": "delete"}
BATCHES = 10


@pytest.fixture(scope="module", params=BOTH)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawClient]:
    """One broker with two log directories, and topics of ten batches each."""
    path = tmp_path_factory.mktemp(request.param)
    directories = f"{path / 'a'},{path / 'b'}"
    started: Any = None
    if request.param == KAFKA:
        started = ApacheKafka({"log.dirs": directories}, data_dir=path / "a")
    with started or Broker(data_dir=directories) as broker, RawClient(broker.bootstrap) as client:
        for name, policy in POLICIES.items():
            create(client, name, cleanup_policy=policy)
        for name in POLICIES:
            for _ in range(BATCHES):
                until(partial(is_produced, client, name), f"{name} takes records")
        yield client


def produce(client: RawClient, name: str) -> int:
    return int(append(client, name, bytes(batch(RECENT_MS, 1))).error_code)


def is_produced(client: RawClient, name: str) -> bool:
    return produce(client, name) == E.NONE


def delete(client: RawClient, name: str, index: int, offset: int) -> tuple[int, ErrorCode]:
    """DeleteRecords; low watermark and error code."""
    row = delete_records(client, name, offset, index)
    return row.low_watermark, ErrorCode(row.error_code)


def test_records_are_deleted_or_not_as_in_kafka(client: RawClient) -> None:
    """Step by step on one partition, and the errors."""
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
    assert [(query, delete(client, *query)) for query, _ in steps] == steps
    assert [fetch(client, offset) for offset in (0, 3, 4)] == [E.OFFSET_OUT_OF_RANGE, E.OFFSET_OUT_OF_RANGE, E.NONE]
    assert earliest(client, "plain") == 4
    assert delete(client, "plain", 0, -1) == (BATCHES, E.NONE)
    assert earliest(client, "plain") == BATCHES


def fetch(client: RawClient, offset: int) -> int:
    return int(fetched(client, "plain", offset).error_code)


def earliest(client: RawClient, name: str) -> int:
    return int(offset_at(client, name, EARLIEST).offset)


def test_directories_are_described_as_in_kafka(client: RawClient) -> None:
    """All partitions, some, none; exact sizes."""
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
    partitions = [{"topic": "free", "partitions": [0, 7]}, {"topic": "no", "partitions": [0]}]
    some = message(DescribeLogDirsRequest, topics=partitions)
    for version in range(1, 6):
        response = client.ask(some, version).results
        assert [(t.name, len(t.partitions)) for r in response for t in r.topics] == [("free", 1)]
        assert [[t.name for t in r.topics] for r in client.ask(DescribeLogDirsRequest(topics=[]), version).results] == [
            [], []
        ]  # fmt: skip


def replicas_in_dirs(client: RawClient, name: str) -> list[tuple[str, int, bool]]:
    """(directory, size, is future replica) of each log of a partition."""
    query = message(DescribeLogDirsRequest, topics=[{"topic": name, "partitions": [0]}])
    return [
        (result.log_dir, log.partition_size, log.is_future_key)
        for result in client.ask(query, 5).results
        for response in result.topics
        for log in response.partitions
    ]


def alter(client: RawClient, name: str, index: int, path: str, version: int = 2) -> ErrorCode:
    """AlterReplicaLogDirs; the error code."""
    request = message(
        AlterReplicaLogDirsRequest, dirs=[{"path": path, "topics": [{"name": name, "partitions": [index]}]}]
    )
    (response,) = client.ask(request, version).results
    (row,) = response.partitions
    assert (response.topic_name, row.partition_index) == (name, index)
    return ErrorCode(row.error_code)


def test_replicas_are_moved_as_in_kafka(client: RawClient) -> None:
    """Errors; there and back with all data during appends; the directory of a topic that does not exist yet."""
    paths = [result.log_dir for result in client.ask(DescribeLogDirsRequest(topics=[]), 5).results]
    assert alter(client, "free", 0, "/nowhere") == E.LOG_DIR_NOT_FOUND
    assert alter(client, "free", 7, paths[0]) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert alter(client, "n" * 213, 0, paths[0]) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert alter(client, "n" * 214, 0, paths[0]) == E.INVALID_TOPIC_EXCEPTION
    written = BATCHES
    for version in (1, 2):
        ((here, _, _),) = replicas_in_dirs(client, "free")
        (there,) = set(paths) - {here}
        assert alter(client, "free", 0, here, version) == E.NONE
        assert alter(client, "free", 0, there, version) == E.NONE
        for _ in range(20):
            assert produce(client, "free") == E.NONE
            written += 1
        wanted = [(there, len(batch(RECENT_MS, 1)) * written, False)]
        until(partial(are_replicas, client, "free", wanted), "it is moved")
    assert earliest(client, "free") == 0
    for number, path in enumerate(paths):
        name = f"to-come-{number}"
        assert alter(client, name, 0, path) == E.UNKNOWN_TOPIC_OR_PARTITION
        create(client, name)
        until(partial(is_produced, client, name), "it takes records")
        assert [where for where, _, _ in replicas_in_dirs(client, name)] == [path]


def are_replicas(client: RawClient, name: str, wanted: list[tuple[str, int, bool]]) -> bool:
    return replicas_in_dirs(client, name) == wanted


def cordon(client: RawClient, value: str | None) -> list[tuple[str, bool]]:
    """Sets cordoned.log.dirs; the directories and whether they are cordoned."""
    change = ("cordoned.log.dirs", DELETE_SETTING if value is None else SET, value)
    alter_configs(client, BROKER, "1", change)
    return sorted(
        (result.log_dir, result.is_cordoned) for result in client.ask(DescribeLogDirsRequest(topics=[]), 5).results
    )


def code_of_creation(client: RawClient, name: str) -> int:
    answer = client.ask(CreateTopicsRequest(topics=[topic(name)], timeout_ms=10_000), 7)
    return int(answer.topics[0].error_code)


def test_cordoned_directories_take_no_new_replicas(client: RawClient) -> None:
    """KIP-1066, dynamically: they get neither new partitions nor moves; existing replicas stay."""
    first, second = sorted(result.log_dir for result in client.ask(DescribeLogDirsRequest(topics=[]), 5).results)

    def until_cordoned(value: str | None, *paths: str) -> None:
        wanted = [(path, path in paths) for path in (first, second)]
        until(lambda: cordon(client, value) == wanted, f"{paths} are cordoned")

    until_cordoned(second, second)
    for number in range(4):
        name = f"beside-{number}"
        create(client, name)
        until(partial(is_produced, client, name), "it takes records")
        assert [where for where, _, _ in replicas_in_dirs(client, name)] == [first]
    for name in ("beside-0", "absent"):
        assert alter(client, name, 0, second) == E.INVALID_REPLICA_ASSIGNMENT
    until_cordoned("*", first, second)
    assert code_of_creation(client, "nowhere") == E.INVALID_REPLICATION_FACTOR
    assert produce(client, "beside-0") == E.NONE
    until_cordoned(None)
    create(client, "anywhere")
    assert alter(client, "beside-0", 0, second) == E.NONE
    until(
        lambda: [where for where, _, copy in replicas_in_dirs(client, "beside-0") if not copy] == [second],
        "it is moved",
    )


@needs_kafka
@pytest.mark.long
def test_no_more_of_a_deletion_is_undone_by_a_kill_than_in_kafka(tmp_path: Path) -> None:
    """Kafka forgets a deletion within a segment since the last checkpoint, up to a minute ago."""
    with ApacheKafka(data_dir=tmp_path) as kafka, RawClient(kafka.bootstrap) as client:
        create(client, "plain")
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
        assert code_of_creation(client, "none") == E.INVALID_REPLICATION_FACTOR
        until(lambda: cordon(client, paths[1]) == [(paths[0], False), (paths[1], True)], "one is free")
    with Broker(data_dir=",".join(paths), settings=settings) as broker, RawClient(broker.bootstrap) as client:
        for name in "xyz":
            create(client, name)
            assert [where for where, _, _ in replicas_in_dirs(client, name)] == [paths[0]]


def test_deleted_records_stay_deleted(tmp_path: Path) -> None:
    """After a clean shutdown, and after a kill once log-start-offset-checkpoint is written."""
    settings = {"replica.high.watermark.checkpoint.interval.ms": "100"}
    checkpoint = tmp_path / "log-start-offset-checkpoint"
    with Broker(data_dir=tmp_path, settings=settings) as broker, RawClient(broker.bootstrap) as client:
        create(client, "plain")
        for _ in range(BATCHES):
            assert produce(client, "plain") == E.NONE
        assert delete(client, "plain", 0, 4) == (4, E.NONE)
    with Broker(data_dir=tmp_path, settings=settings) as broker, RawClient(broker.bootstrap) as client:
        assert (earliest(client, "plain"), fetch(client, 3), fetch(client, 4)) == (4, E.OFFSET_OUT_OF_RANGE, E.NONE)
        assert delete(client, "plain", 0, 7) == (7, E.NONE)
        until(lambda: "plain 0 7" in checkpoint.read_text(), "the checkpoint is written")
        broker.kill()
    with Broker(data_dir=tmp_path, settings=settings) as broker, RawClient(broker.bootstrap) as client:
        assert (earliest(client, "plain"), fetch(client, 6), fetch(client, 7)) == (7, E.OFFSET_OUT_OF_RANGE, E.NONE)
