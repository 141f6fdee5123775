"""Topics of the kill tests: records by their position, and reading from given offsets.

RULES    1. A record is its key, value, timestamp and headers, byte for byte.
         2. Only committed records are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.brokers import Brokers
from tests.pipeline import topics

PARTITIONS = 3


class Record(NamedTuple):
    """A record without its position."""

    key: bytes | None
    value: bytes | None
    ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


Position = tuple[int, int]
"""A partition and an offset."""


def send(bootstrap: str, topic: str, records: Sequence[tuple[int, Record]]) -> dict[Position, Record]:
    """Sends records to their partitions; returns them by position."""
    producer = topics.producer_of(bootstrap, enable_idempotence=True, queue_buffering_max_messages=1_000_000)
    sent: dict[Position, Record] = {}

    def delivered(record: Record, failure: Any, message: Any) -> None:
        assert failure is None, failure
        sent[message.partition(), message.offset()] = record

    for partition, record in records:
        producer.produce(
            topic,
            key=record.key,
            value=record.value,
            partition=partition,
            timestamp=record.ms,
            headers=list(record.headers) or None,
            on_delivery=partial(delivered, record),
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    assert len(sent) == len(records)
    return sent


def high_watermarks(brokers: Brokers, topic: str, partitions: int = PARTITIONS) -> int:
    """The sum of a topic's high watermarks; 0 if the topic does not exist."""
    if not brokers.exists(topic):
        return 0
    return sum(brokers.high_watermarks(TopicPartition(topic, number) for number in range(partitions)).values())


def read_from(bootstrap: str, topic: str, next_offsets: dict[int, int]) -> Iterator[tuple[int, Record]]:
    """Yields the committed records from these offsets on, and advances the offsets."""
    for message in topics.read_from(bootstrap, topic, next_offsets):
        headers = tuple((name, value) for name, value in message.headers() or ())
        yield message.partition(), Record(message.key(), message.value(), message.timestamp()[1], headers)
