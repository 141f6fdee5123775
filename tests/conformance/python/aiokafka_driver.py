"""aiokafka behind the suite's verbs."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Coroutine
from typing import Any

import aiokafka
from aiokafka import TopicPartition, errors
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

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

ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}
NOT_IN_ADMIN = "AIOKafkaAdminClient has no such call"


class Member:
    """A consumer in a group, and the task that reads."""

    def __init__(self, consumer: aiokafka.AIOKafkaConsumer) -> None:
        self.consumer = consumer
        self.records: list[dict[str, Any]] = []
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Join in the background: a member may wait for others."""
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        await self.consumer.start()
        while True:
            polled = await self.consumer.getmany(timeout_ms=50)
            self.records += [record_of(record) for records in polled.values() for record in records]

    async def leave(self) -> None:
        """Say goodbye to the group."""
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self.consumer.stop()


def record_of(record: Any) -> dict[str, Any]:
    """A record as the suite tells it."""
    return told(record.partition, record.offset, record.timestamp, record.key, record.value, record.headers)


class Driver:
    """The verbs, each run to its end in one loop that a thread keeps going between them."""

    MISSING = dict.fromkeys(("delete_group", "alter_offsets", "delete_offsets"), NOT_IN_ADMIN)

    def __init__(self, bootstrap: str) -> None:
        self._calls = Calls(bootstrap)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def __getattr__(self, verb: str) -> Any:
        method = getattr(type(self._calls), verb, None)
        if method is None:
            raise AttributeError(verb)
        return lambda **arguments: self._run(method(self._calls, **arguments))

    def _run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(2 * WAIT_S)


class Calls:
    """The verbs as coroutines."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin_client: AIOKafkaAdminClient | None = None
        self._members: dict[str, Member] = {}
        self._producers: dict[str, aiokafka.AIOKafkaProducer] = {}

    async def _admin(self) -> AIOKafkaAdminClient:
        if self._admin_client is None:
            self._admin_client = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
            await self._admin_client.start()
        return self._admin_client

    async def hello(self) -> dict[str, Any]:
        return {"version": aiokafka.__version__}

    async def reset(self) -> None:
        for member in self._members.values():
            await member.leave()
        for producer in self._producers.values():
            await producer.stop()
        self._members.clear()
        self._producers.clear()

    # ---- administration ----------------------------------------------------------------------------------

    async def create_topic(self, topic: str, count: int, configs: dict[str, str]) -> None:
        response = await (await self._admin()).create_topics([NewTopic(topic, count, 1, topic_configs=configs)])
        _check(response.topic_errors)

    async def delete_topic(self, topic: str) -> None:
        _check((await (await self._admin()).delete_topics([topic])).topic_error_codes)

    async def list_topics(self) -> dict[str, Any]:
        return {"topics": await (await self._admin()).list_topics()}

    async def describe_topic(self, topic: str) -> dict[str, Any]:
        (described,) = await (await self._admin()).describe_topics([topic])
        return {"partitions": len(described["partitions"])}

    async def create_partitions(self, topic: str, count: int) -> None:
        await (await self._admin()).create_partitions({topic: NewPartitions(count)})

    async def describe_configs(self, kind: str, name: str) -> dict[str, Any]:
        resource = ConfigResource(ConfigResourceType[kind.upper()], name)
        (response,) = await (await self._admin()).describe_configs([resource])
        (described,) = response.resources
        return {"configs": {entry[0]: entry[1] for entry in described[4]}}

    async def alter_configs(self, kind: str, name: str, set: dict[str, str], delete: list[str]) -> None:  # noqa: A002
        """AlterConfigs replaces all that was set, so leaving a name out deletes it."""
        resource = ConfigResource(ConfigResourceType[kind.upper()], name, set)
        response = (await (await self._admin()).alter_configs([resource]))[0]
        _check((outcome[3], outcome[0], outcome[1]) for outcome in response.resources)

    async def describe_cluster(self) -> dict[str, Any]:
        cluster = await (await self._admin()).describe_cluster()
        return {
            "controller": cluster["controller_id"],
            "brokers": [broker["node_id"] for broker in cluster["brokers"]],
        }

    async def cluster_id(self) -> dict[str, Any]:
        return {"id": (await (await self._admin()).describe_cluster())["cluster_id"]}

    async def delete_records(self, topic: str, partition: int, before: int) -> None:
        await (await self._admin()).delete_records({TopicPartition(topic, partition): RecordsToDelete(before)})

    async def list_offsets(
        self, topic: str, partition: int, at: str, time: int = 0, isolation: str = "read_uncommitted"
    ) -> dict[str, Any]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=self._bootstrap, isolation_level=isolation)
        place = TopicPartition(topic, partition)
        await consumer.start()
        try:
            if at == "earliest":
                return {"offset": (await consumer.beginning_offsets([place]))[place]}
            if at == "latest":
                return {"offset": (await consumer.end_offsets([place]))[place]}
            found = (await consumer.offsets_for_times({place: time}))[place]
            return {"offset": -1 if found is None else found.offset}
        finally:
            await consumer.stop()

    async def list_groups(self) -> dict[str, Any]:
        return {"groups": [group[0] for group in await (await self._admin()).list_consumer_groups()]}

    async def describe_group(self, group: str) -> dict[str, Any]:
        (response,) = await (await self._admin()).describe_consumer_groups([group])
        (described,) = response.groups
        return {"state": described[2], "members": len(described[5])}

    async def committed(self, group: str, topic: str) -> dict[str, Any]:
        found = await (await self._admin()).list_consumer_group_offsets(group)
        return {"offsets": {str(at.partition): one.offset for at, one in found.items() if at.topic == topic}}

    # ---- records -----------------------------------------------------------------------------------------

    async def produce(
        self,
        topic: str,
        records: list[dict[str, Any]],
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        auto_create: bool = False,
    ) -> dict[str, Any]:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            compression_type=None if codec == "none" else codec,
            acks="all" if acks == "all" else int(acks),
            enable_idempotence=idempotent,
            max_request_size=2_000_000,
            linger_ms=5,
        )
        await producer.start()
        try:
            return await _send(producer, topic, records)
        finally:
            await producer.stop()

    async def consume(
        self,
        topic: str,
        partitions: list[int],
        count: int,
        offset: int | None = None,
        isolation: str = "read_uncommitted",
    ) -> dict[str, Any]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap, enable_auto_commit=False, isolation_level=isolation
        )
        await consumer.start()
        found: list[dict[str, Any]] = []
        try:
            places = [TopicPartition(topic, partition) for partition in partitions]
            consumer.assign(places)
            if offset is None:
                await consumer.seek_to_beginning(*places)
            else:
                for place in places:
                    consumer.seek(place, offset)
            deadline = asyncio.get_running_loop().time() + WAIT_S
            while len(found) < count and asyncio.get_running_loop().time() < deadline:
                polled = await consumer.getmany(timeout_ms=500, max_records=count - len(found))
                found += [record_of(record) for records in polled.values() for record in records]
        finally:
            await consumer.stop()
        return {"records": found}

    # ---- groups ------------------------------------------------------------------------------------------

    async def join(
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
        if assignor not in ASSIGNORS:
            raise Unsupported("no cooperative rebalancing")
        consumer = aiokafka.AIOKafkaConsumer(
            *topics,
            bootstrap_servers=self._bootstrap,
            group_id=group,
            group_instance_id=instance,
            auto_offset_reset=reset,
            enable_auto_commit=commit == "auto",
            auto_commit_interval_ms=200,
            isolation_level=isolation,
            partition_assignment_strategy=[ASSIGNORS[assignor]],
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=200,
            metadata_max_age_ms=refresh_ms,
        )
        self._members[member] = Member(consumer)
        await self._members[member].start()

    async def member(self, member: str) -> dict[str, Any]:
        one = self._members[member]
        return {"assigned": [list(place) for place in one.consumer.assignment()], "records": one.records}

    async def commit(self, member: str) -> None:
        await self._members[member].consumer.commit()

    async def leave(self, member: str) -> None:
        await self._members.pop(member).leave()

    # ---- transactions ------------------------------------------------------------------------------------

    async def open(self, producer: str, transactional_id: str, timeout_ms: int, codec: str = "none") -> None:
        made = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            compression_type=None if codec == "none" else codec,
        )
        await made.start()
        self._producers[producer] = made

    async def begin(self, producer: str) -> None:
        await self._producers[producer].begin_transaction()

    async def send(self, producer: str, topic: str, records: list[dict[str, Any]]) -> dict[str, Any]:
        return await _send(self._producers[producer], topic, records)

    async def send_offsets(self, producer: str, group: str, member: str, topic: str, offsets: dict[str, int]) -> None:
        positions = {TopicPartition(topic, int(index)): at for index, at in offsets.items()}
        await self._producers[producer].send_offsets_to_transaction(positions, group)

    async def commit_transaction(self, producer: str) -> None:
        await self._producers[producer].commit_transaction()

    async def abort_transaction(self, producer: str) -> None:
        await self._producers[producer].abort_transaction()


async def _send(producer: aiokafka.AIOKafkaProducer, topic: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Write records and wait for their acknowledgement."""
    needs_header_values(records)
    futures = [
        await producer.send(
            topic,
            value=decoded(record["value"]),
            key=decoded(record["key"]),
            headers=headers_of(record),
            partition=record["partition"],
            timestamp_ms=record["timestamp"],
        )
        for record in records
    ]
    found = [await asyncio.wait_for(future, WAIT_S) for future in futures]
    return {"offsets": [-1 if one is None else one.offset for one in found]}


def _check(outcomes: Any) -> None:
    """Raise what is wrong with (name, code, …)."""
    for _, code, *rest in outcomes:
        if code:
            raise errors.for_code(code)(rest[0] if rest else "")


def _failure_of(error: BaseException) -> Failure | None:
    if isinstance(error, errors.ProducerFenced):
        return Failure("fenced", str(error))
    if isinstance(error, errors.BrokerResponseError):
        return Failure(error.errno, str(error))
    if isinstance(error, errors.KafkaError):
        return Failure(type(error).__name__, str(error))
    return None


if __name__ == "__main__":
    serve(Driver(sys.argv[1]), _failure_of)
