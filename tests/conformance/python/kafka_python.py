"""kafka-python behind the suite's verbs.

RULES    1. A member knows its topics' partitions before it polls: what kafka-python 3.0.12 does otherwise stands in
            `docs/conformance.md`, "What kafka-python loses".
"""

from __future__ import annotations

import re
import sys
from time import monotonic
from typing import Any, ClassVar

import kafka
from kafka import OffsetAndMetadata, TopicPartition, errors
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kafka.consumer.fetcher import IsolationLevel
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from tests.conformance.python.answering import (
    WAIT_S,
    Failure,
    Unsupported,
    decoded,
    headers_of,
    needs_header_values,
    serve,
    told,
)
from tests.conformance.python.polling import Polling

ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


class Member:
    """A consumer in a group."""

    def __init__(self, settings: dict[str, Any], topics: list[str]) -> None:
        self.consumer = kafka.KafkaConsumer(**settings)
        self.consumer.subscribe(topics)
        for topic in topics:
            self.consumer.partitions_for_topic(topic)
        self.polling = Polling(self._poll, self.consumer.close)

    def _poll(self) -> list[dict[str, Any]]:
        return [record_of(record) for records in self.consumer.poll(50).values() for record in records]

    def told(self) -> dict[str, Any]:
        """What it has and what it has read."""
        assigned = self.polling.call(self.consumer.assignment)
        return {"assigned": [list(place) for place in assigned], "records": self.polling.records}


def record_of(record: Any) -> dict[str, Any]:
    """A record as the suite tells it."""
    return told(record.partition, record.offset, record.timestamp, record.key, record.value, record.headers)


class Driver:
    """The verbs."""

    MISSING: ClassVar[dict[str, str]] = {}

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        self._members: dict[str, Member] = {}
        self._producers: dict[str, kafka.KafkaProducer] = {}

    def hello(self) -> dict[str, Any]:
        return {"version": kafka.__version__}

    def reset(self) -> None:
        for member in self._members.values():
            member.polling.leave()
        for producer in self._producers.values():
            producer.close()
        self._members.clear()
        self._producers.clear()

    # ---- administration ----------------------------------------------------------------------------------

    def create_topic(self, topic: str, count: int, configs: dict[str, str]) -> None:
        self._admin.create_topics({topic: {"num_partitions": count, "replication_factor": 1, "configs": configs}})

    def delete_topic(self, topic: str) -> None:
        self._admin.delete_topics([topic])

    def list_topics(self) -> dict[str, Any]:
        return {"topics": self._admin.list_topics()}

    def describe_topic(self, topic: str) -> dict[str, Any]:
        (described,) = self._admin.describe_topics([topic])
        return {"partitions": len(described["partitions"])}

    def create_partitions(self, topic: str, count: int) -> None:
        self._admin.create_partitions({topic: count})

    def describe_configs(self, kind: str, name: str) -> dict[str, Any]:
        resource = ConfigResource(ConfigResourceType[kind.upper()], name)
        described = self._admin.describe_configs([resource], config_filter="all")[kind][name]
        return {"configs": {key: config["value"] for key, config in described.items()}}

    def alter_configs(self, kind: str, name: str, set: dict[str, str], delete: list[str]) -> None:  # noqa: A002
        changes = {**{key: ("SET", value) for key, value in set.items()}, **dict.fromkeys(delete, ("DELETE", None))}
        outcome = self._admin.alter_configs([ConfigResource(ConfigResourceType[kind.upper()], name, changes)])
        said = outcome[kind][name]
        if said != "OK":
            number = re.match(r"\[Error (\d+)\]", said)
            raise errors.for_code(int(number[1]) if number else -1)(said)

    def describe_cluster(self) -> dict[str, Any]:
        cluster = self._admin.describe_cluster()
        return {
            "controller": cluster["controller_id"],
            "brokers": [broker["broker_id"] for broker in cluster["brokers"]],
        }

    def cluster_id(self) -> dict[str, Any]:
        return {"id": self._admin.describe_cluster()["cluster_id"]}

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
        said = self._admin.delete_groups([group])[group]
        if said != "OK":
            raise getattr(errors, said)

    def committed(self, group: str, topic: str) -> dict[str, Any]:
        found = self._admin.list_group_offsets({group: None})[group]
        return {"offsets": {str(at.partition): one.offset for at, one in found.items() if at.topic == topic}}

    def alter_offsets(self, group: str, topic: str, offsets: dict[str, int]) -> None:
        wanted = {TopicPartition(topic, int(index)): OffsetAndMetadata(at, "", -1) for index, at in offsets.items()}
        _all_well(self._admin.alter_group_offsets(group, wanted))

    def delete_offsets(self, group: str, topic: str, partitions: list[int]) -> None:
        _all_well(self._admin.delete_group_offsets(group, [TopicPartition(topic, index) for index in partitions]))

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
        producer = kafka.KafkaProducer(
            bootstrap_servers=self._bootstrap,
            compression_type=None if codec == "none" else codec,
            acks="all" if acks == "all" else int(acks),
            enable_idempotence=idempotent,
            max_request_size=2_000_000,
            linger_ms=5,
        )
        try:
            return _send(producer, topic, records)
        finally:
            producer.close()

    def consume(
        self,
        topic: str,
        partitions: list[int],
        count: int,
        offset: int | None = None,
        isolation: str = "read_uncommitted",
    ) -> dict[str, Any]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self._bootstrap, enable_auto_commit=False, isolation_level=isolation
        )
        found: list[dict[str, Any]] = []
        try:
            places = [TopicPartition(topic, partition) for partition in partitions]
            consumer.assign(places)
            if offset is None:
                consumer.seek_to_beginning(*places)
            else:
                for place in places:
                    consumer.seek(place, offset)
            deadline = monotonic() + WAIT_S
            while len(found) < count and monotonic() < deadline:
                polled = consumer.poll(500, max_records=count - len(found))
                found += [record_of(record) for records in polled.values() for record in records]
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
        refresh_ms: int = 300_000,
        transactional_id: str | None = None,
        producer: str | None = None,
    ) -> None:
        if protocol != "classic":
            raise Unsupported("no consumer protocol (KIP-848)")
        settings = {
            "bootstrap_servers": self._bootstrap,
            "group_id": group,
            "group_instance_id": instance,
            "auto_offset_reset": reset,
            "enable_auto_commit": commit == "auto",
            "auto_commit_interval_ms": 200,
            "isolation_level": isolation,
            "partition_assignment_strategy": [ASSIGNORS[assignor]],
            "session_timeout_ms": session_ms,
            "heartbeat_interval_ms": 200,
            "metadata_max_age_ms": refresh_ms,
        }
        self._members[member] = Member(settings, topics)

    def member(self, member: str) -> dict[str, Any]:
        return self._members[member].told()

    def commit(self, member: str) -> None:
        one = self._members[member]
        one.polling.call(one.consumer.commit)

    def leave(self, member: str) -> None:
        self._members.pop(member).polling.leave()

    # ---- transactions ------------------------------------------------------------------------------------

    def open(self, producer: str, transactional_id: str, timeout_ms: int, codec: str = "none") -> None:
        made = kafka.KafkaProducer(
            bootstrap_servers=self._bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            compression_type=None if codec == "none" else codec,
        )
        self._producers[producer] = made
        made.init_transactions()

    def begin(self, producer: str) -> None:
        self._producers[producer].begin_transaction()

    def send(self, producer: str, topic: str, records: list[dict[str, Any]]) -> dict[str, Any]:
        return _send(self._producers[producer], topic, records)

    def send_offsets(self, producer: str, group: str, member: str, topic: str, offsets: dict[str, int]) -> None:
        positions = {TopicPartition(topic, int(index)): OffsetAndMetadata(at, "", -1) for index, at in offsets.items()}
        one = self._members[member]
        metadata = one.polling.call(one.consumer.group_metadata)
        self._producers[producer].send_offsets_to_transaction(positions, metadata)

    def commit_transaction(self, producer: str) -> None:
        self._producers[producer].commit_transaction()

    def abort_transaction(self, producer: str) -> None:
        self._producers[producer].abort_transaction()


def _send(producer: kafka.KafkaProducer, topic: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Write records and wait for their acknowledgement."""
    needs_header_values(records)
    futures = [
        producer.send(
            topic,
            value=decoded(record["value"]),
            key=decoded(record["key"]),
            headers=headers_of(record),
            partition=record["partition"],
            timestamp_ms=record["timestamp"],
        )
        for record in records
    ]
    producer.flush(WAIT_S)
    return {"offsets": [future.get(WAIT_S).offset for future in futures]}


def _all_well(outcomes: dict[Any, Any]) -> None:
    for error in outcomes.values():
        if error is not errors.NoError:
            raise error


def _failure_of(error: BaseException) -> Failure | None:
    if isinstance(error, errors.BrokerResponseError):
        return Failure(error.errno, str(error))
    if isinstance(error, errors.KafkaError):
        return Failure(type(error).__name__, str(error))
    return None


if __name__ == "__main__":
    serve(Driver(sys.argv[1]), _failure_of)
