"""Consumers of four client libraries behind one interface, so that every scenario of reading runs with all of them.

RULES    1. Options have Kafka's meaning. A reader has partitions of one topic; no reader commits or joins a group.
         2. The Python clients are consumers of the suite's drivers (`python/`).
NOT HERE What is read (`test_readers.py`), clients that also write (`clients.py`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka

from tests.conformance.python.aiokafka_driver import AioKafka
from tests.conformance.python.confluent import Confluent
from tests.conformance.python.driver import Driver
from tests.conformance.python.kafka_python import KafkaPython
from tests.conformance.suite.steps import decoded
from tests.support.kafka import tool_command, why_no_kafka
from tests.support.line_process import LineProcess

POLL_MS = 300


class Options(NamedTuple):
    """The settings that a scenario may choose; all others are the client's defaults."""

    isolation: str = "read_uncommitted"
    min_bytes: int = 1
    max_wait_ms: int = 500
    max_partition_bytes: int = 1 << 20
    max_bytes: int = 50 << 20
    rack: str = ""
    check_crcs: bool = True

    def settings(self) -> dict[str, Any]:
        return {
            "isolation.level": self.isolation,
            "fetch.min.bytes": self.min_bytes,
            "fetch.max.wait.ms": self.max_wait_ms,
            "max.partition.fetch.bytes": self.max_partition_bytes,
            "fetch.max.bytes": self.max_bytes,
            "client.rack": self.rack,
            "check.crcs": self.check_crcs,
            "request.timeout.ms": 60_000,
            "enable.auto.commit": False,
        }


class ConsumedRecord(NamedTuple):
    partition: int
    offset: int
    value: bytes


class PythonReader:
    """A reader of kafka-python or aiokafka, whose consumers have the same methods."""

    def __init__(self, driver: type[Any], bootstrap: str, options: Options) -> None:
        self._driver: Driver = driver(bootstrap)
        self._topic_partition = getattr(driver, "TOPIC_PARTITION", confluent_kafka.TopicPartition)
        self._consumer = self._driver.new_consumer(self.settings(options))
        self._driver.start_consumer(self._consumer)

    @staticmethod
    def settings(options: Options) -> dict[str, Any]:
        return options.settings()

    def assign(self, topic: str, partitions: Sequence[int], offset: int) -> None:
        """Assigns partitions of a topic, each from this offset."""
        self._driver.assign(self._consumer, topic, list(partitions), offset)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        self._consumer.seek(self._topic_partition(topic, partition), offset)

    def pause(self, topic: str, partition: int) -> None:
        self._consumer.pause(self._topic_partition(topic, partition))

    def resume(self, topic: str, partition: int) -> None:
        self._consumer.resume(self._topic_partition(topic, partition))

    def poll(self) -> list[ConsumedRecord]:
        found = self._driver.poll(self._consumer, POLL_MS / 1000, 1000)
        return [ConsumedRecord(one["partition"], one["offset"], decoded(one["value"]) or b"") for one in found]

    def close(self) -> None:
        self._driver.close_consumer(self._consumer)
        self._driver.close()


class Librdkafka(PythonReader):
    @staticmethod
    def settings(options: Options) -> dict[str, Any]:
        return {
            **options.settings(),
            "message.max.bytes": min(options.max_bytes, 1_000_000),  # fetch.max.bytes may not be smaller
        }

    def seek(self, topic: str, partition: int, offset: int) -> None:
        self._consumer.seek(confluent_kafka.TopicPartition(topic, partition, offset))

    def pause(self, topic: str, partition: int) -> None:
        self._consumer.pause([self._topic_partition(topic, partition)])

    def resume(self, topic: str, partition: int) -> None:
        self._consumer.resume([self._topic_partition(topic, partition)])


class JavaProcess(LineProcess):
    """One JVM for all Java readers of a run."""

    def __init__(self) -> None:
        super().__init__(tool_command(str(Path(__file__).parent / "java" / "Reader.java")))

    def call(self, command: str, *words: object) -> list[list[str]]:
        """Runs a command; the words of each line of its answer."""
        lines = [self.ask(" ".join([command, *map(str, words)]))]
        while lines[-1] != ".":
            lines.append(self.read_line())
        assert not any(line.startswith("!") for line in lines), lines
        return [line.split() for line in lines[:-1]]


class Java:
    """A reader of the Java client."""

    def __init__(self, process: JavaProcess, bootstrap: str, options: Options) -> None:
        self._process = process
        settings = {"bootstrap.servers": bootstrap, "max.poll.records": 1000, **options.settings()}
        process.call("open", *(f"{name}={value}" for name, value in settings.items()))

    def assign(self, topic: str, partitions: Sequence[int], offset: int) -> None:
        self._process.call("assign", *(f"{topic}:{index}:{offset}" for index in partitions))

    def seek(self, topic: str, partition: int, offset: int) -> None:
        self._process.call("seek", f"{topic}:{partition}:{offset}")

    def pause(self, topic: str, partition: int) -> None:
        self._process.call("pause", f"{topic}:{partition}")

    def resume(self, topic: str, partition: int) -> None:
        self._process.call("resume", f"{topic}:{partition}")

    def poll(self) -> list[ConsumedRecord]:
        return [
            ConsumedRecord(int(partition), int(offset), decoded(value) or b"")
            for _, partition, offset, value in self._process.call("poll", POLL_MS)
        ]

    def close(self) -> None:
        self._process.call("close")


Reader = PythonReader | Java
PYTHON_READERS: dict[str, Callable[[str, Options], Reader]] = {
    "confluent-kafka": partial(Librdkafka, Confluent),
    "kafka-python": partial(PythonReader, KafkaPython),
    "aiokafka": partial(PythonReader, AioKafka),
}


def why_no_java_reader() -> str | None:
    """Why the Java program cannot be compiled and run here; None when it can."""
    return why_no_kafka() or (None if shutil.which("javac") else "no javac on the path: install a JDK 17")
