"""The steady writer with kafka-python's idempotent producer: TOPIC PARTITIONS."""

from __future__ import annotations

from kafka import KafkaProducer
from kafka.errors import KafkaError

from tests.exactly_once.client import Client, run
from tests.faults.steady_writer import LAST_S, TIMEOUT_MS, Acknowledged, write_records

PAUSE_S = 0.05


def write(client: Client) -> None:
    """Runs until SIGTERM."""
    producer = KafkaProducer(
        bootstrap_servers=client.bootstrap.split(","), acks="all", enable_idempotence=True, linger_ms=5,
        request_timeout_ms=5000, delivery_timeout_ms=TIMEOUT_MS, max_block_ms=30_000, metadata_max_age_ms=3000,
        reconnect_backoff_max_ms=500,
    )  # fmt: skip

    def produce(topic: str, partition: int, value: str, acknowledged: Acknowledged) -> None:
        sent = producer.send(topic, value.encode(), partition=partition)
        sent.add_callback(lambda response: acknowledged(response.offset))

    write_records(client, produce, 1, PAUSE_S)
    producer.flush(LAST_S)


if __name__ == "__main__":
    run(write, KafkaError)
