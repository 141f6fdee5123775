"""Fills topics for tests of the pipeline and reads them back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from barnabas.pipeline.brokers import Brokers
from barnabas.pipeline.settings import BrokerSettings

START_MS = 1_767_225_600_000
"""Midnight of 1 January 2026, UTC."""
MINUTE_MS = 60_000
FOR_EVER = {"retention.ms": "-1"}
FLUSH_S = 300


def create(bootstrap: str, topic: str, partitions: int = 2, **settings: str) -> Brokers:
    """Creates a topic without retention; `_` in a config name stands for a dot."""
    brokers = Brokers(BrokerSettings(bootstrap=bootstrap))
    brokers.create_topic(topic, partitions, 1, {**FOR_EVER, **dotted(settings)})
    return brokers


def dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces `_` in the names of settings by a dot."""
    return {name.replace("_", "."): value for name, value in settings.items()}


def producer_of(bootstrap: str, **settings: Any) -> Producer:
    """Returns a producer; `_` in the name of a setting is replaced by a dot."""
    return Producer({"bootstrap.servers": bootstrap, "log_level": 0, **dotted(settings)})


def send(bootstrap: str, topic: str, records: Iterable[dict[str, Any]], **settings: Any) -> None:
    """Sends records, in the form of confluent_kafka, and waits for the acknowledgements."""
    _produce(producer_of(bootstrap, **settings), topic, records)


def begin_transaction(producer: Producer, topic: str, records: Iterable[dict[str, Any]]) -> None:
    """Sends records in a transaction that stays open."""
    producer.begin_transaction()
    _produce(producer, topic, records)


def send_transaction(producer: Producer, topic: str, records: Iterable[dict[str, Any]], *, commit: bool) -> None:
    begin_transaction(producer, topic, records)
    if commit:
        producer.commit_transaction()
    else:
        producer.abort_transaction()


def transactional(bootstrap: str, name: str, **settings: Any) -> Producer:
    """Returns a producer with initialised transactions."""
    producer = producer_of(bootstrap, transactional_id=name, transaction_timeout_ms=600_000, **settings)
    producer.init_transactions(30)
    return producer


def minutes(count: int, partitions: int = 2, start: int = 0) -> list[dict[str, Any]]:
    """Records a minute apart; some keys and values are null, some records have headers."""
    return [
        {
            "key": b"key %d" % (number % 5) if number % 7 else None,
            "value": None if number % 7 and number % 11 == 0 else b"value %d" % number,
            "partition": number % partitions,
            "timestamp": START_MS + number * MINUTE_MS,
            "headers": [("a", b"%d" % number), ("a", None)] if number % 2 else None,
        }
        for number in range(start, start + count)
    ]


def read_all(bootstrap: str, topic: str, partitions: int = 2) -> dict[int, list[Any]]:
    """Returns every committed record, by partition."""
    found: dict[int, list[Any]] = {number: [] for number in range(partitions)}
    for message in read_from(bootstrap, topic, dict.fromkeys(found, 0)):
        found[message.partition()].append(message)
    return found


def read_from(bootstrap: str, topic: str, offsets: dict[int, int], isolation: str = "read_committed") -> Iterator[Any]:
    """Yields the messages from these offsets of partitions to their ends, and advances the offsets."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": isolation}
    settings |= {"auto.offset.reset": "earliest", "enable.auto.commit": "false", "enable.partition.eof": "true"}
    consumer = Consumer({**settings, "log_level": 0})
    try:
        consumer.assign([TopicPartition(topic, number, offset) for number, offset in offsets.items()])
        open_partitions = set(offsets)
        while open_partitions:
            message = consumer.poll(30)
            assert message is not None, f"no message from {topic} {open_partitions}"
            error, partition, offset = message.error(), message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            if error is not None:
                assert error.name() == "_PARTITION_EOF", error
                open_partitions.discard(partition)
                continue
            offsets[partition] = offset + 1
            yield message
    finally:
        consumer.close()


def _produce(producer: Producer, topic: str, records: Iterable[dict[str, Any]]) -> None:
    failures: list[Any] = []
    for record in records:
        producer.produce(topic, **record, on_delivery=lambda failure, _: failures.append(failure) if failure else None)
        producer.poll(0)
    assert producer.flush(FLUSH_S) == 0
    assert not failures, failures
