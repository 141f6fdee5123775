"""Topics of the kill tests: records that are remembered by where the broker put them, and read on from where one was.

RULES    1. A record is what was sent, to the byte: key, value, timestamp, headers.
         2. What is read is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition

from barnabas.pipeline.brokers import Brokers, Place
from barnabas.pipeline.settings import BrokerSettings

PARTITIONS = 3


class Record(NamedTuple):
    """What makes a record, beside its place."""

    key: bytes | None
    value: bytes | None
    ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


At = tuple[int, int]
"""A partition and an offset."""


def brokers_of(bootstrap: str) -> Brokers:
    """The brokers, asked as a job asks them."""
    return Brokers(BrokerSettings(bootstrap=bootstrap))


def make(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> None:
    """A topic that keeps old timestamps."""
    brokers_of(bootstrap).create_topic(topic, partitions, 1, {"retention.ms": "-1"})


def send(bootstrap: str, topic: str, records: Iterable[tuple[int, Record]]) -> dict[At, Record]:
    """Send records to their partitions; where each is."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "enable.idempotence": True})
    sent: dict[At, Record] = {}

    def keep(record: Record) -> Any:
        def delivered(failure: Any, message: Any) -> None:
            assert failure is None, failure
            sent[message.partition(), message.offset()] = record

        return delivered

    count = 0
    for partition, record in records:
        while True:
            try:
                producer.produce(
                    topic,
                    key=record.key,
                    value=record.value,
                    partition=partition,
                    timestamp=record.ms,
                    headers=list(record.headers) or None,
                    on_delivery=keep(record),
                )
                break
            except BufferError:
                producer.poll(1)
        producer.poll(0)
        count += 1
    assert producer.flush(60) == 0
    assert len(sent) == count
    return sent


def high_watermarks(brokers: Brokers, topic: str, partitions: int = PARTITIONS) -> int:
    """How far a topic goes, all partitions together, open transactions among them; 0 while there is no such topic."""
    if not brokers.exists(topic):
        return 0
    return sum(brokers.high_watermarks(Place(topic, number) for number in range(partitions)).values())


def read_on(bootstrap: str, topic: str, places: dict[int, int]) -> Iterator[tuple[int, Record]]:
    """The committed records of these partitions from these offsets on; `places` moves with what is read."""
    ends = brokers_of(bootstrap).ends([Place(topic, number) for number in places])
    waiting = {place.partition for place, end in ends.items() if end > places[place.partition]}
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "enable.partition.eof": True, "enable.auto.commit": False, "log_level": 0})
    try:
        consumer.assign([TopicPartition(topic, number, places[number]) for number in waiting])
        while waiting:
            message = consumer.poll(30)
            assert message is not None, f"nothing came of {topic} {waiting}"
            if message.error():
                assert message.error().name() == "_PARTITION_EOF", message.error()
                waiting.discard(message.partition())
                continue
            places[message.partition()] = message.offset() + 1
            headers = tuple((name, value) for name, value in message.headers() or ())
            yield message.partition(), Record(message.key(), message.value(), message.timestamp()[1], headers)
    finally:
        consumer.close()
