"""Fills a topic with flights: key = carrier, value = JSON, timestamp = scheduled departure.

RULES    1. Every record is acknowledged by all in-sync replicas, in order (idempotent producer), or the run fails.
         2. Partition, timestamp and checksum of every record are kept in memory, to check the readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from zlib import crc32

from kafka import KafkaProducer
from kafka.errors import UnknownError

from barnabas.pipeline.demo.flights import Delays, Flight, count_delays
from barnabas.pipeline.errors import JobError

PARTITIONS = 6
KEEP_FOR_EVER = {"retention.ms": "-1"}
"""The flights are of 2013: Kafka's default retention would delete them at once."""
HOUR_MS = 3_600_000


class Sent(NamedTuple):
    """A sent record."""

    partition: int
    timestamp_ms: int
    checksum: int


class Produced(NamedTuple):
    """The sent records by partition in offset order, and the figures computed from the CSV."""

    partitions: dict[int, list[Sent]]
    delays: Delays
    value_bytes: int

    @property
    def records(self) -> int:
        """The number of records."""
        return sum(len(sent) for sent in self.partitions.values())

    @property
    def checksum(self) -> int:
        """The sum of all values' checksums, independent of order."""
        return sum(record.checksum for sent in self.partitions.values() for record in sent)

    def middle_hour_ms(self) -> int:
        """Returns the full hour before which about half of the flights depart."""
        times = sorted(record.timestamp_ms for sent in self.partitions.values() for record in sent)
        return times[len(times) // 2] // HOUR_MS * HOUR_MS


def produce_flights(
    bootstrap: str, topic: str, flights: Iterable[Flight], on_progress: Callable[[int], None], **client: Any
) -> Produced:
    """Sends every flight and waits for the acknowledgements; `on_progress` receives numbers of records sent.

    `client` are more settings of the producer. Raises JobError if the broker refuses a record.
    """
    settings = {"acks": "all", "linger_ms": 20, "batch_size": 128 * 1024, **client}
    producer = KafkaProducer(bootstrap_servers=bootstrap, **settings)
    refused: list[BaseException] = []
    first_of: dict[str, Any] = {}
    sent: list[tuple[str, int, int]] = []
    value_bytes = 0

    def remember() -> Iterable[Flight]:
        nonlocal value_bytes
        for number, flight in enumerate(flights):
            value = flight.value
            future = producer.send(topic, key=flight.key, value=value, timestamp_ms=flight.timestamp_ms)
            future.add_errback(refused.append)
            first_of.setdefault(flight.carrier, future)
            sent.append((flight.carrier, flight.timestamp_ms, crc32(value)))
            value_bytes += len(value)
            if number % 1000 == 999:
                on_progress(1000)
            yield flight

    try:
        delays = count_delays(remember())
        on_progress(len(sent) % 1000)
        _flush(producer)
        if refused:
            raise JobError(f"The broker refused {len(refused)} of {len(sent)} records, the first with: {refused[0]}")
        partition_of = {carrier: future.get().partition for carrier, future in first_of.items()}
    finally:
        producer.close()
    partitions: dict[int, list[Sent]] = {partition: [] for partition in range(PARTITIONS)}
    for carrier, timestamp_ms, checksum in sent:
        partition = partition_of[carrier]
        partitions[partition].append(Sent(partition, timestamp_ms, checksum))
    return Produced(partitions, delays, value_bytes)


def _flush(producer: KafkaProducer) -> None:
    """Waits for all records. kafka-python 3.0.12 ends a flush with an UnknownError if it splits a batch meanwhile."""
    while True:
        try:
            producer.flush()
        except UnknownError:
            continue
        return
