"""The steady writer with kafka-python's idempotent producer: TOPIC PARTITIONS."""

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
    """Runs until SIGTERM."""
    topic, partitions = client.arguments[0], int(client.arguments[1])
    rng = random.Random(f"{client.name}-{client.incarnation}")
    note = client.history.note
    producer = KafkaProducer(
        bootstrap_servers=client.bootstrap.split(","), acks="all", enable_idempotence=True, linger_ms=5,
        request_timeout_ms=5000, delivery_timeout_ms=TIMEOUT_MS, max_block_ms=30_000, metadata_max_age_ms=3000,
        reconnect_backoff_max_ms=500,
    )  # fmt: skip

    def acknowledged(value: str, partition: int) -> Any:
        def note_it(response: Any) -> None:
            if response.offset is not None:  # None for a duplicate batch
                note("sent", value, topic, partition, response.offset, value)
            note("committed", value)

        return note_it

    number = 0
    while not client.stop_requested.wait(PAUSE_S):
        value = f"{client.name}-{client.incarnation}-{number:05}"
        partition = rng.randrange(partitions)
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
        print(f"{this.name}-{this.incarnation}: {failure!r}", file=sys.stderr, flush=True)
        os._exit(FAILED)  # exits without waiting for records in flight
    this.history.close()
