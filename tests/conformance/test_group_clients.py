"""Three members of one group, with every client and assignor: late members get a share, and every record is read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from tests.support.waiting import until

pytestmark = pytest.mark.long

PARTITIONS = 6
RECORDS = 300
ALL = {(partition, offset) for partition in range(PARTITIONS) for offset in range(RECORDS // PARTITIONS)}


class Member:
    """A consumer that polls in its own thread; the size of its assignment and the records that it has read."""

    def __init__(
        self, poll: Callable[[], list[tuple[int, int]]], assigned: Callable[[], int], close: Callable[[], None]
    ):
        self._poll, self._assigned, self._close = poll, assigned, close
        self.share = 0
        self.seen: set[tuple[int, int]] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.seen.update(self._poll())
            self.share = self._assigned()
        self._close()

    def stop(self) -> None:
        """Commits and leaves."""
        self._stop.set()
        self._thread.join()


def confluent_member(bootstrap: str, topic: str, assignor: str, instance: str | None = None) -> Member:
    static = {} if instance is None else {"group.instance.id": instance}
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest",
         "partition.assignment.strategy": assignor, "heartbeat.interval.ms": 100, "session.timeout.ms": 6000,
         "auto.commit.interval.ms": 100, **static}
    )  # fmt: skip
    consumer.subscribe([topic])

    def poll() -> list[tuple[int, int]]:
        messages = consumer.consume(100, timeout=0.1)
        assert not [message.error() for message in messages if message.error()]
        return [(message.partition(), message.offset()) for message in messages]

    return Member(poll, lambda: len(consumer.assignment()), consumer.close)


def kafka_python_member(bootstrap: str, topic: str, assignor: Any, instance: str | None = None) -> Member:
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=topic,
        group_instance_id=instance,
        auto_offset_reset="earliest",
        partition_assignment_strategy=[assignor],
        heartbeat_interval_ms=100,
        session_timeout_ms=6000,
        auto_commit_interval_ms=100,
    )
    consumer.partitions_for_topic(topic)  # otherwise it may lose its assignment

    def poll() -> list[tuple[int, int]]:
        return [(record.partition, record.offset) for records in consumer.poll(100).values() for record in records]

    return Member(poll, lambda: len(consumer.assignment()), consumer.close)


CASES = [
    *((confluent_member, name, None) for name in ("range", "roundrobin", "cooperative-sticky")),
    (kafka_python_member, RangePartitionAssignor, None),
    (kafka_python_member, RoundRobinPartitionAssignor, None),
    (kafka_python_member, StickyPartitionAssignor, None),
    (kafka_python_member, CooperativeStickyAssignor, None),
    (confluent_member, "cooperative-sticky", "instance"),
    (kafka_python_member, RangePartitionAssignor, "instance"),
]


@contextmanager
def joined(member: Member) -> Iterator[Member]:
    try:
        yield member
    finally:
        member.stop()


@pytest.mark.parametrize(
    ("member", "assignor", "instance"),
    CASES,
    ids=lambda value: getattr(value, "name", None) or getattr(value, "__name__", None) or str(value),
)
def test_three_members_share_a_topic(kafka_broker, kafka_topic, member, assignor, instance: str | None) -> None:
    """Two partitions each, no record missed, and the committed offsets are the ends of all partitions."""
    topic = f"{kafka_topic}.six"
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka_broker.bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(30) == 0
    wanted = [confluent_kafka.TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    reader = confluent_kafka.Consumer({"bootstrap.servers": kafka_broker.bootstrap, "group.id": topic})
    members: list[Member] = []
    with ExitStack() as stack:
        stack.callback(reader.close)
        for number in range(3):
            name = None if instance is None else f"{instance}{number}"
            members.append(stack.enter_context(joined(member(kafka_broker.bootstrap, topic, assignor, name))))
            until(lambda: all(one.share for one in members), "a share for every member")
        until(lambda: [one.share for one in members] == [2, 2, 2], "two partitions for every member")
        until(lambda: set().union(*(one.seen for one in members)) >= ALL, "every record read")
        # A commit during a rebalance is lost; the new owner then reads and commits again.
        until(
            lambda: {found.offset for found in reader.committed(wanted, timeout=30)} == {RECORDS // PARTITIONS},
            "a commit at the end of every partition",
        )
