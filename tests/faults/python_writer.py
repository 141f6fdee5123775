"""The same as the steady writer with kafka-python, an idempotent producer of its own making: TOPIC PARTITIONS."""

from __future__ import annotations

import os
import random
import sys
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError

from tests.exactly_once.client import FAILED, Client
from tests.faults.steady_writer import TIMEOUT_MS

PAUSE_S = 0.05
LAST_S = 20.0


def write(client: Client) -> None:
    """Write until it is asked to end."""
    topic, partitions = client.arguments[0], int(client.arguments[1])
    dice = random.Random(f"{client.name}-{client.life}")
    note = client.history.note
    producer = KafkaProducer(
        bootstrap_servers=client.bootstrap.split(","), acks="all", enable_idempotence=True, linger_ms=5,
        request_timeout_ms=5000, delivery_timeout_ms=TIMEOUT_MS, max_block_ms=30_000, metadata_max_age_ms=3000,
        reconnect_backoff_max_ms=500,
    )  # fmt: skip

    def acknowledged(value: str, partition: int) -> Any:
        def note_it(told: Any) -> None:
            if told.offset is not None:  # as when it was told of a batch that had come already
                note("sent", value, topic, partition, told.offset, value)
            note("committed", value)

        return note_it

    number = 0
    while not client.over.wait(PAUSE_S):
        value = f"{client.name}-{client.life}-{number:05}"
        partition = dice.randrange(partitions)
        number += 1
        note("sends", value, topic, partition, -1, value)
        note("commits", value)
        sent = producer.send(topic, value.encode(), partition=partition)
        sent.add_callback(acknowledged(value, partition))
    producer.flush(LAST_S)


if __name__ == "__main__":
    this = Client()
    try:
        write(this)
    except KafkaError as failure:
        print(f"{this.name}-{this.life}: {failure!r}", file=sys.stderr, flush=True)
        os._exit(FAILED)  # what it has in flight has no say in how it ends
    this.history.close()
