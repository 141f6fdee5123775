"""Transactions of real clients that outlive a killed broker, and Apache Kafka's tools for transactions.

NOT HERE What every client does in a transaction (`suite/tables/transactions.py`), exactly-once loops (`tests/exactly_once`).
"""

from __future__ import annotations

import time

import confluent_kafka
import pytest

from barnabas import Broker
from protocol.batch_builder import BatchBuilder
from tests.conformance.brokers import append, new_producer
from tests.conformance.clients import CLIENTS
from tests.conformance.python.driver import Driver
from tests.conformance.suite.steps import Record
from tests.support.kafka import needs_kafka
from tests.support.kafka_tools import run_in_own_jvm
from tests.support.librdkafka import produce, read_to_end, transactional_producer
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


def read(bootstrap: str, topic: str) -> list[str]:
    """All committed values of a topic up to its current end."""
    found = read_to_end(bootstrap, topic, isolation="read_committed")
    return sorted((message.value() or b"").decode() for message in found)


def test_a_killed_broker_keeps_what_was_committed_and_ends_what_was_open() -> None:
    """After SIGKILL the transaction is still open, limits read_committed consumers, and its producer can continue."""
    settings = {**SETTINGS, "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100}
    with Broker(settings=settings) as broker:
        transact("confluent-kafka", broker.bootstrap, "t", [(["kept"], True), (["gone"], False)])
        producer = transactional_producer(broker.bootstrap, "open", transaction_timeout_ms=60_000)
        producer.begin_transaction()
        producer.produce("t", "before", partition=0)
        assert producer.flush(WAIT_S) == 0
        transact("kafka-python", broker.bootstrap, "t", [(["behind"], True)])
        broker.kill()
        broker.start()
        assert read(broker.bootstrap, "t") == ["kept"]
        producer.produce("t", "after", partition=1)
        producer.commit_transaction(WAIT_S)
        until(
            lambda: read(broker.bootstrap, "t") == ["after", "before", "behind", "kept"],
            "everything that was committed",
        )


@needs_kafka
def test_the_performance_tool_writes_in_transactions(kafka_broker: Broker, kafka_topic: str) -> None:
    """kafka-producer-perf-test.sh --transactional-id: Java's producer, transactions of version 2."""
    written = run_in_own_jvm(
        PRODUCER_PERFORMANCE, "--topic", kafka_topic, "--num-records", 5000, "--record-size", 100, "--throughput",
        -1, "--command-property", f"bootstrap.servers={kafka_broker.bootstrap}", "--transactional-id", kafka_topic,
        "--transaction-duration-ms", 100,
    ).stdout  # fmt: skip
    assert "5000 records sent" in written
    assert len(read(kafka_broker.bootstrap, kafka_topic)) == 5000
    described = run(TRANSACTIONS, kafka_broker.bootstrap, "describe", "--transactional-id", kafka_topic)
    assert "CompleteCommit" in described


@needs_kafka
def test_the_message_copier_copies_exactly_once(kafka_broker: Broker, kafka_topic: str) -> None:
    """kafka-transactional-message-copier.sh with random aborts, as in Kafka's own system tests."""
    bootstrap, values = kafka_broker.bootstrap, [f"{number:04}" for number in range(300)]
    produce(bootstrap, kafka_topic, (value.encode() for value in values))
    copied = run_in_own_jvm(
        COPIER, "--broker-list", bootstrap, "--input-topic", kafka_topic, "--input-partition", 0,
        "--output-topic", f"{kafka_topic}.copy", "--consumer-group", kafka_topic, "--transactional-id", kafka_topic,
        "--transaction-size", 20, "--enable-random-aborts", "--group-mode", "--use-group-metadata",
    ).stdout  # fmt: skip
    assert '"remaining":0' in copied.splitlines()[-1]
    assert read(bootstrap, f"{kafka_topic}.copy") == values


@needs_kafka
def test_administrators_see_and_end_open_transactions(kafka_broker: Broker, kafka_topic: str) -> None:
    """kafka-transactions.sh list, describe and forceTerminateTransaction, which fences the producer."""
    bootstrap, name = kafka_broker.bootstrap, f"open-{kafka_topic}"
    transact("confluent-kafka", bootstrap, kafka_topic, [(["kept"], True)])
    producer = transactional_producer(bootstrap, name)
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
    assert read(bootstrap, kafka_topic) == ["kept", "later"]


def hang(bootstrap: str, topic: str) -> None:
    """Appends hour-old records of a transaction that its coordinator does not know, so nothing ends it."""
    name = f"hangs-{topic}"
    with RawClient(bootstrap) as client:
        producer = until(lambda: new_producer(client, name), "a producer id")
        builder = BatchBuilder(producer_id=producer[0], producer_epoch=producer[1], base_sequence=0, transactional=True)
        builder.append(int((time.time() - 3600) * 1000), None, b"hangs")
        assert append(client, topic, bytes(builder.build()), acks=-1, transactional_id=name).error_code == 0


@needs_kafka
def test_administrators_find_and_abort_hanging_transactions() -> None:
    """kafka-transactions.sh find-hanging, describe-producers and abort, without verification (as before KIP-890)."""
    with Broker(settings={**SETTINGS, "transaction.partition.verification.enable": "false"}) as broker:
        bootstrap = broker.bootstrap
        transact("confluent-kafka", bootstrap, "t", [(["kept"], True)])
        hang(bootstrap, "t")
        transact("confluent-kafka", bootstrap, "t", [(["behind"], True)])
        assert read(bootstrap, "t") == ["kept"]
        found = run(TRANSACTIONS, bootstrap, "find-hanging", "--broker-id", 1)
        (row,) = found.splitlines()[1:]
        topic, partition, _, _, _, start, *_ = row.split()
        assert (topic, partition) == ("t", "0")
        writers = run(TRANSACTIONS, bootstrap, "describe-producers", "--topic", "t", "--partition", 0)
        assert [line.split()[-1] for line in writers.splitlines()[1:] if line.split()[-1] != "None"] == [start]
        run(TRANSACTIONS, bootstrap, "abort", "--topic", "t", "--partition", 0, "--start-offset", start)
        assert read(bootstrap, "t") == ["behind", "kept"]
