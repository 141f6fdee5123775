"""Apache Kafka's own command-line tools against any broker.

NOT HERE Tools whose output is compared with Apache Kafka's (`test_tools.py`, `test_cluster_tools.py`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator

import pytest

from barnabas import Broker
from tests.conformance.clients import CLIENTS, consume
from tests.conformance.suite.tables.records import CODECS
from tests.support.kafka import needs_kafka
from tests.support.kafka_tools import KafkaTools, run_in_own_jvm

pytestmark = needs_kafka

PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER_PERFORMANCE = "org.apache.kafka.tools.ConsumerPerformance"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
API_VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"

Run = Callable[..., str]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Runs a tool against a broker and returns its output; a tool that reads standard input has its own JVM."""
    with KafkaTools() as tools:

        def ran(cls: str, bootstrap: str, *args: object, stdin: str | None = None) -> str:
            words = ("--bootstrap-server", bootstrap, *args)
            return (tools.run(cls, *words) if stdin is None else run_in_own_jvm(cls, *words, stdin=stdin)).stdout

        yield ran


@pytest.mark.parametrize("codec", [pytest.param(CODECS[0], marks=pytest.mark.smoke), *CODECS[1:]])
def test_console_producer_and_consumer_with_a_group(
    run: Run, kafka_broker: Broker, kafka_topic: str, codec: str
) -> None:
    """Keys, headers, null keys and null values, with every codec; the Python clients read the same."""
    bootstrap = kafka_broker.bootstrap
    lines = ["h1:a,h2:b\tkey\tvalue", "h1:c\tNULL\tno key", "h1:d\ttombstone\tNULL"]
    run(
        PRODUCER, bootstrap, "--topic", kafka_topic, "--compression-codec", codec,
        "--reader-property", "parse.key=true", "--reader-property", "parse.headers=true",
        "--reader-property", "null.marker=NULL", stdin="\n".join(lines) + "\n",
    )  # fmt: skip
    stdout = run(
        CONSUMER, bootstrap, "--topic", kafka_topic, "--group", f"g-{kafka_topic}", "--from-beginning",
        "--max-messages", 3, "--timeout-ms", 30000, "--formatter-property", "print.key=true",
        "--formatter-property", "print.headers=true", "--formatter-property", "null.literal=NULL",
    )  # fmt: skip
    assert sorted(stdout.splitlines()) == sorted(lines)
    for name, client in CLIENTS.items():
        with contextlib.closing(client(bootstrap)) as driver:
            got = {(record.key, record.value) for record in consume(driver, kafka_topic, 3)}
        assert got == {(b"key", b"value"), (None, b"no key"), (b"tombstone", None)}, name


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_performance_tools_write_and_read_everything(
    run: Run, kafka_broker: Broker, kafka_topic: str, codec: str
) -> None:
    """kafka-producer-perf-test.sh, kafka-consumer-perf-test.sh, kafka-get-offsets.sh."""
    bootstrap = kafka_broker.bootstrap
    written = run_in_own_jvm(
        PRODUCER_PERFORMANCE, "--topic", kafka_topic, "--num-records", 20000, "--record-size", 100,
        "--throughput", -1, "--command-property", f"bootstrap.servers={bootstrap}", "acks=all",
        f"compression.type={codec}",
    ).stdout  # fmt: skip
    assert "20000 records sent" in written
    ends = run(OFFSETS, bootstrap, "--topic", kafka_topic)
    assert sum(int(line.rsplit(":", 1)[1]) for line in ends.splitlines()) == 20000
    read = run(CONSUMER_PERFORMANCE, bootstrap, "--topic", kafka_topic, "--num-records", 20000, "--hide-header")
    assert int(read.strip().splitlines()[-1].split(",")[4]) == 20000


def test_the_tool_for_api_versions_understands_every_row(run: Run, kafka_broker: Broker) -> None:
    """kafka-broker-api-versions.sh: the Java client can use the advertised versions."""
    stdout = run(API_VERSIONS, kafka_broker.bootstrap)
    assert re.search(r"Produce\(0\): 0 to 13 \[usable: 13\]", stdout)
    assert re.search(r"Fetch\(1\): 4 to 18 \[usable: 18\]", stdout)
