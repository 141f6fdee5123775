"""Topics, configs and records through librdkafka, for tests in which a stock client uses a broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.support.waiting import until

WAIT_S = 60.0


def create_topic(bootstrap: str, name: str, partitions: int = 1, replicas: int = 1, **configs: str) -> None:
    """Creates a topic; `_` in the name of a config is replaced by a dot."""
    config = {key.replace("_", "."): value for key, value in configs.items()}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, replicas, config=config)])[name].result(WAIT_S)


def set_configs(bootstrap: str, kind: ResourceType, name: str, values: Mapping[str, str]) -> None:
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in values.items()]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(WAIT_S)


def config_value(bootstrap: str, kind: ResourceType, name: str, key: str) -> str | None:
    resource = ConfigResource(kind, name)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    value: str | None = admin.describe_configs([resource])[resource].result(WAIT_S)[key].value
    return value


def produce(bootstrap: str, topic: str, values: Iterable[bytes], partitions: int = 1, **settings: Any) -> None:
    """Writes the values round-robin to the first partitions; asserts that each is acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, **{k.replace("_", "."): v for k, v in settings.items()}})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % partitions, on_delivery=assert_arrived)
    assert producer.flush(WAIT_S) == 0


def assert_arrived(error: KafkaError | None, sent: Message) -> None:
    """An `on_delivery` callback: a failed record fails the flush that reports it."""
    assert error is None, f"{sent.topic()}: {error}"


def transactional_producer(bootstrap: str, name: str, **settings: Any) -> Producer:
    """A producer with this transactional id, after InitProducerId."""
    named = {key.replace("_", "."): value for key, value in settings.items()}
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, **named})
    producer.init_transactions(WAIT_S)
    return producer


def read_to_end(bootstrap: str, topic: str, isolation: str = "read_uncommitted") -> list[Any]:
    """All records of a topic up to its current end, each partition in order: messages of confluent_kafka."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "reader",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 20,
        "isolation.level": isolation,
    }
    consumer = Consumer(settings)
    try:
        partitions = consumer.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in partitions])
        found: list[Message] = []
        ended: set[int | None] = set()
        while len(ended) < len(partitions):
            message = consumer.poll(WAIT_S)
            assert message is not None, f"{topic}: {len(found)} records, and no end"
            error = message.error()
            if error is None:
                found.append(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(message.partition())
        return found
    finally:
        consumer.close()


def error_of(settings: Mapping[str, Any]) -> object:
    """The first error that a client with these settings reports; fails if it gets metadata."""
    errors: list[object] = []
    options: dict[str, Any] = {**settings, "log_level": 0, "error_cb": errors.append}
    client = AdminClient(options)

    def look() -> object:
        with suppress(KafkaException):
            brokers = client.list_topics(timeout=0.1).brokers
            raise AssertionError(f"the client is connected to {brokers}")
        client.poll(0)
        return errors

    until(look, "an error of the connection")
    return errors[0]
