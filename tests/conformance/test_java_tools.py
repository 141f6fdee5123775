"""Apache Kafka's own command-line tools against the broker, unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.clients import CODECS, CONSUMERS
from tests.support.kafka import needs_kafka
from tests.support.kafka_tools import KafkaTools, alone

pytestmark = needs_kafka

TOPICS = "org.apache.kafka.tools.TopicCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER_PERFORMANCE = "org.apache.kafka.tools.ConsumerPerformance"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
API_VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"


Run = Callable[..., str]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Runs a tool against a broker, and tells what it printed; who reads standard input gets a JVM of its own."""
    with KafkaTools() as tools:

        def ran(cls: str, bootstrap: str, *args: object, stdin: str | None = None) -> str:
            command = cls, "--bootstrap-server", bootstrap, *args
            return (tools.run(*command) if stdin is None else alone(*command, stdin=stdin)).printed

        yield ran


def test_topics_are_created_described_altered_and_deleted(run: Run, kafka_broker, kafka_topic) -> None:
    """kafka-topics.sh: create, list, describe, more partitions, delete."""
    bootstrap, name = kafka_broker.bootstrap, f"{kafka_topic}.tool"
    created = run(TOPICS, bootstrap, "--create", "--topic", name, "--partitions", 3, "--config", "retention.ms=-1")
    assert f"Created topic {name}." in created
    assert name in run(TOPICS, bootstrap, "--list").split()
    run(TOPICS, bootstrap, "--alter", "--topic", name, "--partitions", 5)
    described = run(TOPICS, bootstrap, "--describe", "--topic", name)
    assert re.search(r"PartitionCount: 5\s+ReplicationFactor: 1\s+Configs: .*retention.ms=-1", described)
    assert len(re.findall(r"Partition: \d\s+Leader: 1\s+Replicas: 1\s+Isr: 1", described)) == 5
    run(TOPICS, bootstrap, "--delete", "--topic", name)
    assert name not in run(TOPICS, bootstrap, "--list").split()


@pytest.mark.parametrize("codec", CODECS)
def test_console_producer_and_consumer_with_a_group(run: Run, kafka_broker, kafka_topic, codec: str) -> None:
    """Keys, headers, null keys and null values, with every codec; the Python clients read the same."""
    bootstrap = kafka_broker.bootstrap
    lines = ["h1:a,h2:b\tkey\tvalue", "h1:c\tNULL\tno key", "h1:d\ttombstone\tNULL"]
    run(
        PRODUCER, bootstrap, "--topic", kafka_topic, "--compression-codec", codec,
        "--reader-property", "parse.key=true", "--reader-property", "parse.headers=true",
        "--reader-property", "null.marker=NULL", stdin="\n".join(lines) + "\n",
    )  # fmt: skip
    printed = run(
        CONSUMER, bootstrap, "--topic", kafka_topic, "--group", f"g-{kafka_topic}", "--from-beginning",
        "--max-messages", 3, "--timeout-ms", 30000, "--formatter-property", "print.key=true",
        "--formatter-property", "print.headers=true", "--formatter-property", "null.literal=NULL",
    )  # fmt: skip
    assert sorted(printed.splitlines()) == sorted(lines)
    for name, consume in CONSUMERS.items():
        got = {(record.key, record.value) for record in consume(bootstrap, kafka_topic, 3)}
        assert got == {(b"key", b"value"), (None, b"no key"), (b"tombstone", None)}, name


def test_groups_are_listed_described_reset_and_deleted(run: Run, kafka_broker, kafka_topic) -> None:
    """kafka-consumer-groups.sh on a group that a console consumer has left."""
    bootstrap, group = kafka_broker.bootstrap, f"g-{kafka_topic}"
    run(PRODUCER, bootstrap, "--topic", kafka_topic, stdin="".join(f"{n}\n" for n in range(20)))
    run(
        CONSUMER, bootstrap, "--topic", kafka_topic, "--group", group, "--from-beginning", "--max-messages", 20,
        "--timeout-ms", 30000,
    )  # fmt: skip
    assert group in run(GROUPS, bootstrap, "--list").split()
    described = run(GROUPS, bootstrap, "--describe", "--group", group)
    rows = [line.split() for line in described.splitlines() if line.startswith(group)]
    assert {row[1] for row in rows} == {kafka_topic}
    assert sum(int(row[3]) for row in rows) == 20
    assert all(row[5] == "0" for row in rows)
    assert re.search(rf"{group}\s+.*Empty\s+0", run(GROUPS, bootstrap, "--describe", "--group", group, "--state"))
    reset = run(
        GROUPS, bootstrap, "--reset-offsets", "--group", group, "--topic", kafka_topic, "--to-earliest", "--execute"
    )
    assert len(re.findall(rf"{group}\s+{kafka_topic}\s+\d\s+0", reset)) == len(rows)
    deleted = run(GROUPS, bootstrap, "--delete-offsets", "--group", group, "--topic", f"{kafka_topic}:{rows[0][2]}")
    assert re.search(rf"{kafka_topic}\s+{rows[0][2]}\s+Successful", deleted)
    assert "was successful" in run(GROUPS, bootstrap, "--delete", "--group", group)
    assert group not in run(GROUPS, bootstrap, "--list").split()


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_performance_tools_write_and_read_everything(run: Run, kafka_broker, kafka_topic, codec: str) -> None:
    """kafka-producer-perf-test.sh, kafka-consumer-perf-test.sh, kafka-get-offsets.sh."""
    bootstrap = kafka_broker.bootstrap
    written = alone(
        PRODUCER_PERFORMANCE, "--topic", kafka_topic, "--num-records", 20000, "--record-size", 100,
        "--throughput", -1, "--command-property", f"bootstrap.servers={bootstrap}", "acks=all",
        f"compression.type={codec}",
    ).printed  # fmt: skip
    assert "20000 records sent" in written
    ends = run(OFFSETS, bootstrap, "--topic", kafka_topic)
    assert sum(int(line.rsplit(":", 1)[1]) for line in ends.splitlines()) == 20000
    read = run(CONSUMER_PERFORMANCE, bootstrap, "--topic", kafka_topic, "--num-records", 20000, "--hide-header")
    assert int(read.strip().splitlines()[-1].split(",")[4]) == 20000


def test_records_are_deleted_and_directories_described(run: Run, kafka_broker, kafka_topic, tmp_path: Path) -> None:
    """kafka-delete-records.sh, kafka-log-dirs.sh."""
    bootstrap = kafka_broker.bootstrap
    run(PRODUCER, bootstrap, "--topic", kafka_topic, stdin="".join(f"{n}\n" for n in range(20)))
    ends = {int(row.split(":")[1]): int(row.split(":")[2]) for row in end_offsets(run, bootstrap, kafka_topic)}
    wanted = [{"topic": kafka_topic, "partition": index, "offset": -1} for index in ends]
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps({"partitions": wanted, "version": 1}))
    deleted = run(DELETE_RECORDS, bootstrap, "--offset-json-file", file)
    for index, end in ends.items():
        assert f"partition: {kafka_topic}-{index}\tlow_watermark: {end}" in deleted
    described = run(LOG_DIRS, bootstrap, "--describe", "--topic-list", kafka_topic)
    (found,) = [json.loads(line) for line in described.splitlines() if line.startswith("{")]
    (broker,) = found["brokers"]
    logs = [log for directory in broker["logDirs"] for log in directory["partitions"]]
    assert {log["partition"] for log in logs} == {f"{kafka_topic}-{index}" for index in ends}
    assert sum(log["size"] for log in logs) > 0
    assert {(log["offsetLag"], log["isFuture"]) for log in logs} == {(0, False)}


def end_offsets(run: Run, bootstrap: str, topic: str) -> list[str]:
    """topic:partition:offset of every partition."""
    return run(OFFSETS, bootstrap, "--topic", topic).split()


def test_the_tool_for_api_versions_understands_every_row(run: Run, kafka_broker) -> None:
    """kafka-broker-api-versions.sh: what is advertised is usable by the Java client."""
    printed = run(API_VERSIONS, kafka_broker.bootstrap)
    assert re.search(r"Produce\(0\): 0 to 13 \[usable: 13\]", printed)
    assert re.search(r"Fetch\(1\): 4 to 18 \[usable: 18\]", printed)
