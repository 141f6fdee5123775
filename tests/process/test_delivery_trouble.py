"""Schedule topics whose target or source changes, and records that are unusual or that the target refuses."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)
from kafka import KafkaProducer

from barnabas import Broker
from tests.support.kafka import needs_kafka
from tests.support.kafka_tools import run_in_own_jvm
from tests.support.librdkafka import create_topic, read_to_end
from tests.support.waiting import until

SOON = [("deliver-after", b"100")]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


class Pair:
    """A schedule topic and its target."""

    def __init__(self, broker: Broker, name: str, **target: Any) -> None:
        self.bootstrap = broker.bootstrap
        self.target, self.schedule = f"{name}-target", name
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        create_topic(self.bootstrap, self.target, **target)
        self.create_schedule()

    def create_schedule(self) -> None:
        create_topic(self.bootstrap, self.schedule, barnabas_deliver_to=self.target)

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(30)
        until(lambda: topic not in self.admin.list_topics(timeout=30).topics, "the topic is deleted")

    def write(self, *values: bytes, headers: list[tuple[str, bytes]] = SOON, **settings: object) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, **settings})
        for value in values:
            producer.produce(self.schedule, value, headers=headers)  # type: ignore[arg-type]
        assert producer.flush(30) == 0

    def delivered(self) -> list[bytes]:
        return sorted(message.value() or b"" for message in read_to_end(self.bootstrap, self.target, "read_committed"))

    def expect(self, *values: bytes) -> None:
        """Exactly these are delivered, in the end."""
        until(lambda: len(self.delivered()) >= len(values), f"{values} are delivered")
        assert self.delivered() == sorted(values)


def test_a_target_that_is_deleted_is_waited_for(broker: Broker) -> None:
    pair = Pair(broker, "deleted")
    pair.write(b"1")
    pair.expect(b"1")
    pair.delete(pair.target)
    pair.write(b"2", b"3")
    until(lambda: "the target topic deleted-target does not exist" in broker.log(), "the delivery is interrupted")
    create_topic(pair.bootstrap, pair.target, 3)
    pair.expect(b"2", b"3")


def test_a_schedule_topic_that_is_created_again_starts_without_progress(broker: Broker) -> None:
    pair = Pair(broker, "again")
    pair.write(b"1")
    pair.write(b"never", headers=[("deliver-after", b"3000")])
    pair.expect(b"1")
    pair.delete(pair.schedule)
    pair.create_schedule()
    pair.write(b"2", b"3")
    pair.expect(b"1", b"2", b"3")


def test_a_target_may_get_more_partitions(broker: Broker) -> None:
    pair = Pair(broker, "grown")
    pair.write(b"0")
    pair.expect(b"0")
    pair.admin.create_partitions([NewPartitions(pair.target, 4)])[pair.target].result(30)
    for number in range(1, 9):  # each is a transaction, whose keyless records go to the next partition
        pair.write(b"%d" % number)
        pair.expect(*(b"%d" % done for done in range(number + 1)))
    assert {one.partition() for one in read_to_end(pair.bootstrap, pair.target, "read_committed")} == {0, 1, 2, 3}


def test_a_record_that_is_too_large_for_the_target_is_skipped(broker: Broker) -> None:
    pair = Pair(broker, "large", max_message_bytes="2000")
    pair.write(*(b"%d" % number for number in range(20)), os.urandom(3_000), b"last")
    pair.expect(*(b"%d" % number for number in range(20)), b"last")
    assert "large-target refuses the record at large-0, offset 20, which is skipped: MESSAGE_TOO_LARGE" in broker.log()


def test_aborted_records_are_not_delivered_and_compressed_ones_are(broker: Broker) -> None:
    pair = Pair(broker, "unusual")
    for number, codec in enumerate(("gzip", "snappy", "lz4", "zstd")):
        producer = Producer(
            {"bootstrap.servers": pair.bootstrap, "transactional.id": f"unusual-{codec}", "compression.type": codec}
        )
        producer.init_transactions(30)
        for value, end in (
            (b"aborted", producer.abort_transaction),
            (b"%d" % number * 100, producer.commit_transaction),
        ):
            producer.begin_transaction()
            producer.produce(pair.schedule, value, headers=SOON)  # type: ignore[arg-type]
            producer.flush(30)
            end(30)
    pair.expect(*(b"%d" % number * 100 for number in range(4)))


def test_one_request_cannot_make_schedule_topics_of_each_other(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for topic in ("round", "about"):
        create_topic(broker.bootstrap, topic)
    resources = [_with_target("round", "about"), _with_target("about", "round")]
    first, second = admin.incremental_alter_configs(resources).values()
    first.result(30)
    with pytest.raises(KafkaException, match="the target is a schedule topic itself"):
        second.result(30)


def _with_target(topic: str, target: str) -> ConfigResource:
    entry = ConfigEntry("barnabas.deliver.to", target, incremental_operation=AlterConfigOpType.SET)
    return ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])


def test_a_compressible_record_that_is_larger_than_the_target_allows_is_delivered(broker: Broker) -> None:
    pair = Pair(broker, "compressible", max_message_bytes="2000")
    value = b"much the same text " * 500
    pair.write(b"1", value, b"2", headers=SOON, **{"compression.type": "zstd"})
    pair.expect(b"1", value, b"2")


def test_a_record_whose_time_has_passed_is_delivered_at_once(broker: Broker) -> None:
    pair = Pair(broker, "past")
    pair.write(b"1", headers=[("deliver-at", b"0")])
    pair.write(b"2", headers=[("deliver-at", (1_000).to_bytes(8, "big"))])
    pair.expect(b"1", b"2")


def test_a_pure_python_client_schedules_and_receives(broker: Broker) -> None:
    pair = Pair(broker, "python")
    producer = KafkaProducer(bootstrap_servers=pair.bootstrap)
    due = int(time.time() * 1000) + 100
    producer.send(pair.schedule, b"1", key=b"k", headers=[("deliver-at", b"%d" % due)]).get(30)
    producer.close()
    pair.expect(b"1")


@needs_kafka
@pytest.mark.long
def test_javas_console_producer_schedules(broker: Broker) -> None:
    pair = Pair(broker, "java")
    outcome = run_in_own_jvm(
        "org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", pair.bootstrap, "--topic", pair.schedule,
        "--reader-property", "parse.headers=true", stdin="deliver-after:200\t1\n",
    )  # fmt: skip
    assert outcome.code == 0, outcome
    pair.expect(b"1")
