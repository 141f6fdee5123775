"""Clients that check their own work: every record that they write is read once and in order.

RULES    1. A round writes some records to every partition of its own topic and reads until it has all of them.
         2. Any deviation is an exception: a client error, a lost, repeated, moved or changed record, a round without end.
NOT HERE The disturbance (`fuzzing_peer.py`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from threading import Event
from typing import Any, NamedTuple, Union

import confluent_kafka
import kafka

from protocol.batch_builder import BatchBuilder
from protocol.errors import ErrorCode
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from protocol.records import crc_is_valid, headers, records
from tests.support.loading import ask_for, fetch_request, produce
from tests.support.raw_client import RawClient

PARTITIONS = 3
PER_PARTITION = 20
WAIT_S = 60.0
PAUSE_S = 0.05
"""Between two rounds: they are to be disturbed, not to be fast."""

_FETCH_VERSION = 12
_POLL_S = 0.5


class Record(NamedTuple):
    """The compared fields."""

    partition: int
    offset: int
    value: bytes


Client = Union["Librdkafka", "KafkaPython", "Raw"]
"""`write` gets values for each partition and waits for their acknowledgement; `read` returns some more records in order."""


class Librdkafka:
    """confluent-kafka: an idempotent producer, and a consumer in a group that commits what it has read."""

    def __init__(self, bootstrap: str, topic: str, settings: Mapping[str, object] | None = None) -> None:
        """`settings` of both."""
        self._topic = topic
        self._errors: list[object] = []
        common = {"bootstrap.servers": bootstrap, "error_cb": self._errors.append, **(settings or {})}
        self._producer = confluent_kafka.Producer({**common, "enable.idempotence": True, "linger.ms": 5})
        self._consumer = confluent_kafka.Consumer(
            {
                **common,
                "group.id": f"group-of-{topic}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "check.crcs": True,
                "on_commit": self._delivered,
            }
        )
        self._consumer.subscribe([topic])

    def write(self, values: Sequence[Sequence[bytes]]) -> None:
        for partition, some in enumerate(values):
            for value in some:
                self._producer.produce(self._topic, value, partition=partition, on_delivery=self._delivered)
        assert self._producer.flush(WAIT_S) == 0, "not acknowledged in time"
        assert not self._errors, self._errors

    def read(self) -> list[Record]:
        """Polls once, and commits."""
        messages: list[Any] = self._consumer.consume(PARTITIONS * PER_PARTITION, _POLL_S)
        self._errors += [message.error() for message in messages if message.error() is not None]
        assert not self._errors, self._errors
        if messages:
            self._consumer.commit(asynchronous=True)  # else it waits for ever for a broker that is gone
        return [Record(message.partition(), message.offset(), message.value()) for message in messages]

    def close(self) -> None:
        self._producer.close()
        self._consumer.close()

    def _delivered(self, error: object, _: object) -> None:
        if error is not None:
            self._errors.append(error)


class KafkaPython:
    """kafka-python: the same with another implementation."""

    def __init__(self, bootstrap: str, topic: str, settings: Mapping[str, object] | None = None) -> None:
        """`settings` of both."""
        self._topic = topic
        common = {"bootstrap_servers": bootstrap, **(settings or {})}
        self._producer = kafka.KafkaProducer(acks="all", linger_ms=5, retries=0, **common)
        self._consumer = kafka.KafkaConsumer(
            topic,
            **common,
            group_id=f"group-of-{topic}",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )

    def write(self, values: Sequence[Sequence[bytes]]) -> None:
        sent = [
            self._producer.send(self._topic, value, partition=partition)
            for partition, some in enumerate(values)
            for value in some
        ]
        for future in sent:
            future.get(WAIT_S)

    def read(self) -> list[Record]:
        """Polls once, and commits."""
        found = [
            Record(record.partition, record.offset, record.value)
            for batch in self._consumer.poll(int(_POLL_S * 1000)).values()
            for record in batch
        ]
        if found:
            self._consumer.commit()
        return found

    def close(self) -> None:
        self._producer.close()
        self._consumer.close()


class Raw:
    """One connection with one incremental fetch session."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._client = RawClient(bootstrap, timeout_s=WAIT_S)
        wanted = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        (described,) = self._client.ask(wanted, 12).topics
        self._topic_id: bytes = described.topic_id
        self._positions = dict.fromkeys(range(PARTITIONS), 0)
        self._moved = set(self._positions)
        self._session_id = self._session_epoch = 0

    def write(self, values: Sequence[Sequence[bytes]]) -> None:
        """One batch per partition."""
        batches = []
        for some in values:
            builder = BatchBuilder()
            for value in some:
                builder.append(time.time_ns() // 1_000_000, None, value)  # not so old that retention takes it
            batches.append(bytes(builder.build()))
        produce(self._client, {self._topic: batches})

    def read(self) -> list[Record]:
        """One request of the session: it returns the changed partitions."""
        positions = {(self._topic, self._topic_id, index): self._positions[index] for index in sorted(self._moved)}
        request = fetch_request(_FETCH_VERSION, positions, max_wait_ms=int(_POLL_S * 1000))
        request.session_id, request.session_epoch = self._session_id, self._session_epoch
        answer, _ = ask_for(self._client, request, _FETCH_VERSION)
        if answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:  # evicted by other sessions: start a new one
            self._session_id = self._session_epoch = 0
            self._moved |= self._positions.keys()
            return []
        assert answer.error_code == 0, f"Fetch is answered with {answer.error_code}"
        self._session_id, self._session_epoch = answer.session_id, self._session_epoch + 1
        self._moved.clear()
        found = []
        for topic in answer.responses:
            for data in topic.partitions:
                assert data.error_code == 0, f"partition {data.partition_index} has error {data.error_code}"
                for position, header in headers(data.records or b""):
                    assert crc_is_valid(data.records, position, header)
                    found += [
                        Record(data.partition_index, record.offset, bytes(record.value or b""))
                        for record in records(data.records, position, header, max_bytes=1 << 20)
                    ]
                    self._positions[data.partition_index] = header.next_offset
                    self._moved.add(data.partition_index)
        return found

    def close(self) -> None:
        self._client.close()


CLIENTS: dict[str, Callable[[str, str], Client]] = {
    "librdkafka": Librdkafka,
    "kafka-python": KafkaPython,
    "raw": Raw,
}


def work(make: Callable[[], Client], seed: int, over: Event) -> int:
    """Runs at least one round until it is stopped; returns the number of records per partition."""
    rng = random.Random(seed)
    end = 0
    with closing(make()) as client:
        while not end or not over.wait(PAUSE_S):
            _round(client, rng, end)
            end += PER_PARTITION
    return end


def _round(client: Client, rng: random.Random, start: int) -> None:
    values = [[rng.randbytes(rng.randrange(200)) for _ in range(PER_PARTITION)] for _ in range(PARTITIONS)]
    client.write(values)
    expected = {
        partition: [Record(partition, start + number, value) for number, value in enumerate(some)]
        for partition, some in enumerate(values)
    }
    found: dict[int, list[Record]] = {partition: [] for partition in expected}
    deadline = time.monotonic() + WAIT_S
    while sum(map(len, found.values())) < PARTITIONS * PER_PARTITION:
        for record in client.read():
            found[record.partition].append(record)
        assert time.monotonic() < deadline, f"records from {start} on did not all come: {found}"
    assert found == expected
