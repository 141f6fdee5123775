"""Groups of three clients: classic ones with every client and assignor, and consumer groups (KIP-848) over a broker restart.

Late members get a share, and every record is read. The broker of consumer groups has short heartbeat intervals, so those tests
do not run against other brokers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

import barnabas
from barnabas import Broker
from tests.conformance.clients import ALL, PARTITIONS, RECORDS, Member, seen_by, until_balanced
from tests.support.kafka import free_port, needs_kafka, run_tool
from tests.support.librdkafka import create_topic, produce
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
    create_topic(bootstrap, topic, PARTITIONS)
    produce(bootstrap, topic, (b"%d" % number for number in range(RECORDS)), PARTITIONS)


def write_more(bootstrap: str, topic: str) -> None:
    """One more record in every partition."""
    produce(bootstrap, topic, [b"later"] * PARTITIONS, PARTITIONS)


def consumer_member(bootstrap: str, topic: str, assignor: str | None = None) -> Member:
    """A librdkafka consumer with the consumer protocol."""
    return Member("confluent-kafka", bootstrap, topic, protocol="consumer", remote_assignor=assignor)


CASES = [
    *(("confluent-kafka", name, None) for name in ("range", "roundrobin", "cooperative-sticky")),
    *(("kafka-python", name, None) for name in ("range", "roundrobin", "sticky", "cooperative-sticky")),
    ("confluent-kafka", "cooperative-sticky", "instance"),
    ("kafka-python", "range", "instance"),
]


@pytest.mark.parametrize(("client", "assignor", "instance"), CASES)
def test_three_classic_members_share_a_topic(
    kafka_broker: Broker, kafka_topic: str, client: Any, assignor: Any, instance: str | None
) -> None:
    """Two partitions each, no record missed, and the committed offsets are the ends of all partitions."""
    bootstrap, topic = kafka_broker.bootstrap, f"{kafka_topic}.six"
    fill(bootstrap, topic)
    wanted = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    members: list[Member] = []
    with ExitStack() as stack:
        stack.callback(reader.close)
        for number in range(3):
            name = None if instance is None else f"{instance}{number}"
            members.append(stack.enter_context(Member(client, bootstrap, topic, assignor=assignor, instance=name)))
            until(lambda: all(one.share for one in members), "a share for every member")
        until_balanced(members)
        until(lambda: seen_by(members) >= ALL, "every record read")
        # A commit during a rebalance is lost; the new owner then reads and commits again.
        until(
            lambda: {found.offset for found in reader.committed(wanted, timeout=30)} == {RECORDS // PARTITIONS},
            "a commit at the end of every partition",
        )


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_three_consumer_protocol_members_share_a_topic(broker: barnabas.Broker, assignor: str) -> None:
    """Two partitions each, no record missed; the partitions of a leaving member are reassigned."""
    bootstrap, topic = broker.bootstrap, f"shared-{assignor}"
    fill(bootstrap, topic)
    with ExitStack() as stack:
        members = [stack.enter_context(consumer_member(bootstrap, topic, assignor)) for _ in range(3)]
        until_balanced(members)
        until(lambda: seen_by(members) >= ALL, "every record read")
        members.pop().stop()
        until_balanced(members)


def test_members_continue_after_a_broker_restart(tmp_path: Path) -> None:
    """Members, epochs and target assignments are loaded; no member rejoins, and offsets stay."""
    topic, port = "again", free_port()
    with ExitStack() as stack:
        with barnabas.Broker(tmp_path, port, QUICK) as broker:
            fill(broker.bootstrap, topic)
            members = [stack.enter_context(consumer_member(broker.bootstrap, topic)) for _ in range(2)]
            until_balanced(members)
            until(lambda: seen_by(members) >= ALL, "every record read")
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            before = admin.describe_consumer_groups([topic])[topic].result(30)
        with barnabas.Broker(tmp_path, port, QUICK) as broker:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            write_more(broker.bootstrap, topic)
            later = {(partition, RECORDS // PARTITIONS) for partition in range(PARTITIONS)}
            until(lambda: seen_by(members) >= later, "what came later is read")
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
