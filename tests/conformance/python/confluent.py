"""confluent-kafka (librdkafka) as a driver of the suite."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import confluent_kafka
from confluent_kafka import TopicPartition, admin

from tests.conformance.python import driver
from tests.conformance.suite.steps import decoded

RENAMED = {
    "max.request.size": "message.max.bytes",
    "metadata.max.age.ms": "topic.metadata.refresh.interval.ms",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "request.timeout.ms": "socket.timeout.ms",
}
"""Settings for which librdkafka has another name."""


LIST_S = 10
"""Also the wait of a client that cannot connect."""
CONNECTION_ERRORS = {"_AUTHENTICATION": "authentication", "_SSL": "certificate"}
SECURITY = {
    "security.protocol": "protocol", "sasl.mechanism": "mechanism", "sasl.username": "user", "sasl.password": "password",
    "ssl.ca.location": "ca", "ssl.certificate.location": "certificate", "ssl.key.location": "certificate",
}  # fmt: skip


class Confluent(driver.Driver):
    VERSION = f"{confluent_kafka.__version__} (librdkafka {confluent_kafka.libversion()[0]})"
    ASSIGNORS: ClassVar = {name: name for name in ("range", "roundrobin", "cooperative-sticky")}
    NO_ASSIGNOR = "librdkafka has no assignor {}"
    PROTOCOLS = ("classic", "consumer")
    MISSING: ClassVar = {"delete_offsets": "librdkafka has the call, confluent-kafka does not expose it"}

    def __init__(self, bootstrap: str, security: driver.Security | None = None) -> None:
        super().__init__(bootstrap, security)
        self._connection_error: confluent_kafka.KafkaError | None = None
        self._settings: driver.Settings = {"bootstrap.servers": bootstrap, "error_cb": self._on_error}
        self._settings |= {name: self._security[field] for name, field in SECURITY.items() if self._security.get(field)}
        self._admin = admin.AdminClient(self._settings)

    # ---- administration

    def create_topic(self, topic: str, count: int, configs: dict[str, str]) -> None:
        _result(self._admin.create_topics([admin.NewTopic(topic, count, -1, config=configs)]))

    def delete_topic(self, topic: str) -> None:
        _result(self._admin.delete_topics([topic]))

    def list_topics(self) -> dict[str, Any]:
        return {"topics": list(self._admin.list_topics(timeout=LIST_S).topics)}

    def describe_topic(self, topic: str) -> dict[str, Any]:
        described = _result(self._admin.describe_topics(confluent_kafka.TopicCollection([topic])))
        return {"partitions": len(described.partitions)}

    def create_partitions(self, topic: str, count: int) -> None:
        _result(self._admin.create_partitions([admin.NewPartitions(topic, count)]))

    def describe_configs(self, kind: str, name: str) -> dict[str, Any]:
        entries = _result(self._admin.describe_configs([admin.ConfigResource(kind, name)]))
        return {"configs": {entry.name: entry.value for entry in entries.values()}}

    def alter_configs(self, kind: str, name: str, set: dict[str, str], delete: list[str]) -> None:  # noqa: A002
        entries = [
            admin.ConfigEntry(key, value, incremental_operation=admin.AlterConfigOpType.SET)
            for key, value in set.items()
        ]
        entries += [
            admin.ConfigEntry(key, None, incremental_operation=admin.AlterConfigOpType.DELETE) for key in delete
        ]
        _result(self._admin.incremental_alter_configs([admin.ConfigResource(kind, name, incremental_configs=entries)]))

    def describe_cluster(self) -> dict[str, Any]:
        cluster = self._admin.describe_cluster().result(driver.WAIT_S)
        return {"controller": cluster.controller.id, "brokers": [node.id for node in cluster.nodes]}

    def cluster_id(self) -> dict[str, Any]:
        return {"id": self._admin.describe_cluster().result(driver.WAIT_S).cluster_id}

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        _result(self._admin.delete_records([TopicPartition(topic, partition, before)]))

    def list_offsets(
        self, topic: str, partition: int, at: str, time: int = 0, isolation: str = "read_uncommitted"
    ) -> dict[str, Any]:
        specs: dict[str, Callable[[], admin.OffsetSpec]] = {
            "earliest": admin.OffsetSpec.earliest,
            "latest": admin.OffsetSpec.latest,
        }
        spec = admin.OffsetSpec.for_timestamp(time) if at == "time" else specs[at]()
        found = _result(
            self._admin.list_offsets(
                {TopicPartition(topic, partition): spec},
                isolation_level=getattr(confluent_kafka.IsolationLevel, isolation.upper()),
            )
        )
        return {"offset": found.offset}

    def list_groups(self) -> dict[str, Any]:
        listed = self._admin.list_consumer_groups().result(driver.WAIT_S)
        return {"groups": [group.group_id for group in listed.valid]}

    def describe_group(self, group: str) -> dict[str, Any]:
        described = _result(self._admin.describe_consumer_groups([group]))
        return {"state": described.state.name.title().replace("_", ""), "members": len(described.members)}

    def delete_group(self, group: str) -> None:
        _result(self._admin.delete_consumer_groups([group]))

    def committed(self, group: str, topic: str) -> dict[str, Any]:
        request = confluent_kafka.ConsumerGroupTopicPartitions(group)
        found = _result(self._admin.list_consumer_group_offsets([request])).topic_partitions
        return {"offsets": {str(one.partition): one.offset for one in found if one.topic == topic and one.offset >= 0}}

    def alter_offsets(self, group: str, topic: str, offsets: dict[str, int]) -> None:
        wanted = [TopicPartition(topic, int(partition), offset) for partition, offset in offsets.items()]
        request = confluent_kafka.ConsumerGroupTopicPartitions(group, wanted)
        for one in _result(self._admin.alter_consumer_group_offsets([request])).topic_partitions:
            if one.error is not None:
                raise confluent_kafka.KafkaException(one.error)

    # ---- clients

    def _translated(self, settings: driver.Settings) -> driver.Settings:
        return {**self._settings, **{RENAMED.get(name, name): value for name, value in settings.items()}}

    def new_producer(self, settings: driver.Settings) -> confluent_kafka.Producer:
        producer = confluent_kafka.Producer(self._translated(settings))
        if "transactional.id" in settings:
            producer.init_transactions(driver.WAIT_S)
        return producer

    def close_producer(self, producer: confluent_kafka.Producer) -> None:
        """librdkafka closes a producer when it is garbage-collected."""

    def send_records(
        self, producer: confluent_kafka.Producer, topic: str, records: list[driver.JsonRecord]
    ) -> list[int]:
        offsets: dict[int, int] = {}
        errors: list[confluent_kafka.KafkaError] = []

        def on_delivery(number: int) -> Callable[[Any, Any], None]:
            def report(error: confluent_kafka.KafkaError | None, message: Any) -> None:
                if error is not None:
                    errors.append(error)
                offsets[number] = message.offset()

            return report

        for number, record in enumerate(records):
            producer.produce(
                topic,
                value=decoded(record["value"]),
                key=decoded(record["key"]),
                headers=[*driver.headers_of(record)],
                partition=record["partition"],
                timestamp=record["timestamp"] or 0,
                on_delivery=on_delivery(number),
            )
        producer.flush(driver.WAIT_S)
        if errors:
            raise confluent_kafka.KafkaException(errors[0])
        return [offsets[number] for number in range(len(records))]

    def new_consumer(self, settings: driver.Settings, topics: Iterable[str] = ()) -> confluent_kafka.Consumer:
        consumer = confluent_kafka.Consumer({"group.id": "reader", **self._translated(settings)})
        if topics:
            consumer.subscribe(list(topics))
        return consumer

    def assign(self, consumer: confluent_kafka.Consumer, topic: str, partitions: list[int], offset: int | None) -> None:
        start = confluent_kafka.OFFSET_BEGINNING if offset is None else offset
        consumer.assign([TopicPartition(topic, partition, start) for partition in partitions])

    def poll(self, consumer: confluent_kafka.Consumer, timeout_s: float, limit: int) -> list[driver.JsonRecord]:
        messages = consumer.consume(limit, timeout=timeout_s)
        for message in messages:
            error = message.error()
            if error is not None and error.code() != confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise confluent_kafka.KafkaException(error)
        return _records_in(messages)

    def poll_member(self, consumer: confluent_kafka.Consumer) -> list[driver.JsonRecord]:
        return _records_in(consumer.consume(500, timeout=0.05))

    def assignment(self, consumer: confluent_kafka.Consumer) -> list[tuple[str, int]]:
        return [(partition.topic, partition.partition) for partition in consumer.assignment()]

    def commit_positions(self, consumer: confluent_kafka.Consumer) -> None:
        consumer.commit(asynchronous=False)

    def send_offsets(self, producer: str, group: str, member: str, topic: str, offsets: dict[str, int]) -> None:
        positions = [TopicPartition(topic, int(partition), offset) for partition, offset in offsets.items()]
        polling = self._members[member]
        metadata = polling.call(polling.consumer.consumer_group_metadata)
        self._producers[producer].send_offsets_to_transaction(positions, metadata, driver.WAIT_S)

    def _on_error(self, error: confluent_kafka.KafkaError) -> None:
        """A call that cannot connect times out; the reason arrives here."""
        if error.name() in CONNECTION_ERRORS:
            self._connection_error = error

    def failure_of(self, error: BaseException) -> driver.Failure | None:
        if not isinstance(error, confluent_kafka.KafkaException):
            return None
        reason = error.args[0]
        self._admin.poll(0)  # calls `_on_error`
        if self._connection_error is not None:
            return driver.Failure(CONNECTION_ERRORS[self._connection_error.name()], self._connection_error.str())
        if reason.code() == confluent_kafka.KafkaError._FENCED:
            return driver.Failure("fenced", reason.str())
        return driver.Failure(reason.code() if reason.code() >= -1 else reason.name(), reason.str())


def _records_in(messages: Iterable[Any]) -> list[driver.JsonRecord]:
    return [
        driver.json_record(
            message.partition(), message.offset(), message.timestamp()[1], message.key(), message.value(),
            message.headers() or (),
        )
        for message in messages
        if message.error() is None
    ]  # fmt: skip


def _result(futures: dict[Any, Any]) -> Any:
    (future,) = futures.values()
    return future.result(driver.WAIT_S)


if __name__ == "__main__":
    Confluent.main()
