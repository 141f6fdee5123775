"""Writes transactions to a topic and aborts some of them: TOPIC PARTITIONS."""

from __future__ import annotations

import random

from tests.exactly_once.client import Client, Producer, run

ABORT_RATE = 0.2
PAUSE_S = 0.02


def write(client: Client) -> None:
    """Runs until SIGTERM; no value is written twice."""
    topic, partitions = client.arguments[0], int(client.arguments[1])
    rng = random.Random(f"{client.name}-{client.incarnation}")
    producer = Producer(client)
    number = 0
    while not client.stop_requested.wait(PAUSE_S):
        producer.begin()
        for _ in range(rng.randint(1, 6)):
            producer.send(topic, rng.randrange(partitions), f"{client.name}-{client.incarnation}-{number:05}")
            number += 1
        if rng.random() < ABORT_RATE:
            producer.abort()
        else:
            producer.commit()


if __name__ == "__main__":
    run(write)
