"""A consume-transform-produce program that commits its offsets in the transaction, as a group member: SOURCE TARGET GROUP.

RULES    1. Records of a source partition go to the same partition of the target, in order.
         2. A share ABORT_RATE of the transactions is aborted before the commit. After an abort it continues at the group's
            committed offset.
"""

from __future__ import annotations

import random
from typing import Any

import confluent_kafka

from tests.exactly_once.client import CALL_S, Client, Producer, is_record, member, run

ABORT_RATE = 0.2
AT_MOST = 20
POLL_S = 0.1
CLASSIC_SESSION = {"session.timeout.ms": 3000, "heartbeat.interval.ms": 300}
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
    consumer = member(
        client, group, source,
        **{"enable.auto.commit": False, "debug": DEBUG_CONTEXTS, **CLASSIC_SESSION},
    )  # fmt: skip
    producer = Producer(client)
    while not client.stop_requested.is_set():
        messages: list[Any] = [one for one in consumer.consume(AT_MOST, POLL_S) if is_record(consumer, one)]
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


def rewind(consumer: Any) -> None:
    """Seeks to the group's committed offsets."""
    for topic_partition in consumer.committed(consumer.assignment(), CALL_S):
        if topic_partition.error is not None:
            raise confluent_kafka.KafkaException(topic_partition.error)
        assert topic_partition.offset >= 0, f"{topic_partition} has no offset any more"
        consumer.seek(topic_partition)


if __name__ == "__main__":
    run(process_records)
