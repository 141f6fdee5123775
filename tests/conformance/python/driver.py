"""The skeleton of the Python drivers: requests as JSON lines on standard input, answers as JSON lines on standard output.

FORMAT   `tests/conformance/suite/steps.py`; a verb is a method of the driver.
RULES    1. A verb without a method is unsupported, for the reason in `MISSING`.
         2. Nothing else is written to standard output.
         3. Settings have Kafka's names; each driver translates them for its library.
"""

from __future__ import annotations

import json
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property
from time import monotonic
from typing import Any, ClassVar, NamedTuple

from tests.conformance.python.polling_consumer import PollingConsumer
from tests.conformance.suite.steps import decoded, encoded

WAIT_S = 30.0
NO_SUCH_CALL = "the client has no such call"
UNCOMMITTED = "read_uncommitted"

Settings = dict[str, Any]
Security = dict[str, str]
"""The fields of `Login` (`tests/support/security_profiles.py`); empty at a plaintext listener."""
Answer = dict[str, Any]
JsonRecord = dict[str, Any]


class Unsupported(Exception):
    """The client library has no way to do this."""


class Failure(NamedTuple):
    """What an exception of the library means: the broker's error code, or the library's own name for the error."""

    code: int | str
    message: str


class Driver(ABC):
    """The verbs that are alike for every library, built on a few calls that each library implements."""

    ASSIGNORS: ClassVar[dict[str, Any]]
    VERSION: ClassVar[str]
    NO_ASSIGNOR = "no assignor {}"
    PROTOCOLS: ClassVar[tuple[str, ...]] = ("classic",)
    MISSING: ClassVar[dict[str, str]] = {}

    def __init__(self, bootstrap: str, security: Security | None = None) -> None:
        """The client connects at its first request."""
        self._bootstrap = bootstrap
        self._security = security or {}
        self._members: dict[str, PollingConsumer] = {}
        self._producers: dict[str, Any] = {}

    # ---- what each library implements

    @abstractmethod
    def new_producer(self, settings: Settings) -> Any:
        """A connected producer; with a transactional id its transactions are initialised."""

    def close_producer(self, producer: Any) -> None:
        producer.close()

    @abstractmethod
    def send_records(self, producer: Any, topic: str, records: list[JsonRecord]) -> list[int]:
        """The offsets, in the order of the records; -1 where the broker does not acknowledge."""

    @abstractmethod
    def new_consumer(self, settings: Settings, topics: Iterable[str] = ()) -> Any:
        """A consumer, subscribed to the topics if there are any."""

    def start_consumer(self, consumer: Any) -> None:  # noqa: B027 - only aiokafka needs it
        """Runs in the member's thread before its first poll."""

    @abstractmethod
    def assign(self, consumer: Any, topic: str, partitions: list[int], offset: int | None) -> None:
        """From the earliest offset if `offset` is None."""

    @abstractmethod
    def poll(self, consumer: Any, timeout_s: float, limit: int) -> list[JsonRecord]: ...

    def poll_member(self, consumer: Any) -> list[JsonRecord]:
        """One poll of a group member."""
        return self.poll(consumer, 0.05, 500)

    @abstractmethod
    def assignment(self, consumer: Any) -> list[tuple[str, int]]: ...

    @abstractmethod
    def commit_positions(self, consumer: Any) -> None: ...

    def close_consumer(self, consumer: Any) -> None:
        consumer.close()

    def close_admin(self) -> None:  # noqa: B027 - librdkafka's has no close
        ...

    @abstractmethod
    def failure_of(self, error: BaseException) -> Failure | None:
        """None for an exception that is a fault of the driver."""

    # ---- the process

    @classmethod
    def main(cls) -> None:
        """Serves with the arguments of the process: HOST:PORT and, on a secured listener, its security."""
        bootstrap, *security = sys.argv[1:]
        cls(bootstrap, *map(json.loads, security)).serve()

    def serve(self) -> None:
        """Answers requests until the input ends."""
        for line in sys.stdin:
            request = json.loads(line)
            sys.stdout.write(json.dumps(self._answer(request.pop("verb"), request)) + "\n")
            sys.stdout.flush()
        self.reset()

    def _answer(self, verb: str, arguments: Answer) -> Answer:
        method = getattr(self, verb, None)
        if method is None:
            return {"unsupported": self.MISSING.get(verb, NO_SUCH_CALL)}
        try:
            return {"told": method(**arguments) or {}}
        except Unsupported as reason:
            return {"unsupported": str(reason)}
        except Exception as error:
            failure = self.failure_of(error)
            if failure is None:
                raise
            return {"refused": failure.code, "message": failure.message}

    def reset(self) -> None:
        for member in self._members.values():
            member.leave()
        for producer in self._producers.values():
            self.close_producer(producer)
        self._members.clear()
        self._producers.clear()

    def close(self) -> None:
        """Closes members, producers and the admin client."""
        self.reset()
        self.close_admin()

    def hello(self) -> Answer:
        return {"version": self.VERSION}

    # ---- records

    def produce(
        self, topic: str, records: list[JsonRecord], codec: str = "none", acks: str = "all", idempotent: bool = False,
        auto_create: bool = False,
    ) -> Answer:  # fmt: skip
        producer = self.new_producer(
            {
                "compression.type": codec, "acks": acks if acks == "all" else int(acks),
                "enable.idempotence": idempotent, "max.request.size": 2_000_000, "linger.ms": 5,
            }
        )  # fmt: skip
        try:
            return {"offsets": self.send_records(producer, topic, records)}
        finally:
            self.close_producer(producer)

    def consume(
        self, topic: str, partitions: list[int], count: int, offset: int | None = None, isolation: str = UNCOMMITTED
    ) -> Answer:
        consumer = self.new_consumer({"enable.auto.commit": False, "isolation.level": isolation})
        found: list[JsonRecord] = []
        try:
            self.start_consumer(consumer)
            self.assign(consumer, topic, partitions, offset)
            deadline = monotonic() + WAIT_S
            while len(found) < count and monotonic() < deadline:
                found += self.poll(consumer, 0.5, count - len(found))
        finally:
            self.close_consumer(consumer)
        return {"records": found}

    # ---- groups

    def join(
        self, member: str, group: str, topics: list[str], reset: str, commit: str, protocol: str = "classic",
        assignor: str = "range", instance: str | None = None, isolation: str = UNCOMMITTED, session_ms: int = 10_000,
        refresh_ms: int = 300_000, transactional_id: str | None = None, producer: str | None = None,
        remote_assignor: str | None = None,
    ) -> None:  # fmt: skip
        if protocol not in self.PROTOCOLS:
            raise Unsupported("no consumer protocol (KIP-848)")
        settings = {
            "group.id": group, "auto.offset.reset": reset, "enable.auto.commit": commit == "auto",
            "auto.commit.interval.ms": 200, "isolation.level": isolation, "metadata.max.age.ms": refresh_ms,
        }  # fmt: skip
        if protocol == "classic":
            if assignor not in self.ASSIGNORS:
                raise Unsupported(self.NO_ASSIGNOR.format(assignor))
            settings["partition.assignment.strategy"] = self.ASSIGNORS[assignor]
            settings |= {"session.timeout.ms": session_ms, "heartbeat.interval.ms": 200}
        else:
            settings["group.protocol"] = protocol
            if remote_assignor is not None:
                settings["group.remote.assignor"] = remote_assignor
        if instance is not None:
            settings["group.instance.id"] = instance
        self._members[member] = PollingConsumer(self, self.new_consumer(settings, topics))

    def member(self, member: str) -> Answer:
        polling = self._members[member]
        assigned = polling.call(lambda: self.assignment(polling.consumer))
        return {"assigned": [list(partition) for partition in assigned], "records": polling.records}

    def commit(self, member: str) -> None:
        polling = self._members[member]
        polling.call(lambda: self.commit_positions(polling.consumer))

    def leave(self, member: str) -> None:
        self._members.pop(member).leave()

    # ---- transactions

    def open(self, producer: str, transactional_id: str, timeout_ms: int, codec: str = "none") -> None:
        self._producers[producer] = self.new_producer(
            {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms, "compression.type": codec}
        )

    def begin(self, producer: str) -> None:
        self._producers[producer].begin_transaction()

    def send(self, producer: str, topic: str, records: list[JsonRecord]) -> Answer:
        return {"offsets": self.send_records(self._producers[producer], topic, records)}

    def commit_transaction(self, producer: str) -> None:
        self._producers[producer].commit_transaction()

    def abort_transaction(self, producer: str) -> None:
        self._producers[producer].abort_transaction()


def headers_of(record: JsonRecord) -> list[tuple[str, bytes | None]]:
    """A record's headers as the libraries expect them."""
    return [(name, decoded(value)) for name, value in record["headers"]]


def json_record(
    partition: int, offset: int, timestamp: int, key: bytes | None, value: bytes | None,
    headers: Iterable[tuple[str, bytes | None]],
) -> JsonRecord:  # fmt: skip
    """A consumed record, in the format of the suite."""
    return {
        "partition": partition, "offset": offset, "timestamp": timestamp, "key": encoded(key), "value": encoded(value),
        "headers": [[name, encoded(one)] for name, one in headers],
    }  # fmt: skip


# ---- kafka-python and aiokafka share names and arguments


class KeywordDriver(Driver):
    """A driver of kafka-python or aiokafka."""

    TOPIC_PARTITION: ClassVar[type]
    ERRORS: ClassVar[Any]
    """The library's module of exceptions."""

    def __init__(self, bootstrap: str, security: Security | None = None) -> None:
        super().__init__(bootstrap, security)
        self._reasons = _ConnectionErrors()
        logging.getLogger(type(self).ERRORS.__name__.split(".")[0]).addHandler(self._reasons)

    @cached_property
    def _admin(self) -> Any:
        return self.new_admin()

    @abstractmethod
    def new_admin(self) -> Any:
        """A connected admin client."""

    def close_admin(self) -> None:
        if "_admin" in self.__dict__:
            self._admin.close()

    def list_topics(self) -> Answer:
        return {"topics": self._admin.list_topics()}

    def describe_topic(self, topic: str) -> Answer:
        (described,) = self._admin.describe_topics([topic])
        return {"partitions": len(described["partitions"])}

    def cluster_id(self) -> Answer:
        return {"id": self._admin.describe_cluster()["cluster_id"]}

    def assign(self, consumer: Any, topic: str, partitions: list[int], offset: int | None) -> None:
        assigned = [self.TOPIC_PARTITION(topic, partition) for partition in partitions]
        consumer.assign(assigned)
        if offset is None:
            consumer.seek_to_beginning(*assigned)
        else:
            for partition in assigned:
                consumer.seek(partition, offset)

    def assignment(self, consumer: Any) -> list[tuple[str, int]]:
        return list(consumer.assignment())

    def commit_positions(self, consumer: Any) -> None:
        consumer.commit()

    def failure_of(self, error: BaseException) -> Failure | None:
        if (
            isinstance(error, (self.ERRORS.KafkaConnectionError, self.ERRORS.KafkaTimeoutError))
            and self._reasons.reason
        ):
            return Failure(self._reasons.reason, self._reasons.text)
        if isinstance(error, self.ERRORS.BrokerResponseError):
            return Failure(error.errno, str(error))
        if isinstance(error, self.ERRORS.KafkaError):
            return Failure(type(error).__name__, str(error))
        return None


class _ConnectionErrors(logging.Handler):
    """The last reason why a connection failed: both libraries only log it, then time out."""

    NAMES: ClassVar = {"SaslAuthenticationFailed": "authentication", "CERTIFICATE_VERIFY_FAILED": "certificate"}
    reason = text = ""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        for part, name in self.NAMES.items():
            if part in text:
                self.reason, self.text = name, text


def keyword_settings(settings: Settings) -> Settings:
    """Keyword arguments of kafka-python and aiokafka."""
    translated = {name.replace(".", "_"): value for name, value in settings.items()}
    if translated.get("compression_type") == "none":
        translated["compression_type"] = None
    return translated


def sasl_keywords(security: Security) -> Settings:
    """Keyword arguments of kafka-python and aiokafka."""
    if not security:
        return {}
    given = {"security_protocol": security["protocol"], "sasl_mechanism": security["mechanism"]}
    given |= {"sasl_plain_username": security["user"], "sasl_plain_password": security["password"]}
    return {name: value for name, value in given.items() if value}


def send_arguments(records: Iterable[JsonRecord]) -> list[Settings]:
    """Keyword arguments of `send` for each record; raises `Unsupported` for a header without a value."""
    if any(value is None for record in records for _, value in record["headers"]):
        raise Unsupported("a header's value must be bytes")
    return [
        {
            "value": decoded(record["value"]), "key": decoded(record["key"]), "headers": headers_of(record),
            "partition": record["partition"], "timestamp_ms": record["timestamp"],
        }
        for record in records
    ]  # fmt: skip


def polled_records(polled: dict[Any, list[Any]]) -> list[JsonRecord]:
    """The result of `poll` or `getmany`."""
    return [
        json_record(record.partition, record.offset, record.timestamp, record.key, record.value, record.headers)
        for records in polled.values()
        for record in records
    ]
