"""A program that writes records one by one, idempotent and with acks=all, without transactions: TOPIC PARTITIONS.

RULES    1. For the history each record is a transaction of its own: asked for as soon as it is sent, committed when it is
            acknowledged. What is not acknowledged may be there or not.
         2. No value is ever written twice, whatever became of it.
"""

from __future__ import annotations

import random
from typing import Any

import confluent_kafka

from tests.exactly_once.client import QUICK, Client, run

PAUSE_S = 0.02
AT_MOST = 500
"""So many may be on their way."""
LAST_S = 20.0
TIMEOUT_MS = 180_000
"""Longer than any fault: librdkafka that gives up a record on its way begins a new epoch, and what it sends again then may be
there already, with any broker."""


def write(client: Client) -> None:
    """Write until it is asked to end."""
    topic, partitions = client.arguments[0], int(client.arguments[1])
    dice = random.Random(f"{client.name}-{client.life}")
    note = client.history.note
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": client.bootstrap, "enable.idempotence": True, "linger.ms": 5,
            "message.timeout.ms": TIMEOUT_MS, "request.timeout.ms": 5000, **QUICK,
        }
    )  # fmt: skip

    def send(number: int) -> None:
        value = f"{client.name}-{client.life}-{number:05}"
        partition = dice.randrange(partitions)

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                if message.offset() is not None:  # a batch that had come already has no offset
                    note("sent", value, topic, partition, message.offset(), value)
                note("committed", value)

        note("sends", value, topic, partition, -1, value)
        note("commits", value)
        producer.produce(topic, value, partition=partition, on_delivery=delivered)

    number = 0
    while not client.over.wait(PAUSE_S):
        if len(producer) < AT_MOST:
            for _ in range(dice.randint(1, 5)):
                send(number)
                number += 1
        producer.poll(0)
    producer.flush(LAST_S)


if __name__ == "__main__":
    run(write)
