"""A disk that is full for a while, under load: clear errors, no acknowledged record is lost, work continues afterwards.

FULL_DISK_SECONDS=60 keeps it full for a minute.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic, ResourceType

from barnabas.cluster import free_ports
from barnabas.embedded import Broker, BrokerError
from tests.cli.running import Verbs
from tests.process.acknowledged_state import name_of
from tests.process.killing import Run
from tests.support.librdkafka import create_topic, produce, read_to_end, set_configs
from tests.support.loading import append_one
from tests.support.raw_client import RawClient
from tests.support.seeds import seed_of
from tests.support.waiting import until

SECONDS = float(os.environ.get("FULL_DISK_SECONDS", "3"))
SIZE = "48m"
MANY = 100

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root"), pytest.mark.long]


def mount(*arguments: str | Path) -> None:
    """Mounts a tmpfs; skips if that is not possible."""
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount("-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", tmp_path)
    yield tmp_path
    subprocess.run(["umount", "--lazy", tmp_path], check=True)


def fill(disk: Path) -> Path:
    """A file that takes all space."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue
    return filler


@pytest.mark.smoke
def test_a_full_disk_refuses_appends_serves_reads_and_recovers_by_itself(small_disk: Path) -> None:
    seed = seed_of()
    print(f"seed {seed}")
    run = Run(small_disk, seed)
    broker = run.broker
    try:
        run.prepare()
        writers = run.memory.ledgers["plain", 0].acknowledged
        until(lambda: len(writers) > MANY, "records are written")
        filler = fill(small_disk)
        until(lambda: "is full: appends are rejected until space is freed" in broker.log(), "the log reports it")
        run.clients[0].over.wait(SECONDS)
        with RawClient(broker.bootstrap) as client:
            assert append_one(client, "plain", 0, b"refused") == "KAFKA_STORAGE_ERROR"
        assert broker.is_running
        assert len(read_some(broker.bootstrap)) == MANY
        filler.unlink()
        until(lambda: "has space again" in broker.log(), "the log reports it")
        before = len(writers)
        until(lambda: len(writers) > before + 100, "records are written")
        create_topic(broker.bootstrap, "afterwards")
        run.end(with_kafka=False)
        broker.start()
        run.look(is_thorough=True)
    except BaseException:
        print(*[line for line in broker.log().splitlines() if " INFO " not in line], sep="\n")
        raise
    finally:
        for started in run.clients:
            started.over.set()
        broker.close()


@pytest.mark.parametrize("by", ["retention", "deletion"])
def test_deletions_run_while_writes_wait_for_space(
    by: str, small_disk: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = {
        "metadata.log.dir": tmp_path_factory.mktemp("metadata"),
        "log.retention.check.interval.ms": 200,
        "log.segment.delete.delay.ms": 0,
        "log.segment.bytes": 1_048_576,
        "log.flush.interval.ms": 200,
    }
    with Broker(small_disk / "data", settings=settings) as broker:
        quick = {"batch.size": 200_000, "retry.backoff.max.ms": 100}
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, **quick})
        delivered: list[Any] = []
        refused: list[object] = []

        def note(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
            (delivered.append(message.offset()) if error is None else refused.append(error))

        keys = itertools.count()

        def write(count: int) -> None:
            for number in itertools.islice(keys, count):
                producer.produce("t", os.urandom(100_000), str(number), 0, on_delivery=note)

        def is_full() -> bool:
            """Writes on until the files that a commit log has created ahead are full too."""
            if producer.poll(0.05) and len(producer) == 0:
                write(10)
            return "is full: appends are rejected" in broker.log()

        write(60)
        assert producer.flush(30) == 0
        fill(small_disk)
        write(20)
        until(is_full, "the log reports it")
        if by == "retention":
            set_configs(broker.bootstrap, ResourceType.TOPIC, "t", {"retention.bytes": "2097152"})
        else:
            delete_before(broker.bootstrap, 40)
        assert producer.flush(90) == 0
        assert "has space again" in broker.log()
        assert refused == []
        assert sorted(delivered) == list(range(next(keys)))


def test_other_requests_time_out_on_a_full_disk_and_succeed_later(small_disk: Path) -> None:
    with Broker(small_disk / "data", settings={"offsets.commit.timeout.ms": 500}) as broker:
        bootstrap = broker.bootstrap
        produce(bootstrap, "t", [b"x" * 1000] * 10)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
        offset_3 = confluent_kafka.TopicPartition("t", 0, 3)
        consumer.commit(offsets=[offset_3], asynchronous=False)
        filler = fill(small_disk)
        offset_3.offset = 4
        errors: list[str] = []
        while "is full" not in broker.log():
            errors.append(error_name(lambda: consumer.commit(offsets=[offset_3], asynchronous=False)))
        errors.append(error_name(lambda: consumer.commit(offsets=[offset_3], asynchronous=False)))
        assert errors[-1] == "COORDINATOR_NOT_AVAILABLE"
        last = create_topics_until_the_disk_is_full(admin)
        delete_before(bootstrap, 5)
        filler.unlink()
        until(lambda: "has space again" in broker.log(), "the log reports it")
        consumer.commit(offsets=[offset_3], asynchronous=False)
        assert consumer.committed([offset_3], timeout=60)[0].offset == 4
        until(lambda: last in admin.list_topics(timeout=60).topics, "the topic is created")
        consumer.close()


def create_topics_until_the_disk_is_full(admin: AdminClient) -> str:
    """Topics are created while their records fit into the last block of the metadata log; the name of the one that waits."""
    for number in range(100):
        name = f"{number}".zfill(200)
        created = admin.create_topics([NewTopic(name, 1)], operation_timeout=1, request_timeout=5)[name]
        if error := error_name(created.result):
            assert error == "REQUEST_TIMED_OUT", "after its timeout of one second"
            return name
    raise AssertionError("the disk does not become full")


def test_metrics_and_verbs_tell_of_a_full_disk(small_disk: Path) -> None:
    (port,) = free_ports(1)
    with Broker(small_disk / "data", settings={"barnabas.metrics.listener": f"HTTP://127.0.0.1:{port}"}) as broker:

        def shown(name: str) -> float:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
                page = answer.read().decode()
            found = re.search(
                rf'^barnabas_log_directory_{name}{{directory="{small_disk}/data"}} (\d+)$', page, re.MULTILINE
            )
            assert found is not None
            return int(found[1])

        produce(broker.bootstrap, "t", [b"x"])
        assert shown("total_bytes") == 48 << 20
        assert shown("free_bytes") > 1 << 20
        assert shown("full") == 0
        filler = fill(small_disk)
        with RawClient(broker.bootstrap) as client:
            # The append that finds the disk full waits for space, until its timeout; those after it are rejected.
            until(lambda: append_one(client, "t", 0, b"x" * 100_000, 500) == "KAFKA_STORAGE_ERROR", "the disk is full")
        assert shown("full") == 1
        assert shown("free_bytes") < 1 << 20
        with mock.patch("barnabas.client.record_writer.PATIENCE_S", 1):
            sentence = Verbs(broker.bootstrap).refused(f"produce t -l --acks 1 -i {__file__}")
        assert "the leader's disk has failed or is full" in sentence
        filler.unlink()
        until(lambda: shown("full") == 0, "the disk has space again")


def delete_before(bootstrap: str, offset: int) -> None:
    """Deletes the records of a partition below an offset."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (deleted,) = admin.delete_records([confluent_kafka.TopicPartition("t", 0, offset)]).values()
    assert deleted.result(20).low_watermark == offset


def error_name(ask: Callable[[], object]) -> str:
    """The error's name, or ""."""
    try:
        ask()
    except confluent_kafka.KafkaException as error:
        return str(error.args[0].name())
    return ""


def read_some(bootstrap: str) -> list[tuple[str, int]]:
    """The names of a partition's records in one segment."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "check.crcs": True, "enable.auto.commit": False}
    )  # a commit would wait for space
    consumer.assign([confluent_kafka.TopicPartition("plain", 0, 0)])
    messages: list[Any] = consumer.consume(MANY, 20)
    found = [name_of(message.value()) for message in messages]
    consumer.close()
    return found


@pytest.mark.smoke
def test_a_start_on_a_full_disk_is_a_sentence(small_disk: Path) -> None:
    filler = fill(small_disk)
    broker = Broker(small_disk / "data")
    with pytest.raises(BrokerError, match="No space left on device"):
        broker.start()
    assert "Traceback" not in broker.log()
    filler.unlink()
    with broker:
        produce(broker.bootstrap, "t", [b"x"])


def test_a_broker_that_finds_its_disk_full_when_it_stops_ends_with_a_sentence(small_disk: Path) -> None:
    with Broker(small_disk / "data") as broker:
        produce(broker.bootstrap, "t", [b"x"])
        filler = fill(small_disk)
        with pytest.raises(BrokerError, match=r"the metadata log was not closed: .* No space left on device"):
            broker.stop()
        assert "Traceback" not in broker.log()
        filler.unlink()
        broker.start()
        assert len(read_to_end(broker.bootstrap, "t")) == 1


def test_a_broker_with_a_full_disk_stops_without_waiting_for_space(small_disk: Path) -> None:
    with Broker(small_disk / "data") as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
        producer.produce("t", b"x" * 1000)
        assert producer.flush(20) == 0
        filler = fill(small_disk)
        producer.produce("t", b"y" * 100_000)
        until(lambda: producer.poll(0) or "is full" in broker.log(), "the log reports it")
        with pytest.raises(BrokerError, match="No space left on device"):
            broker.stop()
        assert "Traceback" not in broker.log()
        filler.unlink()
        broker.start()
        assert producer.flush(20) == 0
