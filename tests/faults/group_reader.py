"""A program that reads a topic as a member of a group, and commits its offsets: TOPIC GROUP PROTOCOL (classic or consumer).

RULES    1. Its group has offsets before it begins, as a carrier's has (`tests/exactly_once/carrier.py` rule 3).
"""

from __future__ import annotations

from typing import Any

import confluent_kafka

from tests.exactly_once.carrier import is_record
from tests.exactly_once.client import QUICK, Client, run

POLL_S = 0.1
SESSION_MS = 3000


def read(client: Client) -> None:
    """Read until it is asked to end."""
    topic, group, protocol = client.arguments
    note = client.history.note
    classic = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 300}
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": client.bootstrap, "group.id": group, "group.protocol": protocol,
            "isolation.level": "read_committed", "auto.offset.reset": "error", "auto.commit.interval.ms": 500,
            "fetch.wait.max.ms": 50, **(classic if protocol == "classic" else {}), **QUICK,
        }
    )  # fmt: skip

    def assigned(_consumer: Any, partitions: list[Any]) -> None:
        for one in partitions:
            note("assigned", "", one.topic, one.partition)

    consumer.subscribe([topic], on_assign=assigned)
    while not client.over.is_set():
        for message in consumer.consume(100, POLL_S):
            if is_record(message):
                where = message.topic(), message.partition()
                note("polled", "", *where, message.offset(), message.value().decode())
    consumer.close()


if __name__ == "__main__":
    run(read)
