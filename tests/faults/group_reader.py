"""Reads a topic as a group member and commits its offsets: TOPIC GROUP PROTOCOL (classic or consumer).

RULES    1. Its group has offsets before it starts, as a processor's has (`tests/exactly_once/processor.py` rule 3).
"""

from __future__ import annotations

from typing import Any

import confluent_kafka

from tests.exactly_once.client import QUICK, Client, run
from tests.exactly_once.processor import is_record

POLL_S = 0.1
SESSION_MS = 3000


def read(client: Client) -> None:
    """Runs until SIGTERM."""
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
    while not client.stop_requested.is_set():
        for message in consumer.consume(100, POLL_S):
            if is_record(message):
                topic_and_partition = message.topic(), message.partition()
                note("polled", "", *topic_and_partition, message.offset(), message.value().decode())
    consumer.close()


if __name__ == "__main__":
    run(read)
