"""A program that writes transactions into a topic, and aborts some of them: TOPIC PARTITIONS."""

from __future__ import annotations

import random

from tests.exactly_once.client import Client, Producer, run

ABORTED = 0.2
PAUSE_S = 0.02


def write(client: Client) -> None:
    """Write until it is asked to end; no value is ever written twice."""
    topic, partitions = client.arguments[0], int(client.arguments[1])
    dice = random.Random(f"{client.name}-{client.life}")
    producer = Producer(client)
    number = 0
    while not client.over.wait(PAUSE_S):
        producer.begin()
        for _ in range(dice.randint(1, 6)):
            producer.send(topic, dice.randrange(partitions), f"{client.name}-{client.life}-{number:05}")
            number += 1
        if dice.random() < ABORTED:
            producer.abort()
        else:
            producer.commit()


if __name__ == "__main__":
    run(write)
