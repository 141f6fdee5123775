"""One of several log directories fails under a running broker, as under Apache Kafka (test_apache_kafka_does_the_same)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from barnabas.embedded import Broker, BrokerError
from protocol.messages.admin import DeleteTopicsRequest
from tests.process.failing import (
    FAILING,
    FIRST,
    PARTITIONS,
    THIRD,
    TOPIC,
    FailingClient,
    PartitionStatus,
    directories,
)
from tests.support.faulty_directory import FaultyDirectory, why_fuse_is_unavailable
from tests.support.kafka import ApacheKafka, needs_kafka
from tests.support.loading import create
from tests.support.raw_client import RawClient
from tests.support.waiting import until

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(why_fuse_is_unavailable() is not None, reason=why_fuse_is_unavailable() or "it can be made"),
]

OFFLINE = PartitionStatus(
    "LEADER_NOT_AVAILABLE",
    -1,
    [],
    [1],
    ("NONE", -1, [], [1], [1], [1]),
    "KAFKA_STORAGE_ERROR",
    "KAFKA_STORAGE_ERROR",
)
SERVED = PartitionStatus("NONE", 1, [1], [], ("NONE", 1, [1], [], [], []), "NONE", "NONE")
ON = {"log.flush.interval.messages": 1, "auto.create.topics.enable": "false"}
STORAGE_ERROR: tuple[str, list[int]] = ("KAFKA_STORAGE_ERROR", [])


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FaultyDirectory]:
    with FaultyDirectory(tmp_path / "backing", tmp_path / FAILING) as disk:
        yield disk


def broker_on(home: Path, **more: object) -> Broker:
    return Broker(",".join(map(str, directories(home))), settings={**ON, **more})


def create_topics(client: RawClient, failing: FailingClient) -> list[int]:
    """Creates a topic with records in all partitions; returns those that will fail."""
    create(client, TOPIC, partitions=PARTITIONS)
    create(client, "doomed", partitions=PARTITIONS)
    for index in range(PARTITIONS):
        until(partial(is_written, client, failing, index), "it has a leader")
    failed = failing.log_dirs(client)[FAILING][1]
    assert 0 < len(failed) < PARTITIONS
    return failed


def is_written(client: RawClient, failing: FailingClient, index: int) -> bool:
    return failing.write(client, index) == "NONE"


def tables(failed: list[int]) -> dict[int, PartitionStatus]:
    return {index: OFFLINE if index in failed else SERVED for index in range(PARTITIONS)}


def use_directory(
    kind: str,
    broker: Broker | ApacheKafka,
    client: RawClient,
    failing: FailingClient,
    disk: FaultyDirectory,
    index: int,
) -> None:
    """Makes the broker use the failing directory."""
    if kind == "read":
        disk.forget_cache()
        with (
            RawClient(broker.bootstrap) as other,
            suppress(ConnectionError, EOFError),
        ):  # as in Kafka
            failing.fetch(other, index)
    elif kind == "rename":
        client.ask(DeleteTopicsRequest(topic_names=["doomed"], timeout_ms=10_000), 5)
    elif kind != "list":
        assert failing.write(client, index) == "KAFKA_STORAGE_ERROR"


def wait_until_offline(client: RawClient, failing: FailingClient, failed: list[int]) -> None:
    until(lambda: failing.log_dirs(client)[FAILING] == STORAGE_ERROR, "the directory is offline")
    until(lambda: failing.table(client) == tables(failed), "all requests report it")


def check_served(broker: Broker, failing: FailingClient) -> None:
    with RawClient(broker.bootstrap) as client:
        until(lambda: failing.table(client) == tables([]), "every partition is served again")
        failing.check_no_loss(client)


@pytest.mark.parametrize("kind", ["write", "sync", "read", "rename", "list", "everything"])
def test_a_failed_directory_goes_offline_alone_and_loses_nothing(
    kind: str, tmp_path: Path, disk: FaultyDirectory
) -> None:
    failing = FailingClient()
    with broker_on(tmp_path) as broker:
        with RawClient(broker.bootstrap) as client:
            failed = create_topics(client, failing)
            disk.fail(kind)
            use_directory(kind, broker, client, failing, disk, failed[0])
            wait_until_offline(client, failing, failed)
            assert broker.log().count(f"{tmp_path / FAILING} is offline") == 1
        if kind in ("write", "everything"):
            broker.restart()
            with RawClient(broker.bootstrap) as client:
                use_directory(kind, broker, client, failing, disk, failed[0])
                wait_until_offline(client, failing, failed)
                create(client, "new", partitions=2)
                until(
                    lambda: FailingClient("new", 2).table(client) == dict.fromkeys(range(2), SERVED),
                    "others are served",
                )
        disk.fail()
        disk.forget_cache()
        broker.restart()
        check_served(broker, failing)
        assert "Traceback" not in broker.log()


def test_an_unmounted_directory_goes_offline_and_its_replicas_are_not_created_again(
    tmp_path: Path, disk: FaultyDirectory
) -> None:
    failing = FailingClient()
    quickly = {"replica.high.watermark.checkpoint.interval.ms": 300}
    with broker_on(tmp_path, **quickly) as broker:
        with RawClient(broker.bootstrap) as client:
            failed = create_topics(client, failing)
            disk.unmount()
            wait_until_offline(client, failing, failed)
            assert list((tmp_path / FAILING).iterdir()) == []
        broker.restart()
        with RawClient(broker.bootstrap) as client:
            until(lambda: failing.table(client) == tables(failed), "all requests report it")
            assert failing.log_dirs(client)[FAILING] == ("NONE", [])
        assert "4 partitions are in log directories that this node does not have: doomed-" in broker.log()
        broker.stop()
        shutil.rmtree(tmp_path / FAILING)
        shutil.copytree(tmp_path / "backing", tmp_path / FAILING)
        broker.start()
        check_served(broker, failing)


def test_a_directory_replaced_by_another_clusters_is_not_written_to(tmp_path: Path) -> None:
    with Broker(tmp_path / "other"):
        pass
    failing = FailingClient()
    with broker_on(tmp_path, **{"replica.high.watermark.checkpoint.interval.ms": 300}) as broker:
        with RawClient(broker.bootstrap) as client:
            failed = create_topics(client, failing)
            (tmp_path / FAILING).rename(tmp_path / "away")
            (tmp_path / "other").rename(tmp_path / FAILING)
            before = sorted((tmp_path / FAILING).rglob("*"))
            wait_until_offline(client, failing, failed)
        broker.stop()
        assert sorted((tmp_path / FAILING).rglob("*")) == before
        with pytest.raises(BrokerError, match="belong to different clusters"):
            broker.start()
        (tmp_path / FAILING).rename(tmp_path / "other")
        (tmp_path / "away").rename(tmp_path / FAILING)
        broker.start()
        check_served(broker, failing)


@pytest.mark.parametrize("only", [True, False])
def test_a_failed_metadata_directory_ends_the_broker(only: bool, tmp_path: Path) -> None:
    with FaultyDirectory(tmp_path / "backing", tmp_path / FIRST) as disk:
        paths = [str(tmp_path / FIRST)] if only else list(map(str, directories(tmp_path)))
        with Broker(",".join(paths), settings=ON) as broker:
            failing = FailingClient()
            with RawClient(broker.bootstrap) as client:
                create(client, TOPIC, partitions=PARTITIONS)
                index = failing.log_dirs(client)[FIRST][1][0]
                assert failing.write(client, index) == "NONE"
                disk.fail("sync")
                with pytest.raises((EOFError, ConnectionError)):
                    until(lambda: failing.write(client, index) == "NONE", "never")
            until(lambda: not broker.is_running, "it ends")
            sentence = broker.log().splitlines()[-1]
            assert sentence.startswith("barnabas: ")
            assert "Input/output error" in sentence
            with pytest.raises(BrokerError, match="The broker ended with 1"):
                broker.stop()
            disk.fail("everything")
            disk.forget_cache()
            with pytest.raises(BrokerError, match="Input/output error"):
                broker.start()
            disk.fail()
            disk.forget_cache()
            broker.start()
            with RawClient(broker.bootstrap) as client:
                failing.check_no_loss(client)


@needs_kafka
def test_apache_kafka_does_the_same(tmp_path: Path, disk: FaultyDirectory) -> None:
    paths = directories(tmp_path)
    failing = FailingClient()
    with ApacheKafka({**ON, "log.dirs": ",".join(map(str, paths))}, data_dir=paths[0]) as kafka:
        with RawClient(kafka.bootstrap) as client:
            failed = create_topics(client, failing)
            until(lambda: failing.table(client) == tables([]), "it is ready")
            disk.fail("sync")
            use_directory("sync", kafka, client, failing, disk, failed[0])
            wait_until_offline(client, failing, failed)
            assert failing.log_dirs(client)[THIRD][0] == "NONE"
        kafka.kill()
