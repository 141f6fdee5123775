"""The driver's requests to the brokers: topics, offsets and configs; offset commits, record deletion.

RULES    1. An unreachable broker or a missing topic raises JobError within seconds.
         2. The end offset of a partition is its last stable offset, as for a consumer with read_committed.
         3. Only requests of Kafka's protocol are used, so every Kafka cluster works.
NOT HERE Records: Spark reads them (`kafka_source.py`), executors send them (`sender.py`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource  # confluent_kafka.admin re-exports these without __all__
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from barnabas.client.client_settings import for_kafka_python, for_librdkafka, security_of
from barnabas.client.error_codes import is_denial
from barnabas.client.first_contact import check_answers
from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.errors import JobError, denied
from barnabas.pipeline.port_check import CONNECT_TIMEOUT_S, addresses_of, check_reachable
from barnabas.pipeline.settings import BrokerSettings

REQUEST_TIMEOUT_S = 30.0
RETRY_PAUSE_S = 0.2
RETRIABLE_LEADER_ERRORS = (
    "_NOENT",
    "UNKNOWN_TOPIC_OR_PART",
    "OFFSET_NOT_AVAILABLE",
    "FENCED_LEADER_EPOCH",
    "UNKNOWN_LEADER_EPOCH",
    "NOT_LEADER_FOR_PARTITION",
    "LEADER_NOT_AVAILABLE",
    "NETWORK_EXCEPTION",
)
"""Errors of stale and of new leaders, or if a broker dies; the client does not refresh its metadata by itself."""
NO_ANSWER_ERRORS = (
    "_TIMED_OUT",
    "_TIMED_OUT_QUEUE",
    "_TRANSPORT",
    "_ALL_BROKERS_DOWN",
    "REQUEST_TIMED_OUT",
    "NETWORK_EXCEPTION",
)
"""Errors of a request without a response: nothing was refused."""
TRY_LATER = "run the job again when it is available"
_UNKNOWN_SETTING = re.compile(r'No such configuration property: "([^"]+)"')
_EARLIEST: Any = OffsetSpec.earliest()
_LATEST: Any = OffsetSpec.latest()
Answers = Mapping[ClientPartition, Any]
"""A future for each partition."""


class Span(NamedTuple):
    """Offsets of a partition; the end is exclusive."""

    start: int
    end: int


class Topic(NamedTuple):
    """The metadata of a topic."""

    name: str
    id: str
    partitions: int

    def topic_partitions(self) -> list[TopicPartition]:
        """Returns the topic's partitions."""
        return [TopicPartition(self.name, number) for number in range(self.partitions)]


class Brokers:
    """A Kafka cluster. Raises JobError if no broker answers, or refuses the login, or a setting is wrong."""

    def __init__(self, settings: BrokerSettings) -> None:
        given = self._given = settings.client_settings()
        self.security = security_of(given)
        check_reachable("broker", settings.bootstrap)
        check_answers(addresses_of(settings.bootstrap), self.security, options="--kafka or --command-config")
        self.client_settings: dict[str, str | int | float] = {
            "bootstrap.servers": settings.bootstrap,
            "log_level": 0,
            **for_librdkafka(given),
        }
        self.bootstrap = settings.bootstrap
        self._admin = self._connect()

    def _connect(self) -> AdminClient:
        """The client for requests; removes the settings that only Java's clients know. Raises JobError for a wrong value."""
        while True:
            try:
                return AdminClient(dict(self.client_settings))
            except KafkaException as failure:
                sentence = failure.args[0].str()
                unknown = _UNKNOWN_SETTING.search(sentence)
                if unknown is None:
                    raise JobError(f"A setting of the Kafka clients cannot be used: {sentence}.") from failure
                del self.client_settings[unknown[1]]

    def cluster_id(self) -> str:
        """Returns the cluster id."""
        return str(self._ask(lambda: self._admin.describe_cluster(request_timeout=REQUEST_TIMEOUT_S)).cluster_id)

    def find_topics(self, names: Collection[str], pattern: str | None = None) -> dict[str, Topic]:
        """Returns these topics and all that match the pattern. Raises JobError if one is missing or none matches."""
        chosen = set(names)
        if "" in chosen:
            raise JobError("The name of a topic is empty: name a topic.")
        if pattern is not None:
            chosen |= {name for name in self._names() if re.fullmatch(pattern, name) and not name.startswith("__")}
            if not chosen:
                raise JobError(f"No topic at {self.bootstrap} matches the pattern {pattern!r}.")
        return {name: self._describe(name) for name in sorted(chosen)}

    def beginning_offsets(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the log start offset of each partition."""
        return self._offsets(topic_partitions, _EARLIEST)

    def end_offsets(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the last stable offset of each partition (rule 2)."""
        return self._offsets(topic_partitions, _LATEST)

    def spans(self, topics: Iterable[Topic]) -> dict[TopicPartition, Span]:
        """Returns the offsets of these topics, from the log start offset to the last stable offset."""
        partitions = [tp for topic in topics for tp in topic.topic_partitions()]
        starts, ends = self.beginning_offsets(partitions), self.end_offsets(partitions)
        return {tp: Span(starts[tp], ends[tp]) for tp in partitions}

    def high_watermarks(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the high watermark of each partition: the end for read_uncommitted."""
        return self._offsets(topic_partitions, _LATEST, IsolationLevel.READ_UNCOMMITTED)

    def offsets_for_time(
        self, topic_partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Returns the first offset at or after this timestamp; partitions without one are left out."""
        spec: Any = OffsetSpec.for_timestamp(timestamp_ms)
        return {tp: offset for tp, offset in self._offsets(topic_partitions, spec).items() if offset >= 0}

    def leader(self, tp: TopicPartition) -> tuple[str, int]:
        """Returns host and port of the partition's leader."""
        node = self._describe_topic(tp.topic).partitions[tp.partition].leader
        if node is None:
            raise JobError(f"{tp} has no leader now: try again.")
        return str(node.host), int(node.port)

    def consume(self, spans: Mapping[TopicPartition, Span]) -> Iterator[Any]:
        """Yields the committed records of these offsets, read by a consumer in the driver: for small topics."""
        left = {tp: span for tp, span in spans.items() if span.start < span.end}
        settings = {
            "group.id": "barnabas",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",  # for a start that was deleted meanwhile
        }
        consumer = Consumer({**self.client_settings, **settings})
        try:
            consumer.assign([ClientPartition(*tp, span.start) for tp, span in left.items()])
            while left:
                message: Any = consumer.poll(REQUEST_TIMEOUT_S)
                if message is None:
                    raise JobError(f"The broker at {self.bootstrap} does not answer: {TRY_LATER}.")
                tp = TopicPartition(str(message.topic()), message.partition())
                failure = message.error()
                if failure is not None and failure.name() == "GROUP_AUTHORIZATION_FAILED":
                    continue  # the client asks for the coordinator of its group, although it only reads partitions
                if failure is not None and failure.name() != "_PARTITION_EOF":
                    raise self._error(failure, f"Read on topic {tp.topic}")
                if tp in left and failure is None and message.offset() < left[tp].end:
                    yield message
                if failure is not None or message.offset() + 1 >= spans[tp].end:
                    left.pop(tp, None)
        finally:
            consumer.close()

    def topic_configs(self, topic: str) -> dict[str, str]:
        """Returns the topic's configs, including defaults."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        found = self._ask(
            lambda: self._admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)[resource],
            f"DescribeConfigs on topic {topic}",
        )
        return {name: entry.value for name, entry in found.items()}

    def create_topic(self, name: str, partitions: int, replication: int, configs: Mapping[str, str]) -> None:
        """Creates a topic with these configs and waits for the response; `replication` -1 is the broker's default."""
        topic = NewTopic(name, partitions, replication, config=dict(configs))
        created = self._admin.create_topics([topic], request_timeout=REQUEST_TIMEOUT_S)[name]
        self._result(created, f"Create on topic {name}")

    def delete_topic(self, name: str) -> None:
        """Deletes a topic and waits for the response."""
        deleted = self._admin.delete_topics([name], request_timeout=REQUEST_TIMEOUT_S)[name]
        self._result(deleted, f"Delete on topic {name}")

    def exists(self, topic: str) -> bool:
        """Returns whether the topic exists."""
        return topic in self._names()

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Deletes the records below these offsets."""
        deletions = [ClientPartition(*tp, offset) for tp, offset in before.items()]

        def ask() -> Answers:
            return self._admin.delete_records(deletions, request_timeout=REQUEST_TIMEOUT_S)

        self._ask_leaders(ask, lambda deleted: deleted.low_watermark, "Delete")

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits offsets for a group without members, so that tools show its lag.

        librdkafka's request for this can end the process if the broker dies before it answers (its issue 4605).
        """
        # Not at the top: in the archive for workers the client's schemas cannot be read.
        from barnabas.admin.client import Client
        from barnabas.admin.errors import Refused
        from barnabas.admin.groups import commit_offsets

        settings = {"bootstrap_servers": self.bootstrap, **for_kafka_python(self._given)}
        try:
            with Client(settings, timeout_s=REQUEST_TIMEOUT_S) as client:
                commit_offsets(client, group, offsets)
        except Refused as refused:
            if not is_denial(refused.name):
                raise JobError(f"The offsets of the group {group} could not be committed: {refused}") from refused
            topics = ", ".join(sorted({tp.topic for tp in offsets}))
            of_group = refused.name == "GROUP_AUTHORIZATION_FAILED"
            right = f"Read on group {group}" if of_group else f"Read on topic {topics}"
            raise denied(self.bootstrap, right) from refused

    def committed(self, group: str, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the group's committed offsets; partitions without one are left out."""
        consumer = Consumer({**self.client_settings, "group.id": group, "isolation.level": "read_committed"})
        try:
            found = consumer.committed([ClientPartition(*tp) for tp in topic_partitions], timeout=REQUEST_TIMEOUT_S)
        except KafkaException as failure:
            raise self._error(failure.args[0], f"Read on group {group}") from failure
        finally:
            consumer.close()
        return {TopicPartition(tp.topic, tp.partition): tp.offset for tp in found if tp.offset >= 0}

    def check_group_access(self, group: str) -> None:
        """Raises JobError if the broker denies the group. A consumer or producer would retry until its timeout.

        Other errors are ignored here: the client that uses the group retries them.
        """
        request = ConsumerGroupTopicPartitions(group)
        answer = self._admin.list_consumer_group_offsets([request], request_timeout=REQUEST_TIMEOUT_S)[group]
        failure = answer.exception(REQUEST_TIMEOUT_S + CONNECT_TIMEOUT_S)
        if isinstance(failure, KafkaException) and is_denial(failure.args[0].name()):
            raise denied(self.bootstrap, f"Read on group {group}")

    # --- requests ---

    def _names(self) -> set[str]:
        try:
            return set(_repeated(lambda: self._admin.list_topics(timeout=REQUEST_TIMEOUT_S)).topics)
        except KafkaException as failure:
            raise self._error(failure.args[0]) from failure

    def _describe(self, name: str) -> Topic:
        found = self._describe_topic(name)
        return Topic(name, str(found.topic_id), len(found.partitions))

    def _describe_topic(self, name: str) -> Any:
        def ask() -> Any:
            return self._admin.describe_topics(TopicCollection([name]), request_timeout=REQUEST_TIMEOUT_S)[name]

        try:
            return _repeated(lambda: _answer_in(ask()))
        except KafkaException as failure:
            if failure.args[0].name() == "UNKNOWN_TOPIC_OR_PART":
                raise JobError(f"There is no topic {name} at {self.bootstrap}.") from failure
            raise self._error(failure.args[0], f"Describe on topic {name}") from failure

    def _offsets(
        self,
        topic_partitions: Iterable[TopicPartition],
        which: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[TopicPartition, int]:
        """Requests ListOffsets."""
        specs = {ClientPartition(*tp): which for tp in topic_partitions}
        if not specs:
            return {}

        def ask() -> Answers:
            return self._admin.list_offsets(specs, isolation_level=isolation, request_timeout=REQUEST_TIMEOUT_S)

        return self._ask_leaders(ask, _offset_in, "Describe")

    def _ask_leaders(
        self, ask: Callable[[], Answers], offset_in: Callable[[Any], int], right: str
    ) -> dict[TopicPartition, int]:
        """The offsets that leaders answer; retries while the client's metadata has former ones, or a connection is lost."""
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        while True:
            answers = ask()
            topic = ""
            found: dict[TopicPartition, int] = {}
            try:
                for at, answer in answers.items():
                    topic = at.topic
                    tp = TopicPartition(at.topic, at.partition)
                    found[tp] = offset_in(_answer_in(answer))
            except KafkaException as failure:
                if failure.args[0].name() not in RETRIABLE_LEADER_ERRORS or time.monotonic() > deadline:
                    raise self._error(failure.args[0], f"{right} on topic {topic}") from failure
                self._refresh_leaders({at.topic for at in answers})
            else:
                return found

    def _refresh_leaders(self, topics: Iterable[str]) -> None:
        """Refreshes the client's metadata. Raises JobError if one of the topics is missing."""
        time.sleep(RETRY_PAUSE_S)
        missing = sorted(set(topics) - self._names())
        if missing:
            name = missing[0]
            raise JobError(f"There is no topic {name} at {self.bootstrap}, or it denies Describe on topic {name}.")

    def _ask(self, ask: Callable[[], Any], right: str = "") -> Any:
        """The answer to a request that changes nothing."""
        try:
            return _repeated(lambda: _answer_in(ask()))
        except KafkaException as failure:
            raise self._error(failure.args[0], right) from failure

    def _result(self, future: Any, right: str = "") -> Any:
        try:
            return _answer_in(future)
        except KafkaException as failure:
            raise self._error(failure.args[0], right) from failure

    def _error(self, error: Any, right: str = "") -> JobError:
        """The JobError for a client's error; `right` is the one that the request needs."""
        if is_denial(error.name()):
            return denied(self.bootstrap, right)
        if error.name() in NO_ANSWER_ERRORS:
            return JobError(f"The broker at {self.bootstrap} does not answer ({error.str()}): {TRY_LATER}.")
        return JobError(f"The broker at {self.bootstrap} refused: {error.str()}.")


def _repeated(ask: Callable[[], Any]) -> Any:
    """The answer to a request that changes nothing; if its broker dies before it answers, another one is asked."""
    deadline = time.monotonic() + REQUEST_TIMEOUT_S
    while True:
        try:
            return ask()
        except KafkaException as failure:
            if failure.args[0].name() != "_TRANSPORT" or time.monotonic() > deadline:
                raise
        time.sleep(RETRY_PAUSE_S)


def _answer_in(future: Any) -> Any:
    return future.result(REQUEST_TIMEOUT_S + CONNECT_TIMEOUT_S)


def _offset_in(answer: Any) -> int:
    """The offset of a result of ListOffsets. Raises KafkaException if the connection was lost, which the client hides."""
    if answer.offset == OFFSET_INVALID:
        raise KafkaException(KafkaError(KafkaError.NETWORK_EXCEPTION))
    return int(answer.offset)
