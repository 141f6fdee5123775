"""confluent-kafka (librdkafka) behind the suite's verbs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic
from typing import Any, ClassVar

import confluent_kafka
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from tests.conformance.python.answering import WAIT_S, Failure, Unsupported, decoded, headers_of, serve, told
from tests.conformance.python.polling import Polling

ASSIGNORS = {"range": "range", "roundrobin": "roundrobin", "cooperative-sticky": "cooperative-sticky"}


class Member:
    """A consumer in a group."""

    def __init__(self, settings: dict[str, Any], topics: list[str]) -> None:
        self.consumer = confluent_kafka.Consumer(settings)
        self.consumer.subscribe(topics)
        self.polling = Polling(self._poll, self.consumer.close)

    def _poll(self) -> list[dict[str, Any]]:
        messages = self.consumer.consume(500, timeout=0.05)
        return [record_of(message) for message in messages if message.error() is None]

    def told(self) -> dict[str, Any]:
        """What it has and what it has read."""
        assigned = self.polling.call(self.consumer.assignment)
        return {"assigned": [[at.topic, at.partition] for at in assigned], "records": self.polling.records}


def record_of(message: Any) -> dict[str, Any]:
    """A message as the suite tells it."""
    return told(
        message.partition(), message.offset(), message.timestamp()[1], message.key(), message.value(),
        message.headers() or (),
    )  # fmt: skip


class Driver:
    """The verbs."""

    MISSING: ClassVar = {"delete_offsets": "librdkafka has the call, confluent-kafka does not show it"}

    def __init__(self, bootstrap: str) -> None:
        self._settings = {"bootstrap.servers": bootstrap}
        self._admin = AdminClient(self._settings)
        self._members: dict[str, Member] = {}
        self._producers: dict[str, confluent_kafka.Producer] = {}

    def hello(self) -> dict[str, Any]:
        return {"version": f"{confluent_kafka.__version__} (librdkafka {confluent_kafka.libversion()[0]})"}

    def reset(self) -> None:
        for member in self._members.values():
            member.polling.leave()
        self._members.clear()
        self._producers.clear()

    # ---- administration ----------------------------------------------------------------------------------

    def create_topic(self, topic: str, count: int, configs: dict[str, str]) -> None:
        _of(self._admin.create_topics([NewTopic(topic, count, 1, config=configs)]))

    def delete_topic(self, topic: str) -> None:
        _of(self._admin.delete_topics([topic]))

    def list_topics(self) -> dict[str, Any]:
        return {"topics": list(self._admin.list_topics(timeout=WAIT_S).topics)}

    def describe_topic(self, topic: str) -> dict[str, Any]:
        described = _of(self._admin.describe_topics(confluent_kafka.TopicCollection([topic])))
        return {"partitions": len(described.partitions)}

    def create_partitions(self, topic: str, count: int) -> None:
        _of(self._admin.create_partitions([NewPartitions(topic, count)]))

    def describe_configs(self, kind: str, name: str) -> dict[str, Any]:
        entries = _of(self._admin.describe_configs([ConfigResource(kind, name)]))
        return {"configs": {entry.name: entry.value for entry in entries.values()}}

    def alter_configs(self, kind: str, name: str, set: dict[str, str], delete: list[str]) -> None:  # noqa: A002
        entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in set.items()]
        entries += [ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in delete]
        _of(self._admin.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=entries)]))

    def describe_cluster(self) -> dict[str, Any]:
        cluster = self._admin.describe_cluster().result(WAIT_S)
        return {
            "controller": cluster.controller.id,
            "brokers": [node.id for node in cluster.nodes],
        }

    def cluster_id(self) -> dict[str, Any]:
        return {"id": self._admin.describe_cluster().result(WAIT_S).cluster_id}

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        _of(self._admin.delete_records([TopicPartition(topic, partition, before)]))

    def list_offsets(
        self, topic: str, partition: int, at: str, time: int = 0, isolation: str = "read_uncommitted"
    ) -> dict[str, Any]:
        specs = {"earliest": OffsetSpec.earliest, "latest": OffsetSpec.latest}
        spec = OffsetSpec.for_timestamp(time) if at == "time" else specs[at]()
        found = _of(
            self._admin.list_offsets(
                {TopicPartition(topic, partition): spec},
                isolation_level=getattr(confluent_kafka.IsolationLevel, isolation.upper()),
            )
        )
        return {"offset": found.offset}

    def list_groups(self) -> dict[str, Any]:
        listed = self._admin.list_consumer_groups().result(WAIT_S)
        return {"groups": [group.group_id for group in listed.valid]}

    def describe_group(self, group: str) -> dict[str, Any]:
        described = _of(self._admin.describe_consumer_groups([group]))
        return {"state": described.state.name.title().replace("_", ""), "members": len(described.members)}

    def delete_group(self, group: str) -> None:
        _of(self._admin.delete_consumer_groups([group]))

    def committed(self, group: str, topic: str) -> dict[str, Any]:
        request = confluent_kafka.ConsumerGroupTopicPartitions(group)
        found = _of(self._admin.list_consumer_group_offsets([request])).topic_partitions
        return {"offsets": {str(one.partition): one.offset for one in found if one.topic == topic and one.offset >= 0}}

    def alter_offsets(self, group: str, topic: str, offsets: dict[str, int]) -> None:
        wanted = [TopicPartition(topic, int(partition), offset) for partition, offset in offsets.items()]
        request = confluent_kafka.ConsumerGroupTopicPartitions(group, wanted)
        for one in _of(self._admin.alter_consumer_group_offsets([request])).topic_partitions:
            if one.error is not None:
                raise confluent_kafka.KafkaException(one.error)

    # ---- records -----------------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        records: list[dict[str, Any]],
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        auto_create: bool = False,
    ) -> dict[str, Any]:
        producer = confluent_kafka.Producer(
            {
                **self._settings,
                "compression.type": codec,
                "acks": acks,
                "enable.idempotence": idempotent,
                "message.max.bytes": 2_000_000,
                "linger.ms": 5,
            }
        )
        return _send(producer, topic, records)

    def consume(
        self,
        topic: str,
        partitions: list[int],
        count: int,
        offset: int = confluent_kafka.OFFSET_BEGINNING,
        isolation: str = "read_uncommitted",
    ) -> dict[str, Any]:
        consumer = confluent_kafka.Consumer(
            {**self._settings, "group.id": "unused", "enable.auto.commit": False, "isolation.level": isolation}
        )
        found: list[dict[str, Any]] = []
        try:
            consumer.assign([TopicPartition(topic, partition, offset) for partition in partitions])
            deadline = monotonic() + WAIT_S
            while len(found) < count and monotonic() < deadline:
                for message in consumer.consume(count - len(found), timeout=0.5):
                    if message.error() is None:
                        found.append(record_of(message))
                    elif message.error().code() != confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise confluent_kafka.KafkaException(message.error())
        finally:
            consumer.close()
        return {"records": found}

    # ---- groups ------------------------------------------------------------------------------------------

    def join(
        self,
        member: str,
        group: str,
        topics: list[str],
        reset: str,
        commit: str,
        protocol: str = "classic",
        assignor: str = "range",
        instance: str | None = None,
        isolation: str = "read_uncommitted",
        session_ms: int = 10_000,
        refresh_ms: int | None = None,
        transactional_id: str | None = None,
        producer: str | None = None,
    ) -> None:
        settings = {
            **self._settings,
            "group.id": group,
            "auto.offset.reset": reset,
            "enable.auto.commit": commit == "auto",
            "auto.commit.interval.ms": 200,
            "isolation.level": isolation,
            "group.protocol": protocol,
        }
        if protocol == "classic":
            if assignor not in ASSIGNORS:
                raise Unsupported(f"librdkafka has no assignor {assignor}")
            settings |= {
                "partition.assignment.strategy": ASSIGNORS[assignor],
                "session.timeout.ms": session_ms,
                "heartbeat.interval.ms": 200,
            }
        if instance is not None:
            settings["group.instance.id"] = instance
        if refresh_ms is not None:
            settings["topic.metadata.refresh.interval.ms"] = refresh_ms
        self._members[member] = Member(settings, topics)

    def member(self, member: str) -> dict[str, Any]:
        return self._members[member].told()

    def commit(self, member: str) -> None:
        one = self._members[member]
        one.polling.call(lambda: one.consumer.commit(asynchronous=False))

    def leave(self, member: str) -> None:
        self._members.pop(member).polling.leave()

    # ---- transactions ------------------------------------------------------------------------------------

    def open(self, producer: str, transactional_id: str, timeout_ms: int, codec: str = "none") -> None:
        made = confluent_kafka.Producer(
            {
                **self._settings,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "compression.type": codec,
            }
        )
        made.init_transactions(WAIT_S)
        self._producers[producer] = made

    def begin(self, producer: str) -> None:
        self._producers[producer].begin_transaction()

    def send(self, producer: str, topic: str, records: list[dict[str, Any]]) -> dict[str, Any]:
        return _send(self._producers[producer], topic, records)

    def send_offsets(self, producer: str, group: str, member: str, topic: str, offsets: dict[str, int]) -> None:
        positions = [TopicPartition(topic, int(partition), offset) for partition, offset in offsets.items()]
        one = self._members[member]
        metadata = one.polling.call(one.consumer.consumer_group_metadata)
        self._producers[producer].send_offsets_to_transaction(positions, metadata, WAIT_S)

    def commit_transaction(self, producer: str) -> None:
        self._producers[producer].commit_transaction(WAIT_S)

    def abort_transaction(self, producer: str) -> None:
        self._producers[producer].abort_transaction(WAIT_S)


def _send(producer: confluent_kafka.Producer, topic: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Write records and wait for their acknowledgement."""
    offsets: dict[int, int] = {}
    errors: list[confluent_kafka.KafkaError] = []

    def on_delivery(number: int) -> Callable[[Any, Any], None]:
        def report(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
            if error is not None:
                errors.append(error)
            offsets[number] = message.offset()

        return report

    for number, record in enumerate(records):
        producer.produce(
            topic,
            value=decoded(record["value"]),
            key=decoded(record["key"]),
            headers=headers_of(record),
            partition=record["partition"],
            timestamp=record["timestamp"] or 0,
            on_delivery=on_delivery(number),
        )
    producer.flush(WAIT_S)
    if errors:
        raise confluent_kafka.KafkaException(errors[0])
    return {"offsets": [offsets[number] for number in range(len(records))]}


def _of(futures: dict[Any, Any]) -> Any:
    """The result of a call about one thing."""
    (future,) = futures.values()
    return future.result(WAIT_S)


def _failure_of(error: BaseException) -> Failure | None:
    if not isinstance(error, confluent_kafka.KafkaException):
        return None
    reason = error.args[0]
    if reason.code() == confluent_kafka.KafkaError._FENCED:
        return Failure("fenced", reason.str())
    return Failure(reason.code() if reason.code() >= -1 else reason.name(), reason.str())


if __name__ == "__main__":
    serve(Driver(sys.argv[1]), _failure_of)
