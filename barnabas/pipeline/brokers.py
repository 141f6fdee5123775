"""What a job's driver asks the brokers itself: topics, offsets, settings; what it tells them: commits, trimming.

RULES    1. A broker that is not there, or a topic that is not there, is one sentence within seconds.
         2. The end of a partition is the last stable offset: what read_committed can read up to.
         3. Only Kafka's protocol: the same against Apache Kafka.
NOT HERE Records: Spark reads them (`kafka_source.py`), executors send them (`sender.py`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource  # the face re-exports these without saying so
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from barnabas.pipeline.errors import JobError
from barnabas.pipeline.port_check import CONNECT_LIMIT_S, NobodyListens, see_that_somebody_listens
from barnabas.pipeline.settings import BrokerSettings

LIMIT_S = 30.0
LOOK_EVERY_S = 0.2
COMMIT_LIMIT_S = 8.0
"""A commit that was under way when its broker died is not told of, and not sent again: so long is waited for its answer."""
PASSES = ("NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS", "_TIMED_OUT", "_TRANSPORT")
"""What a commit is told while the group's coordinator is being found, moves, or is started again."""
LEADER_MOVED = (
    "_NOENT",
    "FENCED_LEADER_EPOCH",
    "UNKNOWN_LEADER_EPOCH",
    "NOT_LEADER_FOR_PARTITION",
    "LEADER_NOT_AVAILABLE",
)
"""How offsets are refused to a client that remembers the leaders of before: it does not ask for new ones by itself."""
_EARLIEST: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Span(NamedTuple):
    """Offsets of a partition; the end is exclusive."""

    start: int
    end: int


class Topic(NamedTuple):
    """A topic as the brokers know it now."""

    name: str
    id: str
    partitions: int
    replication: int


class Brokers:
    """A cluster that a job reads from or writes to."""

    def __init__(self, settings: BrokerSettings) -> None:
        try:
            see_that_somebody_listens(settings.bootstrap)
        except NobodyListens as failure:
            raise JobError(f"No broker answers at {settings.bootstrap}: {failure}.") from failure
        self.client_settings: dict[str, str | int | float] = {
            "bootstrap.servers": settings.bootstrap,
            "log_level": 0,
            **settings.client_settings(),
        }
        self.bootstrap = settings.bootstrap
        self._admin = AdminClient(dict(self.client_settings))

    def cluster_id(self) -> str:
        """The id that the cluster was formatted with."""
        return str(self._answer(self._admin.describe_cluster(request_timeout=LIMIT_S)).cluster_id)

    def find_topics(self, names: Collection[str], pattern: str | None = None) -> dict[str, Topic]:
        """The topics with these names, which must be there, and all whose whole name matches the pattern."""
        chosen = set(names)
        if pattern is not None:
            chosen |= {name for name in self._names() if re.fullmatch(pattern, name) and not name.startswith("__")}
            if not chosen:
                raise JobError(f"No topic at {self.bootstrap} matches the pattern {pattern!r}.")
        return {name: self._describe(name) for name in sorted(chosen)}

    def starts(self, places: Iterable[Place]) -> dict[Place, int]:
        """The log start offsets."""
        return self._offsets(places, _EARLIEST)

    def ends(self, places: Iterable[Place]) -> dict[Place, int]:
        """The last stable offsets (rule 2)."""
        return self._offsets(places, _LATEST)

    def high_watermarks(self, places: Iterable[Place]) -> dict[Place, int]:
        """How far all in-sync replicas have got: what read_uncommitted can read up to."""
        return self._offsets(places, _LATEST, IsolationLevel.READ_UNCOMMITTED)

    def offsets_at(self, places: Iterable[Place], moment_ms: int) -> dict[Place, int]:
        """The first offset whose own timestamp is as late; a partition without one is left out."""
        moment: Any = OffsetSpec.for_timestamp(moment_ms)
        return {place: offset for place, offset in self._offsets(places, moment).items() if offset >= 0}

    @property
    def is_plain(self) -> bool:
        """Whether a plain connection will do."""
        return str(self.client_settings.get("security.protocol", "PLAINTEXT")).upper() == "PLAINTEXT"

    def leader(self, place: Place) -> tuple[str, int]:
        """Where the partition's leader listens."""
        found = self._answer(self._admin.describe_topics(TopicCollection([place.topic]))[place.topic])
        node = found.partitions[place.partition].leader
        if node is None:
            raise JobError(f"{place} has no leader now: try again.")
        return str(node.host), int(node.port)

    def records(self, spans: Mapping[Place, Span]) -> Iterator[Any]:
        """The committed records of some partitions, as a consumer gets them: for a topic that is small."""
        left = {place: span for place, span in spans.items() if span.start < span.end}
        settings = {"group.id": "barnabas", "isolation.level": "read_committed", "enable.partition.eof": True}
        consumer = Consumer({**self.client_settings, **settings, "enable.auto.commit": False})
        try:
            consumer.assign([TopicPartition(*place, span.start) for place, span in left.items()])
            while left:
                message: Any = consumer.poll(LIMIT_S)
                if message is None:
                    raise JobError(f"The broker at {self.bootstrap} stopped answering.")
                place = Place(str(message.topic()), message.partition())
                failure = message.error()
                if failure is not None and failure.name() != "_PARTITION_EOF":
                    raise JobError(f"The broker at {self.bootstrap} refused: {failure.str()}.")
                if place in left and failure is None and message.offset() < left[place].end:
                    yield message
                if failure is not None or message.offset() + 1 >= spans[place].end:
                    left.pop(place, None)
        finally:
            consumer.close()

    def topic_settings(self, topic: str) -> dict[str, str]:
        """What the topic is configured to, defaults included."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        answer = self._answer(self._admin.describe_configs([resource], request_timeout=LIMIT_S)[resource])
        return {name: entry.value for name, entry in answer.items()}

    def create_topic(self, name: str, partitions: int, replication: int, settings: Mapping[str, str]) -> None:
        """A new topic, ready to be written to."""
        topic = NewTopic(name, partitions, replication, config=dict(settings))
        self._answer(self._admin.create_topics([topic], request_timeout=LIMIT_S)[name])

    def exists(self, topic: str) -> bool:
        """Whether there is such a topic."""
        return topic in self._names()

    def delete_records(self, before: Mapping[Place, int]) -> None:
        """Have the brokers forget what lies before these offsets."""
        wanted = [TopicPartition(*place, offset) for place, offset in before.items()]
        for answer in self._admin.delete_records(wanted, request_timeout=LIMIT_S).values():
            self._answer(answer)

    def commit(self, group: str, offsets: Mapping[Place, int]) -> None:
        """Let a group, which nobody is a member of, stand at these offsets: any tool shows its lag then."""
        deadline = time.monotonic() + LIMIT_S
        while (refusal := self._commit_refused(group, offsets)) is not None:
            if refusal.name() not in PASSES or time.monotonic() > deadline:
                raise JobError(f"The group {group} could not be set: {refusal.str()}.")
            time.sleep(LOOK_EVERY_S)

    def _commit_refused(self, group: str, offsets: Mapping[Place, int]) -> Any:
        """Why a commit was refused; None when it was not."""
        wanted = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        request = [ConsumerGroupTopicPartitions(group, wanted)]
        asked = self._admin.alter_consumer_group_offsets(request, request_timeout=COMMIT_LIMIT_S)[group]
        try:
            answer = asked.result(COMMIT_LIMIT_S + CONNECT_LIMIT_S)
        except KafkaException as failure:
            return failure.args[0]
        return next((place.error for place in answer.topic_partitions if place.error is not None), None)

    def committed(self, group: str, places: Iterable[Place]) -> dict[Place, int]:
        """Where a group stands; places without a commit are left out."""
        consumer = Consumer({**self.client_settings, "group.id": group, "isolation.level": "read_committed"})
        try:
            found = consumer.committed([TopicPartition(*place) for place in places], timeout=LIMIT_S)
        except KafkaException as failure:
            raise self._refusal(failure) from failure
        finally:
            consumer.close()
        return {Place(place.topic, place.partition): place.offset for place in found if place.offset >= 0}

    # --- asking ---

    def _names(self) -> set[str]:
        try:
            return set(self._admin.list_topics(timeout=LIMIT_S).topics)
        except KafkaException as failure:
            raise self._refusal(failure) from failure

    def _describe(self, name: str) -> Topic:
        asked = self._admin.describe_topics(TopicCollection([name]), request_timeout=LIMIT_S)
        try:
            found = asked[name].result(LIMIT_S + CONNECT_LIMIT_S)
        except KafkaException as failure:
            if failure.args[0].name() == "UNKNOWN_TOPIC_OR_PART":
                raise JobError(f"There is no topic {name} at {self.bootstrap}.") from failure
            raise self._refusal(failure) from failure
        return Topic(name, str(found.topic_id), len(found.partitions), len(found.partitions[0].replicas))

    def _offsets(
        self,
        places: Iterable[Place],
        which: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[Place, int]:
        asked = {TopicPartition(*place): which for place in places}
        if not asked:
            return {}
        deadline = time.monotonic() + LIMIT_S
        while True:
            answers = self._admin.list_offsets(asked, isolation_level=isolation, request_timeout=LIMIT_S)
            try:
                found = {at: answer.result(LIMIT_S + CONNECT_LIMIT_S) for at, answer in answers.items()}
            except KafkaException as failure:
                if failure.args[0].name() not in LEADER_MOVED or time.monotonic() > deadline:
                    raise self._refusal(failure) from failure
                self._look_for_leaders(place.topic for place in asked)
            else:
                return {Place(at.topic, at.partition): answer.offset for at, answer in found.items()}

    def _look_for_leaders(self, topics: Iterable[str]) -> None:
        """Have the client ask who leads what."""
        time.sleep(LOOK_EVERY_S)
        gone = sorted(set(topics) - self._names())
        if gone:
            raise JobError(f"There is no topic {gone[0]} at {self.bootstrap}.")

    def _answer(self, future: Any) -> Any:
        try:
            return future.result(LIMIT_S + CONNECT_LIMIT_S)
        except KafkaException as failure:
            raise self._refusal(failure) from failure

    def _refusal(self, failure: KafkaException) -> JobError:
        return JobError(f"The broker at {self.bootstrap} refused: {failure.args[0].str()}.")
