"""Reads a topic as a group member and commits its offsets: TOPIC GROUP PROTOCOL (classic or consumer)."""

from __future__ import annotations

from typing import Any

from tests.exactly_once.client import Client, is_record, member, run
from tests.exactly_once.processor import CLASSIC_SESSION

POLL_S = 0.1


def read(client: Client) -> None:
    """Runs until SIGTERM."""
    topic, group, protocol = client.arguments
    settings = {"group.protocol": protocol, "auto.commit.interval.ms": 500}
    consumer = member(client, group, topic, **settings, **(CLASSIC_SESSION if protocol == "classic" else {}))
    while not client.stop_requested.is_set():
        messages: list[Any] = consumer.consume(100, POLL_S)
        for message in messages:
            if is_record(consumer, message):
                topic_and_partition = message.topic(), message.partition()
                client.history.note("polled", "", *topic_and_partition, message.offset(), message.value().decode())
    consumer.close()


if __name__ == "__main__":
    run(read)
