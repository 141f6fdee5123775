"""Transactions of real clients, and Apache Kafka's tools for them."""

from __future__ import annotations

import time
import uuid
from typing import Any

import confluent_kafka
import pytest

from barnabas import Broker
from protocol.messages.produce_fetch import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.messages.transactions import InitProducerIdRequest
from protocol.records import BatchBuilder
from tests.conformance.clients import CLIENTS
from tests.conformance.python.driver import Driver
from tests.conformance.suite.steps import Record
from tests.support.kafka import needs_kafka
from tests.support.kafka_tools import run_in_own_jvm
from tests.support.raw_client import RawClient
from tests.support.timestamps import RECENT_MS
from tests.support.waiting import until

pytestmark = pytest.mark.long

WAIT_S = 30
SETTINGS = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 5, "num.partitions": 3}
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"

Batches = list[tuple[list[str], bool]]
"""The values of each transaction, and whether it is committed."""


def run(cls: str, bootstrap: str, *args: object) -> str:
    return run_in_own_jvm(cls, "--bootstrap-server", bootstrap, *args).stdout


def transact(client: str, bootstrap: str, topic: str, batches: Batches) -> None:
    driver: Driver = CLIENTS[client](bootstrap)
    driver.open("producer", f"{client}-{topic}", 60_000)
    for values, is_commit in batches:
        driver.begin("producer")
        records = [Record(number % 3, None, value.encode(), (), RECENT_MS) for number, value in enumerate(values)]
        driver.send("producer", topic, [record.to_json() for record in records])
        (driver.commit_transaction if is_commit else driver.abort_transaction)("producer")
    driver.close()


def read(bootstrap: str, topic: str, *, committed: bool) -> list[str]:
    """All values of a topic up to its current end, with one isolation level."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
        consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in partitions])
        found: list[str] = []
        ended: set[int] = set()
        while ended != set(partitions):
            message = consumer.poll(WAIT_S)
            assert message is not None, "nothing comes, and no end"
            if message.error() is None:
                found.append(message.value().decode())
            else:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                ended.add(message.partition())
        return sorted(found)
    finally:
        consumer.close()


@pytest.mark.parametrize("client", CLIENTS)
def test_committed_readers_see_what_was_committed(kafka_broker, kafka_topic, client: str) -> None:
    """Every client commits and aborts; a read_uncommitted consumer reads both, a read_committed one no aborted record."""
    batches = [([f"{number}-{index}" for index in range(5)], number % 2 == 0) for number in range(6)]
    transact(client, kafka_broker.bootstrap, kafka_topic, batches)
    kept = sorted(value for values, is_commit in batches if is_commit for value in values)
    assert read(kafka_broker.bootstrap, kafka_topic, committed=True) == kept
    everything = sorted(value for values, _ in batches for value in values)
    assert read(kafka_broker.bootstrap, kafka_topic, committed=False) == everything


def test_the_later_of_two_producers_fences_the_other(kafka_broker, kafka_topic) -> None:
    """The fenced producer gets a fatal error, and its records are not visible."""
    config = {"bootstrap.servers": kafka_broker.bootstrap, "transactional.id": f"fenced-{kafka_topic}"}
    old, new = confluent_kafka.Producer(config), confluent_kafka.Producer(config)
    old.init_transactions(WAIT_S)
    old.begin_transaction()
    old.produce(kafka_topic, "old")
    old.flush(WAIT_S)
    new.init_transactions(WAIT_S)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        old.commit_transaction(WAIT_S)
    assert refused.value.args[0].fatal()
    new.begin_transaction()
    new.produce(kafka_topic, "new")
    new.commit_transaction(WAIT_S)
    assert read(kafka_broker.bootstrap, kafka_topic, committed=True) == ["new"]


def consumer_of(bootstrap: str, topic: str, group: str) -> Any:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
         "isolation.level": "read_committed", "enable.auto.commit": False}
    )  # fmt: skip
    consumer.subscribe([topic])
    return consumer


def a_few_of(consumer: Any) -> list[Any]:
    """Up to seven messages within half a second."""
    return [message for message in consumer.consume(7, 0.5) if message.error() is None]


def transfer(bootstrap: str, source: str, target: str, count: int, stop_after: int | None = None) -> None:
    """Consume, transform, produce, commit offsets; after `stop_after` records it leaves a transaction open."""
    group = f"group-of-{target}"
    consumer = consumer_of(bootstrap, source, group)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": f"transfer-{target}"})
    producer.init_transactions(WAIT_S)
    transferred = 0
    try:
        while transferred < count:
            messages = until(lambda: a_few_of(consumer), f"{transferred} of {count} have come", WAIT_S)
            producer.begin_transaction()
            for message in messages:
                producer.produce(target, b"<" + message.value() + b">")
            transferred += len(messages)
            positions = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), WAIT_S)
            if stop_after is not None and transferred >= stop_after:
                producer.flush(WAIT_S)
                return
            producer.commit_transaction(WAIT_S)
    finally:
        consumer.close()


def test_records_are_transferred_exactly_once() -> None:
    """A worker stops within a transaction and the broker is killed; each record arrives exactly once."""
    values = [f"{number:03}" for number in range(60)]
    with Broker(settings=SETTINGS) as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
        for value in values:
            producer.produce("source", value)
        assert producer.flush(WAIT_S) == 0
        transfer(broker.bootstrap, "source", "target", 60, stop_after=20)
        broker.kill()
        broker.start()
        left = 60 - len(read(broker.bootstrap, "target", committed=True))
        assert 40 <= left < 60
        transfer(broker.bootstrap, "source", "target", left)
        assert read(broker.bootstrap, "target", committed=True) == [f"<{value}>" for value in values]


def test_a_killed_broker_keeps_what_was_committed_and_ends_what_was_open() -> None:
    """After SIGKILL the transaction is still open, limits read_committed consumers, and its producer can continue."""
    settings = {**SETTINGS, "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100}
    with Broker(settings=settings) as broker:
        transact("confluent-kafka", broker.bootstrap, "t", [(["kept"], True), (["gone"], False)])
        config = {"bootstrap.servers": broker.bootstrap, "transactional.id": "open", "transaction.timeout.ms": 60_000}
        producer = confluent_kafka.Producer(config)
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        producer.produce("t", "before", partition=0)
        assert producer.flush(WAIT_S) == 0
        transact("kafka-python", broker.bootstrap, "t", [(["behind"], True)])
        broker.kill()
        broker.start()
        assert read(broker.bootstrap, "t", committed=True) == ["kept"]
        producer.produce("t", "after", partition=1)
        producer.commit_transaction(WAIT_S)
        until(
            lambda: read(broker.bootstrap, "t", committed=True) == ["after", "before", "behind", "kept"],
            "everything that was committed",
        )


@needs_kafka
def test_the_performance_tool_writes_in_transactions(kafka_broker, kafka_topic) -> None:
    """kafka-producer-perf-test.sh --transactional-id: Java's producer, transactions of version 2."""
    written = run_in_own_jvm(
        PRODUCER_PERFORMANCE, "--topic", kafka_topic, "--num-records", 5000, "--record-size", 100, "--throughput",
        -1, "--command-property", f"bootstrap.servers={kafka_broker.bootstrap}", "--transactional-id", kafka_topic,
        "--transaction-duration-ms", 100,
    ).stdout  # fmt: skip
    assert "5000 records sent" in written
    assert len(read(kafka_broker.bootstrap, kafka_topic, committed=True)) == 5000
    described = run(TRANSACTIONS, kafka_broker.bootstrap, "describe", "--transactional-id", kafka_topic)
    assert "CompleteCommit" in described


@needs_kafka
def test_the_message_copier_copies_exactly_once(kafka_broker, kafka_topic) -> None:
    """kafka-transactional-message-copier.sh with random aborts, as in Kafka's own system tests."""
    bootstrap, values = kafka_broker.bootstrap, [f"{number:04}" for number in range(300)]
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(kafka_topic, value, partition=0)
    assert producer.flush(WAIT_S) == 0
    copied = run_in_own_jvm(
        COPIER, "--broker-list", bootstrap, "--input-topic", kafka_topic, "--input-partition", 0,
        "--output-topic", f"{kafka_topic}.copy", "--consumer-group", kafka_topic, "--transactional-id", kafka_topic,
        "--transaction-size", 20, "--enable-random-aborts", "--group-mode", "--use-group-metadata",
    ).stdout  # fmt: skip
    assert '"remaining":0' in copied.splitlines()[-1]
    assert read(bootstrap, f"{kafka_topic}.copy", committed=True) == values


@needs_kafka
def test_administrators_see_and_end_open_transactions(kafka_broker, kafka_topic) -> None:
    """kafka-transactions.sh list, describe and forceTerminateTransaction, which fences the producer."""
    bootstrap, name = kafka_broker.bootstrap, f"open-{kafka_topic}"
    transact("confluent-kafka", bootstrap, kafka_topic, [(["kept"], True)])
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(kafka_topic, "open", partition=0)
    producer.flush(WAIT_S)
    listed = run(TRANSACTIONS, bootstrap, "list")
    assert {name, f"confluent-kafka-{kafka_topic}"} <= set(listed.split())
    described = run(TRANSACTIONS, bootstrap, "describe", "--transactional-id", name)
    assert {"Ongoing", f"{kafka_topic}-0"} <= set(described.split())
    run(TRANSACTIONS, bootstrap, "forceTerminateTransaction", "--transactionalId", name)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        producer.commit_transaction(WAIT_S)
    assert refused.value.args[0].fatal()
    transact("confluent-kafka", bootstrap, kafka_topic, [(["later"], True)])
    assert read(bootstrap, kafka_topic, committed=True) == ["kept", "later"]


def hang(bootstrap: str, topic: str) -> None:
    """Appends hour-old records of a transaction that its coordinator does not know, so nothing ends it."""
    with RawClient(bootstrap) as client:
        begin = InitProducerIdRequest(transactional_id=f"hangs-{topic}", transaction_timeout_ms=60_000)

        def ask() -> Any:
            answer = client.ask(begin, 4)
            return None if answer.error_code else answer

        answer = until(ask, "a producer id")
        builder = BatchBuilder(
            producer_id=answer.producer_id, producer_epoch=answer.producer_epoch, base_sequence=0, transactional=True
        )
        builder.append(int((time.time() - 3600) * 1000), None, b"hangs")
        data = [PartitionProduceData(index=0, records=memoryview(builder.build()))]
        request = ProduceRequest(
            transactional_id=f"hangs-{topic}", acks=-1, timeout_ms=5000,
            topic_data=[TopicProduceData(name=topic, partition_data=data)],
        )  # fmt: skip
        assert client.ask(request, 9).responses[0].partition_responses[0].error_code == 0


@needs_kafka
def test_administrators_find_and_abort_hanging_transactions() -> None:
    """kafka-transactions.sh find-hanging, describe-producers and abort, without verification (as before KIP-890)."""
    with Broker(settings={**SETTINGS, "transaction.partition.verification.enable": "false"}) as broker:
        bootstrap = broker.bootstrap
        transact("confluent-kafka", bootstrap, "t", [(["kept"], True)])
        hang(bootstrap, "t")
        transact("confluent-kafka", bootstrap, "t", [(["behind"], True)])
        assert read(bootstrap, "t", committed=True) == ["kept"]
        found = run(TRANSACTIONS, bootstrap, "find-hanging", "--broker-id", 1)
        (row,) = found.splitlines()[1:]
        topic, partition, _, _, _, start, *_ = row.split()
        assert (topic, partition) == ("t", "0")
        writers = run(TRANSACTIONS, bootstrap, "describe-producers", "--topic", "t", "--partition", 0)
        assert [line.split()[-1] for line in writers.splitlines()[1:] if line.split()[-1] != "None"] == [start]
        run(TRANSACTIONS, bootstrap, "abort", "--topic", "t", "--partition", 0, "--start-offset", start)
        assert read(bootstrap, "t", committed=True) == ["behind", "kept"]
