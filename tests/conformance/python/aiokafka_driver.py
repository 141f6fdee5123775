"""aiokafka as a driver of the suite.

RULES    1. Every call runs in one event loop, in a thread of its own; the caller waits for its result (`Blocking`).
"""

from __future__ import annotations

import asyncio
import inspect
import ssl
import threading
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import aiokafka
from aiokafka import TopicPartition, errors
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from tests.conformance.python import driver

NOT_IN_ADMIN = "AIOKafkaAdminClient has no such call"


class Blocking:
    """A client whose methods block until their coroutine has ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop, make: Callable[[], Any]) -> None:
        self._loop = loop
        self.client = self.run(make)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.client, name)
        return lambda *args, **keywords: self.run(method, *args, **keywords)

    def run(self, method: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        async def run() -> Any:
            result = method(*args, **keywords)
            return await result if inspect.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(2 * driver.WAIT_S)


class AioKafka(driver.KeywordDriver):
    VERSION = aiokafka.__version__
    TOPIC_PARTITION = TopicPartition
    ERRORS = errors
    ASSIGNORS: ClassVar = {
        "range": [RangePartitionAssignor],
        "roundrobin": [RoundRobinPartitionAssignor],
        "sticky": [StickyPartitionAssignor],
    }
    NO_ASSIGNOR = "no cooperative rebalancing"
    MISSING: ClassVar = dict.fromkeys(("delete_group", "alter_offsets", "delete_offsets"), NOT_IN_ADMIN)

    def __init__(self, bootstrap: str, security: driver.Security | None = None) -> None:
        super().__init__(bootstrap, security)
        self._connection: dict[str, Any] = {"bootstrap_servers": bootstrap, **driver.sasl_keywords(self._security)}
        if self._security.get("ca"):
            context = ssl.create_default_context(cafile=self._security["ca"])
            if self._security["certificate"]:
                context.load_cert_chain(self._security["certificate"])
            self._connection["ssl_context"] = context
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def new_admin(self) -> Blocking:
        admin = Blocking(self._loop, lambda: AIOKafkaAdminClient(**self._connection))
        admin.start()
        return admin

    def close_admin(self) -> None:
        super().close_admin()
        self._loop.call_soon_threadsafe(self._loop.stop)

    # ---- administration

    def create_topic(self, topic: str, count: int, configs: dict[str, str]) -> None:
        new_topic = NewTopic(topic, count, 1, topic_configs=configs)
        new_topic.replication_factor = -1  # the broker's default, which the constructor refuses
        response = self._admin.create_topics([new_topic])
        _raise_errors(response.topic_errors)

    def delete_topic(self, topic: str) -> None:
        _raise_errors(self._admin.delete_topics([topic]).topic_error_codes)

    def create_partitions(self, topic: str, count: int) -> None:
        self._admin.create_partitions({topic: NewPartitions(count)})

    def describe_configs(self, kind: str, name: str) -> dict[str, Any]:
        (response,) = self._admin.describe_configs([ConfigResource(ConfigResourceType[kind.upper()], name)])
        (described,) = response.resources
        _raise_errors([(None, *described[:2])])
        return {"configs": {entry[0]: entry[1] for entry in described[4]}}

    def alter_configs(self, kind: str, name: str, set: dict[str, str], delete: list[str]) -> None:  # noqa: A002
        """AlterConfigs replaces all configs of the resource, so a name that is left out is deleted."""
        response = self._admin.alter_configs([ConfigResource(ConfigResourceType[kind.upper()], name, set)])[0]
        _raise_errors((outcome[3], outcome[0], outcome[1]) for outcome in response.resources)

    def describe_cluster(self) -> dict[str, Any]:
        cluster = self._admin.describe_cluster()
        brokers = [broker["node_id"] for broker in cluster["brokers"]]
        return {"controller": cluster["controller_id"], "brokers": brokers}

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        self._admin.delete_records({TopicPartition(topic, partition): RecordsToDelete(before)})

    def list_offsets(
        self, topic: str, partition: int, at: str, time: int = 0, isolation: str = "read_uncommitted"
    ) -> dict[str, Any]:
        consumer = self.new_consumer({"isolation.level": isolation})
        where = TopicPartition(topic, partition)
        consumer.start()
        try:
            if at == "earliest":
                return {"offset": consumer.beginning_offsets([where])[where]}
            if at == "latest":
                return {"offset": consumer.end_offsets([where])[where]}
            found = consumer.offsets_for_times({where: time})[where]
            return {"offset": -1 if found is None else found.offset}
        finally:
            consumer.stop()

    def list_groups(self) -> dict[str, Any]:
        return {"groups": [group[0] for group in self._admin.list_consumer_groups()]}

    def describe_group(self, group: str) -> dict[str, Any]:
        (response,) = self._admin.describe_consumer_groups([group])
        (described,) = response.groups
        return {"state": described[2], "members": len(described[5])}

    def committed(self, group: str, topic: str) -> dict[str, Any]:
        found = self._admin.list_consumer_group_offsets(group)
        return {"offsets": {str(at.partition): one.offset for at, one in found.items() if at.topic == topic}}

    # ---- clients

    def new_producer(self, settings: driver.Settings) -> Blocking:
        keywords = driver.keyword_settings(settings)
        producer = Blocking(self._loop, lambda: aiokafka.AIOKafkaProducer(**self._connection, **keywords))
        producer.start()
        return producer

    def close_producer(self, producer: Blocking) -> None:
        producer.stop()

    def send_records(self, producer: Blocking, topic: str, records: list[driver.JsonRecord]) -> list[int]:
        arguments = driver.send_arguments(records)

        async def send() -> list[int]:
            futures = [await producer.client.send(topic, **one) for one in arguments]
            found = [await asyncio.wait_for(future, driver.WAIT_S) for future in futures]
            return [-1 if one is None else one.offset for one in found]

        return asyncio.run_coroutine_threadsafe(send(), self._loop).result(2 * driver.WAIT_S)

    def new_consumer(self, settings: driver.Settings, topics: Iterable[str] = ()) -> Blocking:
        keywords = driver.keyword_settings(settings)
        return Blocking(self._loop, lambda: aiokafka.AIOKafkaConsumer(*topics, **self._connection, **keywords))

    def start_consumer(self, consumer: Blocking) -> None:
        consumer.start()

    def assign(self, consumer: Blocking, topic: str, partitions: list[int], offset: int | None) -> None:
        """In one step of the loop: aiokafka forgets a seek that arrives while it asks for the first position."""
        assigned = [TopicPartition(topic, partition) for partition in partitions]

        async def assign() -> None:
            consumer.client.assign(assigned)
            if offset is None:
                await consumer.client.seek_to_beginning(*assigned)
            else:
                for partition in assigned:
                    consumer.client.seek(partition, offset)

        consumer.run(assign)

    def poll(self, consumer: Blocking, timeout_s: float, limit: int) -> list[driver.JsonRecord]:
        return driver.polled_records(consumer.getmany(timeout_ms=int(timeout_s * 1000), max_records=limit))

    def close_consumer(self, consumer: Blocking) -> None:
        consumer.stop()

    def send_offsets(self, producer: str, group: str, member: str, topic: str, offsets: dict[str, int]) -> None:
        positions = {TopicPartition(topic, int(index)): at for index, at in offsets.items()}
        self._producers[producer].send_offsets_to_transaction(positions, group)

    def failure_of(self, error: BaseException) -> driver.Failure | None:
        if isinstance(error, errors.ProducerFenced):
            return driver.Failure("fenced", str(error))
        return super().failure_of(error)


def _raise_errors(outcomes: Iterable[Any]) -> None:
    for _, code, *rest in outcomes:
        if code:
            raise errors.for_code(code)(rest[0] if rest else "")


if __name__ == "__main__":
    AioKafka.main()
