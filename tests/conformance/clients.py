"""Real clients behind two functions each, produce and consume, so that every scenario runs with all of them.

NOT HERE Java's clients (`java_tools.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import aiokafka
import confluent_kafka
import kafka

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
_LARGE = 1_000_000
WAIT_S = 30


class Sent(NamedTuple):
    """A record as a test makes it; headers may repeat a key and have null values."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None
    partition: int = 0


class Got(NamedTuple):
    """A record as a client gave it out."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def produce_kafka_python(bootstrap: str, topic: str, records: Sequence[Sent], codec: str) -> list[int]:
    """Send with kafka-python; the offsets."""
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if codec == "none" else codec,
        max_request_size=_LARGE,
        linger_ms=20,
    )
    try:
        futures = [
            producer.send(
                topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                partition=record.partition,
                timestamp_ms=record.timestamp_ms,
            )
            for record in records
        ]
        producer.flush(WAIT_S)
        return [future.get(WAIT_S).offset for future in futures]
    finally:
        producer.close()


def consume_kafka_python(bootstrap: str, topic: str, count: int) -> list[Got]:
    """Read `count` records from the beginning with kafka-python."""
    consumer = kafka.KafkaConsumer(
        topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=WAIT_S * 1000
    )
    try:
        found = []
        for record in consumer:
            found.append(
                Got(record.partition, record.offset, record.timestamp, record.key, record.value, tuple(record.headers))
            )
            if len(found) == count:
                break
        return found
    finally:
        consumer.close()


def produce_confluent(bootstrap: str, topic: str, records: Sequence[Sent], codec: str) -> list[int]:
    """Send with confluent-kafka (librdkafka); the offsets."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "compression.type": codec, "message.max.bytes": _LARGE, "linger.ms": 20}
    )
    offsets: dict[int, int] = {}

    def on_delivery(number: int) -> Callable[[object, object], None]:
        def report(error: object, message: confluent_kafka.Message) -> None:
            if error is not None:
                raise confluent_kafka.KafkaException(error)
            offsets[number] = message.offset()

        return report

    for number, record in enumerate(records):
        optional = {} if record.timestamp_ms is None else {"timestamp": record.timestamp_ms}
        producer.produce(
            topic,
            value=record.value,
            key=record.key,
            headers=list(record.headers),
            partition=record.partition,
            on_delivery=on_delivery(number),
            **optional,
        )
    assert producer.flush(WAIT_S) == 0
    return [offsets[number] for number in range(len(records))]


def consume_confluent(bootstrap: str, topic: str, count: int) -> list[Got]:
    """Read `count` records from the beginning with confluent-kafka, without a group."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "auto.offset.reset": "earliest",
         "enable.auto.commit": False}
    )  # fmt: skip
    try:
        partitions = consumer.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
        consumer.assign(
            [confluent_kafka.TopicPartition(topic, p, confluent_kafka.OFFSET_BEGINNING) for p in partitions]
        )
        found: list[Got] = []
        deadline = time.monotonic() + WAIT_S
        while len(found) < count and time.monotonic() < deadline:
            for message in consumer.consume(count - len(found), timeout=0.5):
                if message.error() is not None:
                    raise confluent_kafka.KafkaException(message.error())
                found.append(
                    Got(message.partition(), message.offset(), message.timestamp()[1], message.key(), message.value(),
                        tuple(message.headers() or ()))
                )  # fmt: skip
        return found
    finally:
        consumer.close()


def produce_aiokafka(bootstrap: str, topic: str, records: Sequence[Sent], codec: str) -> list[int]:
    """Send with aiokafka; the offsets."""

    async def run() -> list[int]:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            max_request_size=_LARGE,
            linger_ms=20,
        )
        await producer.start()
        try:
            futures = [
                await producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            return [(await future).offset for future in futures]
        finally:
            await producer.stop()

    return asyncio.run(run())


def consume_aiokafka(bootstrap: str, topic: str, count: int) -> list[Got]:
    """Read `count` records from the beginning with aiokafka."""

    async def run() -> list[Got]:
        consumer = aiokafka.AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        try:
            found = []
            for _ in range(count):
                record = await asyncio.wait_for(consumer.getone(), WAIT_S)
                found.append(
                    Got(record.partition, record.offset, record.timestamp, record.key, record.value,
                        tuple(record.headers))
                )  # fmt: skip
            return found
        finally:
            await consumer.stop()

    return asyncio.run(run())


PRODUCERS = {
    "kafka-python": produce_kafka_python,
    "confluent-kafka": produce_confluent,
    "aiokafka": produce_aiokafka,
}
CONSUMERS = {
    "kafka-python": consume_kafka_python,
    "confluent-kafka": consume_confluent,
    "aiokafka": consume_aiokafka,
}
