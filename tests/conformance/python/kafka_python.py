"""kafka-python as a driver of the suite.

RULES    1. A member loads its topics' partitions before it polls; otherwise kafka-python 3.0.12 may lose its assignment
            (`docs/conformance.md`, "What kafka-python loses").
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, ClassVar

import kafka
from kafka import OffsetAndMetadata, TopicPartition, errors
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kafka.consumer.fetcher import IsolationLevel
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from tests.conformance.python import driver


class KafkaPython(driver.KeywordDriver):
    VERSION = kafka.__version__
    TOPIC_PARTITION = TopicPartition
    ERRORS = errors
    ASSIGNORS: ClassVar = {
        "range": [RangePartitionAssignor],
        "roundrobin": [RoundRobinPartitionAssignor],
        "sticky": [StickyPartitionAssignor],
        "cooperative-sticky": [CooperativeStickyAssignor],
    }

    def __init__(self, bootstrap: str, security: driver.Security | None = None) -> None:
        super().__init__(bootstrap, security)
        self._connection = {"bootstrap_servers": bootstrap, "bootstrap_timeout_ms": 10_000}
        self._connection |= driver.sasl_keywords(self._security)
        self._connection |= {
            name: self._security[field]
            for name, field in (("ssl_cafile", "ca"), ("ssl_certfile", "certificate"))
            if self._security.get(field)
        }

    def new_admin(self) -> KafkaAdminClient:
        return KafkaAdminClient(**self._connection)

    # ---- administration

    def create_topic(self, topic: str, count: int, configs: dict[str, str]) -> None:
        self._admin.create_topics({topic: {"num_partitions": count, "replication_factor": -1, "configs": configs}})

    def delete_topic(self, topic: str) -> None:
        self._admin.delete_topics([topic])

    def create_partitions(self, topic: str, count: int) -> None:
        self._admin.create_partitions({topic: count})

    def describe_configs(self, kind: str, name: str) -> dict[str, Any]:
        resource = ConfigResource(ConfigResourceType[kind.upper()], name)
        described = self._admin.describe_configs([resource], config_filter="all")[kind][name]
        return {"configs": {key: config["value"] for key, config in described.items()}}

    def alter_configs(self, kind: str, name: str, set: dict[str, str], delete: list[str]) -> None:  # noqa: A002
        changes = {**{key: ("SET", value) for key, value in set.items()}, **dict.fromkeys(delete, ("DELETE", None))}
        outcome = self._admin.alter_configs([ConfigResource(ConfigResourceType[kind.upper()], name, changes)])
        text = outcome[kind][name]
        if text != "OK":
            number = re.match(r"\[Error (\d+)\]", text)
            raise errors.for_code(int(number[1]) if number else -1)(text)

    def describe_cluster(self) -> dict[str, Any]:
        cluster = self._admin.describe_cluster()
        return {
            "controller": cluster["controller_id"],
            "brokers": [broker["broker_id"] for broker in cluster["brokers"]],
        }

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        (deleted,) = self._admin.delete_records({TopicPartition(topic, partition): before}).values()
        if deleted["error_code"]:
            raise errors.for_code(deleted["error_code"])

    def list_offsets(
        self, topic: str, partition: int, at: str, time: int = 0, isolation: str = "read_uncommitted"
    ) -> dict[str, Any]:
        when = {"earliest": -2, "latest": -1, "time": time}[at]
        (found,) = self._admin.list_partition_offsets(
            {TopicPartition(topic, partition): when}, IsolationLevel[isolation.upper()]
        ).values()
        return {"offset": found.offset if found is not None else -1}

    def list_groups(self) -> dict[str, Any]:
        return {"groups": [group["group_id"] for group in self._admin.list_groups()]}

    def describe_group(self, group: str) -> dict[str, Any]:
        described = self._admin.describe_groups([group])[group]
        return {"state": described["group_state"], "members": len(described["members"])}

    def delete_group(self, group: str) -> None:
        outcome = self._admin.delete_groups([group])[group]
        if outcome != "OK":
            raise getattr(errors, outcome)

    def committed(self, group: str, topic: str) -> dict[str, Any]:
        found = self._admin.list_group_offsets({group: None})[group]
        return {"offsets": {str(at.partition): one.offset for at, one in found.items() if at.topic == topic}}

    def alter_offsets(self, group: str, topic: str, offsets: dict[str, int]) -> None:
        _raise_errors(self._admin.alter_group_offsets(group, _offsets_and_metadata(topic, offsets)))

    def delete_offsets(self, group: str, topic: str, partitions: list[int]) -> None:
        _raise_errors(self._admin.delete_group_offsets(group, [TopicPartition(topic, index) for index in partitions]))

    # ---- clients

    def new_producer(self, settings: driver.Settings) -> kafka.KafkaProducer:
        producer = kafka.KafkaProducer(**self._connection, **driver.keyword_settings(settings))
        if "transactional.id" in settings:
            producer.init_transactions()
        return producer

    def send_records(self, producer: kafka.KafkaProducer, topic: str, records: list[driver.JsonRecord]) -> list[int]:
        futures = [producer.send(topic, **arguments) for arguments in driver.send_arguments(records)]
        producer.flush(driver.WAIT_S)
        return [future.get(driver.WAIT_S).offset for future in futures]

    def new_consumer(self, settings: driver.Settings, topics: Iterable[str] = ()) -> kafka.KafkaConsumer:
        consumer = kafka.KafkaConsumer(**self._connection, **driver.keyword_settings(settings))
        if topics:
            consumer.subscribe(topics)
        for topic in topics:
            consumer.partitions_for_topic(topic)
        return consumer

    def poll(self, consumer: kafka.KafkaConsumer, timeout_s: float, limit: int) -> list[driver.JsonRecord]:
        return driver.polled_records(consumer.poll(int(timeout_s * 1000), max_records=limit))

    def send_offsets(self, producer: str, group: str, member: str, topic: str, offsets: dict[str, int]) -> None:
        polling = self._members[member]
        metadata = polling.call(polling.consumer.group_metadata)
        self._producers[producer].send_offsets_to_transaction(_offsets_and_metadata(topic, offsets), metadata)


def _offsets_and_metadata(topic: str, offsets: dict[str, int]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TopicPartition(topic, int(index)): OffsetAndMetadata(at, "", -1) for index, at in offsets.items()}


def _raise_errors(outcomes: dict[Any, Any]) -> None:
    for error in outcomes.values():
        if error is not errors.NoError:
            raise error


if __name__ == "__main__":
    KafkaPython.main()
