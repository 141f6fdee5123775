"""A program that consumes, transforms, produces and commits its offsets with it, as a member of a group: SOURCE TARGET GROUP.

RULES    1. What lies in a partition of the source goes into that of the target, in its order.
         2. Now and then it aborts what is ready to be committed. After an abort it goes on where the group has committed.
         3. Its group has offsets before it begins, and to have none is an error: where librdkafka has to ask where a topic
            begins it may ask so again later, and go back there whatever was committed meanwhile (docs/exactly-once.md).
"""

from __future__ import annotations

import random
from typing import Any

import confluent_kafka

from tests.exactly_once.client import CALL_S, QUICK, Client, Producer, run

ABORTED = 0.2
AT_MOST = 20
POLL_S = 0.1
SESSION_MS = 3000
TOLD = "cgrp,topic,fetch"
"""What librdkafka writes into its program's log of what it was told: where its group stands, where an epoch ended."""


def transformed(value: str) -> str:
    """What becomes of a value."""
    return f"<{value}>"


def carry(client: Client) -> None:
    """Carry until it is asked to end."""
    source, target, group = client.arguments
    dice = random.Random(f"{client.name}-{client.life}")
    note = client.history.note
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": client.bootstrap, "group.id": group, "enable.auto.commit": False,
            "isolation.level": "read_committed", "auto.offset.reset": "error", "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 300, "fetch.wait.max.ms": 50, "debug": TOLD, **QUICK,
        }
    )  # fmt: skip

    def assigned(_consumer: Any, partitions: list[Any]) -> None:
        for one in partitions:
            note("assigned", "", one.topic, one.partition)

    consumer.subscribe([source], on_assign=assigned)
    producer = Producer(client)
    while not client.over.is_set():
        messages = [one for one in consumer.consume(AT_MOST, POLL_S) if is_record(one)]
        if not messages:
            continue
        producer.begin()
        for one in messages:
            value = one.value().decode()
            note("polled", producer.transaction, source, one.partition(), one.offset(), value)
            producer.send(target, one.partition(), transformed(value))
        offsets = consumer.position(consumer.assignment())
        if not producer.commit(offsets, consumer.consumer_group_metadata(), regrets=dice.random() < ABORTED):
            rewind(consumer)
            for place in consumer.assignment():
                note("again", producer.transaction, place.topic, place.partition)
    consumer.close()


def is_record(message: Any) -> bool:
    """Whether it is one, and not an error that passes by itself: to have no offset, or none in the log, does not pass."""
    error = message.error()
    assert error is None or error.code() != confluent_kafka.KafkaError._AUTO_OFFSET_RESET, error
    return error is None


def rewind(consumer: Any) -> None:
    """Back to what the group has committed."""
    for place in consumer.committed(consumer.assignment(), CALL_S):
        if place.error is not None:
            raise confluent_kafka.KafkaException(place.error)
        assert place.offset >= 0, f"{place} has no offset any more"
        consumer.seek(place)


if __name__ == "__main__":
    run(carry)
