"""Writes records one by one, idempotent and with acks=all, without transactions: TOPIC PARTITIONS.

RULES    1. In the history each record is a transaction: its commit is requested when it is sent, and it is committed when it is
            acknowledged. An unacknowledged record may exist or not.
         2. No value is written twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import confluent_kafka

from tests.exactly_once.client import QUICK, Client, run

PAUSE_S = 0.02
AT_MOST = 5
IN_FLIGHT = 500
"""The limit of records in flight."""
LAST_S = 20.0
TIMEOUT_MS = 180_000
"""Longer than any fault: when librdkafka gives up a record in flight it raises the epoch, and a record that it then sends again
may be a duplicate, with any broker.
"""


Acknowledged = Callable[[int | None], None]
"""Called with the record's offset, if the broker returns one."""
Produce = Callable[[str, int, str, Acknowledged], None]
"""Sends a record: topic, partition, value."""


def write_records(client: Client, produce: Produce, at_most: int, pause_s: float) -> None:
    """Sends up to `at_most` records after each pause, until SIGTERM."""
    topic, partitions = client.arguments[0], int(client.arguments[1])
    rng = random.Random(f"{client.name}-{client.incarnation}")
    note = client.history.note

    def send(number: int) -> None:
        value = f"{client.name}-{client.incarnation}-{number:05}"
        partition = rng.randrange(partitions)

        def acknowledged(offset: int | None) -> None:
            if offset is not None:  # a duplicate batch has no offset
                note("sent", value, topic, partition, offset, value)
            note("committed", value)

        note("sends", value, topic, partition, -1, value)
        note("commits", value)
        produce(topic, partition, value, acknowledged)

    number = 0
    while not client.stop_requested.wait(pause_s):
        for _ in range(rng.randint(1, at_most)):
            send(number)
            number += 1


def write(client: Client) -> None:
    """Runs until SIGTERM."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": client.bootstrap, "enable.idempotence": True, "linger.ms": 5,
            "message.timeout.ms": TIMEOUT_MS, "request.timeout.ms": 5000, **QUICK,
        }
    )  # fmt: skip

    def produce(topic: str, partition: int, value: str, acknowledged: Acknowledged) -> None:
        def delivered(error: Any, message: Any) -> None:
            if error is None:
                acknowledged(message.offset())

        producer.poll(0)
        while len(producer) >= IN_FLIGHT and not client.stop_requested.is_set():
            producer.poll(PAUSE_S)
        producer.produce(topic, value, partition=partition, on_delivery=delivered)

    write_records(client, produce, AT_MOST, PAUSE_S)
    producer.flush(LAST_S)


if __name__ == "__main__":
    run(write)
