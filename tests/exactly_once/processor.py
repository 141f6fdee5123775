"""A consume-transform-produce program that commits its offsets in the transaction, as a group member: SOURCE TARGET GROUP.

RULES    1. Records of a source partition go to the same partition of the target, in order.
         2. A share ABORT_RATE of the transactions is aborted before the commit. After an abort it continues at the group's
            committed offset.
         3. Its group has offsets before it starts, and a missing offset is an error: when librdkafka has to look up the
            earliest offset it may do so again later and return there, whatever was committed meanwhile (docs/exactly-once.md).
"""

from __future__ import annotations

import random
from typing import Any

import confluent_kafka

from tests.exactly_once.client import CALL_S, QUICK, Client, Producer, run

ABORT_RATE = 0.2
AT_MOST = 20
POLL_S = 0.1
SESSION_MS = 3000
DEBUG_CONTEXTS = "cgrp,topic,fetch"
"""librdkafka's debug logs about group state, assignments and leader epochs."""


def transformed(value: str) -> str:
    """The value that the program produces for a value."""
    return f"<{value}>"


def process_records(client: Client) -> None:
    """Runs until SIGTERM."""
    source, target, group = client.arguments
    rng = random.Random(f"{client.name}-{client.incarnation}")
    note = client.history.note
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": client.bootstrap, "group.id": group, "enable.auto.commit": False,
            "isolation.level": "read_committed", "auto.offset.reset": "error", "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 300, "fetch.wait.max.ms": 50, "debug": DEBUG_CONTEXTS, **QUICK,
        }
    )  # fmt: skip

    def assigned(_consumer: Any, partitions: list[Any]) -> None:
        for one in partitions:
            note("assigned", "", one.topic, one.partition)

    consumer.subscribe([source], on_assign=assigned)
    producer = Producer(client)
    while not client.stop_requested.is_set():
        messages = [one for one in consumer.consume(AT_MOST, POLL_S) if is_record(one)]
        if not messages:
            continue
        producer.begin()
        for one in messages:
            value = one.value().decode()
            note("polled", producer.transaction, source, one.partition(), one.offset(), value)
            producer.send(target, one.partition(), transformed(value))
        offsets = consumer.position(consumer.assignment())
        if not producer.commit(offsets, consumer.consumer_group_metadata(), abort=rng.random() < ABORT_RATE):
            rewind(consumer)
            for topic_partition in consumer.assignment():
                note("again", producer.transaction, topic_partition.topic, topic_partition.partition)
    consumer.close()


def is_record(message: Any) -> bool:
    """False for an error that passes by itself; raises if the group has no valid offset."""
    error = message.error()
    assert error is None or error.code() != confluent_kafka.KafkaError._AUTO_OFFSET_RESET, error
    return error is None


def rewind(consumer: Any) -> None:
    """Seeks to the group's committed offsets."""
    for topic_partition in consumer.committed(consumer.assignment(), CALL_S):
        if topic_partition.error is not None:
            raise confluent_kafka.KafkaException(topic_partition.error)
        assert topic_partition.offset >= 0, f"{topic_partition} has no offset any more"
        consumer.seek(topic_partition)


if __name__ == "__main__":
    run(process_records)
