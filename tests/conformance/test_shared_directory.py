"""One data directory, served in turn by Barnabas and by Apache Kafka (design D1)."""

from __future__ import annotations

import re
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # they are its public names
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from barnabas import Broker
from tests.support.kafka import ApacheKafka, needs_kafka, run_tool
from tests.support.waiting import until

TOPIC = "shared"
RECORDS = 500
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "5"}
WAIT_S = 30


class Visit:
    """What one broker finds on the directory, and what it leaves."""

    def __init__(self, bootstrap: str, number: int) -> None:
        self.bootstrap: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap}
        self.number = number
        self.admin = AdminClient(self.bootstrap)

    def create(self) -> None:
        """The topic, by whoever comes first."""
        made = self.admin.create_topics([NewTopic(TOPIC, 2, config={"retention.ms": "-1", "segment.bytes": "1048576"})])
        made[TOPIC].result(WAIT_S)

    def produce(self) -> None:
        """Records of an idempotent producer: it needs ids that nobody else was given."""
        producer = Producer({**self.bootstrap, "enable.idempotence": True, "compression.type": "lz4"})
        for index in range(RECORDS):
            producer.produce(TOPIC, value=f"{self.number}-{index}", partition=index % 2)
        assert producer.flush(WAIT_S) == 0

    def consume(self) -> None:
        """All records of all visits, in order; then commit where they end."""
        consumer = Consumer({**self.bootstrap, "group.id": "visitors", "enable.auto.commit": False})
        partitions = [TopicPartition(TOPIC, partition, 0) for partition in (0, 1)]
        before = [committed.offset for committed in consumer.committed(partitions, WAIT_S)]
        assert before == [RECORDS // 2 * self.number or -1001] * 2, "what the visit before had committed"
        consumer.assign(partitions)
        found: dict[int | None, list[bytes | None]] = {0: [], 1: []}
        deadline = time.monotonic() + WAIT_S
        while sum(map(len, found.values())) < RECORDS * (self.number + 1) and time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                found[message.partition()].append(message.value())
        for partition in (0, 1):
            visits = range(self.number + 1)
            assert found[partition] == [f"{v}-{i}".encode() for v in visits for i in range(partition, RECORDS, 2)]
        ends = [TopicPartition(TOPIC, partition, len(found[partition])) for partition in (0, 1)]
        consumer.commit(offsets=ends, asynchronous=False)
        consumer.close()

    def check_settings(self) -> None:
        """The topic's settings travel in the metadata log."""
        name = ConfigResource(ResourceType.TOPIC, TOPIC)
        found = self.admin.describe_configs([name])[name].result(WAIT_S)
        assert (found["retention.ms"].value, found["segment.bytes"].value) == ("-1", "1048576")


@needs_kafka
def test_each_broker_goes_on_where_the_other_ended(tmp_path: Path) -> None:
    """Topics, settings, leaders, records, producer ids and committed offsets, over two changes of hands."""
    directory = tmp_path / "data"
    for number in range(3):
        if number % 2:
            with ApacheKafka(data_dir=directory) as broker:
                _visit(broker.bootstrap, number)
        else:
            with Broker(data_dir=directory, settings=SETTINGS) as ours:
                _visit(ours.bootstrap, number)


def _visit(bootstrap: str, number: int) -> None:
    visit = Visit(bootstrap, number)
    if number == 0:
        visit.create()
    visit.check_settings()
    visit.produce()
    visit.consume()


TOOLS = (
    ("org.apache.kafka.tools.TopicCommand", "--describe", "--topic", TOPIC),
    ("kafka.admin.ConfigCommand", "--describe", "--entity-type", "topics", "--entity-name", TOPIC),
    ("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--describe", "--group", "visitors"),
)


@needs_kafka
def test_kafka_s_tools_tell_the_same_of_it_under_both(tmp_path: Path) -> None:
    """Ids, partitions, leaders, settings, commits and lags, as `kafka-topics` and its sisters print them."""
    directory = tmp_path / "data"
    with Broker(data_dir=directory, settings=SETTINGS) as ours:
        _visit(ours.bootstrap, 0)
        here = [_told(ours.bootstrap, *tool) for tool in TOOLS]
    with ApacheKafka(data_dir=directory) as kafka:
        _committed(kafka.bootstrap)
        there = [_told(kafka.bootstrap, *tool) for tool in TOOLS]
        quorum = _told(kafka.bootstrap, "org.apache.kafka.tools.MetadataQuorumCommand", "describe", "--status")
    assert _words(here) == _words(there)
    assert any(line.split() == ["LeaderId:", "1"] for line in quorum)
    assert sum("Partition:" in line for line in here[0]) == 2
    assert any("retention.ms=-1" in line for line in here[1])
    assert sum(line.split()[:2] == ["visitors", TOPIC] for line in here[2]) == 2


def _words(told: list[list[str]]) -> list[list[list[str]]]:
    """Settings come in any order: the tool has them from a hash map."""
    return [[sorted(re.split(r"[\s,]+", line)) for line in lines] for lines in told]


def _committed(bootstrap: str) -> None:
    """Wait until the coordinator has loaded the group."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "visitors"})

    def look() -> TopicPartition | None:
        try:
            (found,) = consumer.committed([TopicPartition(TOPIC, 0)], WAIT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_COORDINATOR:
                raise
            return None
        return found

    assert until(look, "a coordinator of the group", WAIT_S).offset == RECORDS // 2
    consumer.close()


def _told(bootstrap: str, tool: str, *arguments: str) -> list[str]:
    done = run_tool(tool, "--bootstrap-server", bootstrap, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(done.stdout.splitlines())
