"""Consumer groups (KIP-848) with librdkafka and Java, both server-side assignors, and a broker restart.

The broker has short heartbeat intervals, so these tests do not run against other brokers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import barnabas
from tests.conformance.test_group_clients import ALL, PARTITIONS, RECORDS, Member, joined
from tests.support.kafka import free_port, needs_kafka, run_tool
from tests.support.waiting import until

pytestmark = pytest.mark.long

QUICK = {
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 100,
    "group.consumer.min.session.timeout.ms": 6000,
    "group.consumer.session.timeout.ms": 6000,
    "group.consumer.assignment.interval.ms": 0,
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[barnabas.Broker]:
    with barnabas.Broker(tmp_path, free_port(), QUICK) as started:
        yield started


def fill(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(30) == 0


def member(bootstrap: str, topic: str, **settings: str) -> Member:
    """A librdkafka consumer with the consumer protocol."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": topic, "group.protocol": "consumer",
         "auto.offset.reset": "earliest", "auto.commit.interval.ms": 100, **settings}
    )  # fmt: skip
    consumer.subscribe([topic])

    def poll() -> list[tuple[int, int]]:
        messages = [one for one in consumer.consume(100, timeout=0.1) if not one.error()]
        return [(one.partition() or 0, one.offset() or 0) for one in messages]

    return Member(poll, lambda: len(consumer.assignment()), consumer.close)


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_three_members_share_a_topic(broker: barnabas.Broker, assignor: str) -> None:
    """Two partitions each, no record missed; the partitions of a leaving member are reassigned."""
    bootstrap, topic = broker.bootstrap, f"shared-{assignor}"
    fill(bootstrap, topic)
    with ExitStack() as stack:
        members = [
            stack.enter_context(joined(member(bootstrap, topic, **{"group.remote.assignor": assignor})))
            for _ in range(3)
        ]
        until(lambda: [one.share for one in members] == [2, 2, 2], "two partitions for every member")
        until(lambda: set().union(*(one.seen for one in members)) >= ALL, "every record read")
        with joined(members.pop()):
            pass
        until(lambda: [one.share for one in members] == [3, 3], "three partitions for those who stay")


def test_members_continue_after_a_broker_restart(tmp_path: Path) -> None:
    """Members, epochs and target assignments are loaded; no member rejoins, and offsets stay."""
    topic, port = "again", free_port()
    with ExitStack() as stack:
        with barnabas.Broker(tmp_path, port, QUICK) as broker:
            fill(broker.bootstrap, topic)
            members = [stack.enter_context(joined(member(broker.bootstrap, topic))) for _ in range(2)]
            until(lambda: [one.share for one in members] == [3, 3], "three partitions for every member")
            until(lambda: set().union(*(one.seen for one in members)) >= ALL, "every record read")
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            before = admin.describe_consumer_groups([topic])[topic].result(30)
        with barnabas.Broker(tmp_path, port, QUICK) as broker:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
            for partition in range(PARTITIONS):
                producer.produce(topic, b"later", partition=partition)
            assert producer.flush(30) == 0
            later = {(partition, RECORDS // PARTITIONS) for partition in range(PARTITIONS)}
            until(lambda: set().union(*(one.seen for one in members)) >= later, "what came later is read")
            after = admin.describe_consumer_groups([topic])[topic].result(30)
            assert {one.member_id for one in after.members} == {one.member_id for one in before.members}
            stack.close()


@needs_kafka
def test_javas_console_consumer_reads_with_names_and_with_an_expression(broker: barnabas.Broker) -> None:
    """The Java client finds `group.version` finalized, heartbeats, reads, commits and leaves."""
    bootstrap, topic = broker.bootstrap, "java"
    fill(bootstrap, topic)
    for group, what in (("names", ["--topic", topic]), ("expression", ["--include", "ja.a"])):
        read = run_tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", bootstrap, *what, "--group", group,
            "--from-beginning", "--max-messages", RECORDS, "--timeout-ms", 30_000,
            "--consumer-property", "group.protocol=consumer",
        )  # fmt: skip
        assert {int(line) for line in read.stdout.split() if line.isdigit()} == set(range(RECORDS)), read.stderr
        response = run_tool(
            "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--bootstrap-server", bootstrap,
            "--describe", "--group", group, "--state",
        )  # fmt: skip
        assert "uniform" in response.stdout, response
        assert "Empty" in response.stdout
