"""Retries with growing delays: a record whose processing fails is tried again after 1 s, 10 s and a minute, then set aside.

    python retries.py --bootstrap localhost:9092

Topics   orders          the input, and the records whose delay has passed
         orders-retry    a schedule topic: its records are delivered to `orders` when they are due
         orders-dead     what failed after the last attempt

A failed record is written to `orders-retry` with two headers: `attempt`, the number of attempts so far, and `deliver-after`,
the delay in milliseconds. The consumer commits its position after that, so a crash repeats an attempt, and loses none. It
never sleeps: other records of the partition are processed meanwhile.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

DELAYS_MS = (1_000, 10_000, 60_000)
INPUT, RETRY, DEAD = "orders", "orders-retry", "orders-dead"
OWN_HEADERS = ("attempt", "deliver-after", "schedule-id")
"""Those of this program and of the delivery; a record keeps all others."""


def create_topics(bootstrap: str) -> None:
    """Creates the topics that do not exist; the target of a schedule topic must exist before it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for topic, config in ((INPUT, {}), (DEAD, {}), (RETRY, {"barnabas.deliver.to": INPUT})):
        try:
            admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(30)
        except KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                raise


def process(message: Message) -> None:
    """The work; here every value that contains "bad" fails."""
    if b"bad" in (message.value() or b""):
        raise ValueError("a bad order")


def attempts_of(message: Message) -> int:
    """How often a record was tried before."""
    found = [int(value or b"0") for name, value in message.headers() or [] if name == "attempt"]
    return max(found, default=0)


def set_aside(producer: Producer, message: Message, delays_ms: tuple[int, ...]) -> str:
    """Writes a failed record to the schedule topic, or after the last attempt to the dead letters."""
    attempt = attempts_of(message)
    headers = [(name, value) for name, value in message.headers() or [] if name not in OWN_HEADERS]
    headers.append(("attempt", b"%d" % (attempt + 1)))
    topic = DEAD
    if attempt < len(delays_ms):
        topic = RETRY
        headers.append(("deliver-after", b"%d" % delays_ms[attempt]))
    refused: list[object] = []
    producer.produce(
        topic,
        message.value(),
        key=message.key(),
        headers=headers,
        on_delivery=lambda error, _: None if error is None else refused.append(error),
    )
    if producer.flush(30) or refused:  # the position is not committed: the next start tries the record again
        raise RuntimeError(f"{topic} cannot be written: {refused or 'no answer'}")
    return topic


def run(bootstrap: str, delays_ms: tuple[int, ...], is_done: Callable[[], bool]) -> None:
    """Processes the input until `is_done`."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "order-processing",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([INPUT])
    try:
        while not is_done():
            message = consumer.poll(0.5)
            if message is None:
                continue
            if message.error():
                raise KafkaException(message.error())
            try:
                process(message)
                print(f"{message.key()!r} done in attempt {attempts_of(message) + 1}", flush=True)
            except ValueError as error:
                topic = set_aside(producer, message, delays_ms)
                print(f"{message.key()!r} failed ({error}): to {topic}", flush=True)
            consumer.commit(message, asynchronous=False)
    finally:
        consumer.close()


def main() -> None:
    """Runs until it is interrupted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap", default="localhost:9092")
    bootstrap = parser.parse_args().bootstrap
    create_topics(bootstrap)
    run(bootstrap, DELAYS_MS, lambda: False)


if __name__ == "__main__":
    main()
