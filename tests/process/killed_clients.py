"""Clients whose broker is killed: they continue, and record the broker's responses in a `AcknowledgedState`.

RULES    1. An error that a kill explains (no connection, timeout) is ignored; any other one is a failure.
         2. A request without a response may have been executed or not.
NOT HERE The checks (`acknowledged_state.py`).
"""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import confluent_kafka
import kafka
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kafka.errors import KafkaError

from protocol.errors import ErrorCode
from protocol.messages.logs import AlterReplicaLogDirsRequest
from tests.process.acknowledged_state import AcknowledgedState, ReadRecord, key_of, value_of
from tests.support.messages import message
from tests.support.raw_client import RawClient

QUICK = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100, "retry.backoff.ms": 20, "log_level": 0}
UNANSWERED = {
    "_TRANSPORT",
    "_TIMED_OUT",
    "_ALL_BROKERS_DOWN",
    "_TIMED_OUT_QUEUE",
    "REQUEST_TIMED_OUT",
    "_DESTROY",
    "_DESTROY_BROKER",
    "_NOENT",
}
PASSING = {
    "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR", "_WAIT_COORD", "REBALANCE_IN_PROGRESS",
    "ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "_NO_OFFSET", "_STATE", "_ASSIGNMENT_LOST", "GROUP_ID_NOT_FOUND",
}  # fmt: skip
"""What a client of a group hears around a restart."""
SMALL_BATCH = 15_000
"""What piles up while the broker is away has to fit into the smallest segment."""
_BREATH_S = 0.03
_ANSWER_S = 5.0


class Client(ABC):
    """A thread that repeats a step until it is stopped."""

    def __init__(self, bootstrap: str, memory: AcknowledgedState, seed: int) -> None:
        self.bootstrap = bootstrap
        self.memory = memory
        self.rng = random.Random(seed)
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    @abstractmethod
    def step(self) -> None:
        """Runs one step."""

    def finish(self) -> None:  # noqa: B027  # most need no clean end
        """Closes the client."""

    def _run(self) -> None:
        try:
            while not self.over.is_set():
                self.step()
            self.finish()
        except BaseException as error:
            with self.memory.lock:
                self.memory.failures.append(f"{type(self).__name__}: {error!r}")
            raise


class Writer(Client):
    """librdkafka: one idempotent producer through all kills, without timeouts, so that all its records arrive."""

    def __init__(
        self,
        bootstrap: str,
        memory: AcknowledgedState,
        seed: int,
        name: str,
        places: list[tuple[str, int]],
        settings: Mapping[str, Any],
    ) -> None:
        super().__init__(bootstrap, memory, seed)
        self.name = name
        self.places = places
        self.next = dict.fromkeys(places, 0)
        self.producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap, "message.timeout.ms": 0, "linger.ms": 2, "batch.size": SMALL_BATCH,
                **QUICK, **settings,
            }
        )  # fmt: skip

    def step(self) -> None:
        """Produces some records to one partition."""
        if len(self.producer) < 400:
            place = self.rng.choice(self.places)
            for _ in range(self.rng.randrange(1, 12)):
                number = self.next[place]
                self.next[place] = number + 1
                self.producer.produce(
                    place[0], value_of(self.name, number), key_of(number), place[1], on_delivery=self._delivered
                )
        self.producer.poll(_BREATH_S)

    def finish(self) -> None:
        """Waits until all are acknowledged."""
        left = self.producer.flush(60)
        assert not left, f"{left} records of {self.name} are not acknowledged"

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: Any) -> None:
        try:
            assert error is None, f"{self.name} was refused: {error}"
            with self.memory.lock:
                ledger = self.memory.ledgers[message.topic(), message.partition()]
                if message.offset() >= 0:  # of a repeated batch the client may not know it
                    ledger.acknowledge(message.offset(), message.value())
        except AssertionError as failure:
            with self.memory.lock:
                self.memory.failures.append(str(failure))


class PythonWriter(Client):
    """kafka-python: one record at a time."""

    def __init__(self, bootstrap: str, memory: AcknowledgedState, seed: int, name: str, place: tuple[str, int]) -> None:
        super().__init__(bootstrap, memory, seed)
        self.name, self.place, self.number = name, place, 0
        self.producer: Any = None

    def step(self) -> None:
        """Produces one record."""
        topic, partition = self.place
        value, key = value_of(self.name, self.number), key_of(self.number)
        try:
            if self.producer is None:
                self.producer = kafka.KafkaProducer(
                    bootstrap_servers=self.bootstrap, acks="all", retries=0, request_timeout_ms=3000, linger_ms=0,
                    max_block_ms=3000,
                )  # fmt: skip
            received = self.producer.send(topic, value, key, partition=partition).get(_ANSWER_S)
        except KafkaError:
            self.finish()
            self.over.wait(0.1)
            return
        with self.memory.lock:
            self.memory.ledgers[topic, partition].acknowledge(received.offset, value)
        self.number += 1

    def finish(self) -> None:
        """Closes the producer."""
        if self.producer is not None:
            with suppress(KafkaError):  # what it had was not acknowledged in time
                self.producer.close(0)
            self.producer = None


def explained(error: confluent_kafka.KafkaError) -> bool:
    """Whether a restart of the broker explains an error."""
    return error.name() in UNANSWERED | PASSING


def check_explained(error: confluent_kafka.KafkaException) -> None:
    """Raises an error that a restart does not explain."""
    if not explained(error.args[0]):
        raise error


class GroupReader(Client):
    """A group member that commits what it has read."""

    GROUP = "readers"

    def __init__(self, bootstrap: str, memory: AcknowledgedState, seed: int, topics: list[str]) -> None:
        super().__init__(bootstrap, memory, seed)
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap, "group.id": self.GROUP, "auto.offset.reset": "earliest",
                "enable.auto.commit": False, "check.crcs": True, "session.timeout.ms": 6000, **QUICK,
            }
        )  # fmt: skip
        self.consumer.subscribe(topics)

    def step(self) -> None:
        """Reads and commits some records."""
        received: list[Any] = self.consumer.consume(500, 0.1)
        for record in received:
            if record.error() is not None:
                assert explained(record.error()), record.error()
                continue
            with self.memory.lock:
                ledger = self.memory.ledgers[record.topic(), record.partition()]
                ledger.see(ReadRecord(record.offset(), record.key(), record.value()))
        if received:
            self._commit()

    def _commit(self) -> None:
        try:
            committed = self.consumer.commit(asynchronous=False)
        except confluent_kafka.KafkaException as error:
            check_explained(error)
            return
        with self.memory.lock:
            for place in committed or ():
                if place.error is None and place.offset >= 0:  # below: nothing was read there, so nothing is committed
                    key = (self.GROUP, place.topic, place.partition)
                    self.memory.committed[key] = max(place.offset, self.memory.committed.get(key, 0))

    def finish(self) -> None:
        """Leaves the group."""
        self.consumer.close()


class Administrator(Client):
    """Creates and deletes topics, changes their configs, deletes records, moves partitions."""

    def __init__(
        self, bootstrap: str, memory: AcknowledgedState, seed: int, directories: list[str], trimmed: str, moving: str
    ) -> None:
        super().__init__(bootstrap, memory, seed)
        self.admin = AdminClient({"bootstrap.servers": bootstrap, **QUICK})
        self.directories, self.trimmed, self.moving = directories, trimmed, moving
        self.count = 0

    def step(self) -> None:
        """Runs one of these."""
        act = self.rng.choice((self._create, self._delete, self._change, self._trim, self._move))
        try:
            act()
        except confluent_kafka.KafkaException as error:
            check_explained(error)
        except (OSError, EOFError):
            pass
        self.over.wait(self.rng.random() * 0.1)

    def _create(self) -> None:
        name = f"passing-{self.count}"
        self.count += 1
        settings = {"retention.ms": str(self.rng.randrange(10**6, 10**9))}
        self.admin.create_topics([NewTopic(name, self.rng.randrange(1, 4), 1, config=settings)])[name].result(_ANSWER_S)
        with self.memory.lock:
            self.memory.topics[name] = settings

    def _some(self) -> str | None:
        with self.memory.lock:
            names = [name for name, settings in self.memory.topics.items() if settings is not None]
        return self.rng.choice(names) if names else None

    def _delete(self) -> None:
        name = self._some()
        if name is not None:
            with self.memory.lock:
                del self.memory.topics[name]
            self.admin.delete_topics([name])[name].result(_ANSWER_S)
            with self.memory.lock:
                self.memory.topics[name] = None

    def _change(self) -> None:
        name = self._some()
        if name is not None:
            with self.memory.lock:
                settings = dict(self.memory.topics.pop(name) or {})
            settings["retention.ms"] = str(self.rng.randrange(10**6, 10**9))
            entry = ConfigEntry("retention.ms", settings["retention.ms"], incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
            self.admin.incremental_alter_configs([resource])[resource].result(_ANSWER_S)
            with self.memory.lock:
                self.memory.topics[name] = settings

    def _trim(self) -> None:
        with self.memory.lock:
            offsets = self.memory.ledgers[self.trimmed, 0].acknowledged
            end = max(offsets, default=0)
        if end > 100:
            place = confluent_kafka.TopicPartition(self.trimmed, 0, end - 100)
            try:
                self.admin.delete_records([place])[place].result(_ANSWER_S)
            except confluent_kafka.KafkaException as error:
                if error.args[0].name() != "OFFSET_OUT_OF_RANGE":  # it begins behind it already
                    raise

    def _move(self) -> None:
        wanted = {"path": self.rng.choice(self.directories), "topics": [{"name": self.moving, "partitions": [0]}]}
        with RawClient(self.bootstrap, _ANSWER_S) as client:
            answer = client.ask(message(AlterReplicaLogDirsRequest, dirs=[wanted]), 2)
        code = answer.results[0].partitions[0].error_code
        assert code in {ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR}, code
