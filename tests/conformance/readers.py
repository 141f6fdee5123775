"""Consumers of four client libraries behind one interface, so that every scenario of reading runs with all of them.

RULES    1. Options have Kafka's meaning; each reader translates their names. No reader commits or joins a group.
NOT HERE What is read (`test_readers.py`), clients that also write (`clients.py`).
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka
import kafka

from tests.support.kafka import tool_command, why_no_kafka

POLL_MS = 300
REQUEST_TIMEOUT_MS = 60_000

TopicPartition = tuple[str, int]


class Options(NamedTuple):
    """The settings that a scenario may choose; all others are the client's defaults."""

    isolation: str = "read_uncommitted"
    min_bytes: int = 1
    max_wait_ms: int = 500
    max_partition_bytes: int = 1 << 20
    max_bytes: int = 50 << 20
    rack: str = ""
    check_crcs: bool = True


class ConsumedRecord(NamedTuple):
    topic: str
    partition: int
    offset: int
    value: bytes


class Reader(ABC):
    @abstractmethod
    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Assigns partitions, each with the offset to start at."""

    @abstractmethod
    def seek(self, partition: TopicPartition, offset: int) -> None: ...

    @abstractmethod
    def pause(self, partitions: Iterable[TopicPartition]) -> None: ...

    @abstractmethod
    def resume(self, partitions: Iterable[TopicPartition]) -> None: ...

    @abstractmethod
    def poll(self) -> list[ConsumedRecord]: ...

    @abstractmethod
    def close(self) -> None: ...


class Librdkafka(Reader):
    def __init__(self, bootstrap: str, options: Options) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "isolation.level": options.isolation,
                "fetch.min.bytes": options.min_bytes,
                "fetch.wait.max.ms": options.max_wait_ms,
                "max.partition.fetch.bytes": options.max_partition_bytes,
                "fetch.max.bytes": options.max_bytes,
                "message.max.bytes": min(options.max_bytes, 1_000_000),  # fetch.max.bytes may not be smaller
                "client.rack": options.rack,
                "check.crcs": options.check_crcs,
                "socket.timeout.ms": REQUEST_TIMEOUT_MS,
            }
        )

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self._consumer.assign([confluent_kafka.TopicPartition(*one, offset) for one, offset in positions.items()])

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._consumer.seek(confluent_kafka.TopicPartition(*partition, offset))

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._consumer.pause([confluent_kafka.TopicPartition(*one) for one in partitions])

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._consumer.resume([confluent_kafka.TopicPartition(*one) for one in partitions])

    def poll(self) -> list[ConsumedRecord]:
        messages = self._consumer.consume(1000, POLL_MS / 1000)
        for message in messages:
            if message.error() is not None:
                raise confluent_kafka.KafkaException(message.error())
        return [ConsumedRecord(one.topic(), one.partition(), one.offset(), one.value()) for one in messages]

    def close(self) -> None:
        self._consumer.close()


class KeywordReader(Reader):
    """kafka-python or aiokafka, whose consumers have the same settings and methods."""

    topic_partition: Callable[[str, int], Any]
    _consumer: Any

    @staticmethod
    def settings(bootstrap: str, options: Options) -> dict[str, Any]:
        return {
            "bootstrap_servers": bootstrap,
            "isolation_level": options.isolation,
            "fetch_min_bytes": options.min_bytes,
            "fetch_max_wait_ms": options.max_wait_ms,
            "max_partition_fetch_bytes": options.max_partition_bytes,
            "fetch_max_bytes": options.max_bytes,
            "client_rack": options.rack,
            "check_crcs": options.check_crcs,
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
        }

    def _call(self, name: str, *args: Any, **keywords: Any) -> Any:
        return getattr(self._consumer, name)(*args, **keywords)

    def _partitions(self, partitions: Iterable[TopicPartition]) -> list[Any]:
        return [self.topic_partition(*one) for one in partitions]

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self._call("assign", self._partitions(positions))
        for partition, offset in positions.items():
            self.seek(partition, offset)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._call("seek", self.topic_partition(*partition), offset)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._call("pause", *self._partitions(partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._call("resume", *self._partitions(partitions))

    @staticmethod
    def _records(polled: dict[Any, list[Any]]) -> list[ConsumedRecord]:
        return [
            ConsumedRecord(one.topic, one.partition, one.offset, one.value)
            for records in polled.values()
            for one in records
        ]


class KafkaPython(KeywordReader):
    topic_partition = staticmethod(kafka.TopicPartition)

    def __init__(self, bootstrap: str, options: Options) -> None:
        self._consumer = kafka.KafkaConsumer(**self.settings(bootstrap, options))

    def poll(self) -> list[ConsumedRecord]:
        return self._records(self._consumer.poll(POLL_MS, max_records=1000))

    def close(self) -> None:
        self._consumer.close()


class AioKafka(KeywordReader):
    """aiokafka, in an event loop that runs during each call."""

    topic_partition = staticmethod(aiokafka.TopicPartition)

    def __init__(self, bootstrap: str, options: Options) -> None:
        async def start() -> aiokafka.AIOKafkaConsumer:
            consumer = aiokafka.AIOKafkaConsumer(**self.settings(bootstrap, options), enable_auto_commit=False)
            await consumer.start()
            return consumer

        self._runner = asyncio.Runner()
        self._consumer = self._runner.run(start())

    def _call(self, name: str, *args: Any, **keywords: Any) -> Any:
        async def call() -> Any:
            result = getattr(self._consumer, name)(*args, **keywords)
            return await result if inspect.iscoroutine(result) else result

        return self._runner.run(call())

    def poll(self) -> list[ConsumedRecord]:
        return self._records(self._call("getmany", timeout_ms=POLL_MS))

    def close(self) -> None:
        self._call("stop")
        self._runner.close()


class JavaProcess:
    """One JVM for all Java readers of a run."""

    def __init__(self) -> None:
        source = Path(__file__).parent / "java" / "Reader.java"
        self._process = subprocess.Popen(
            tool_command(str(source)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def ask(self, command: str, *words: object) -> list[list[str]]:
        """Runs a command; the words of each line of its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join([command, *map(str, words)]) + "\n")
        self._process.stdin.flush()
        lines = []
        while (line := self._process.stdout.readline().rstrip("\n")) != ".":
            assert line, f"the JVM ended with {self._process.wait(10)}"
            lines.append(line)
        assert not any(line.startswith("!") for line in lines), lines
        return [line.split() for line in lines]

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


class Java(Reader):
    def __init__(self, process: JavaProcess, bootstrap: str, options: Options) -> None:
        self._process = process
        settings = {
            "bootstrap.servers": bootstrap,
            "isolation.level": options.isolation,
            "fetch.min.bytes": options.min_bytes,
            "fetch.max.wait.ms": options.max_wait_ms,
            "max.partition.fetch.bytes": options.max_partition_bytes,
            "fetch.max.bytes": options.max_bytes,
            "client.rack": options.rack,
            "check.crcs": str(options.check_crcs).lower(),
            "request.timeout.ms": REQUEST_TIMEOUT_MS,
            "enable.auto.commit": "false",
            "max.poll.records": 1000,
        }
        process.ask("open", *(f"{name}={value}" for name, value in settings.items()))

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self._process.ask("assign", *(f"{topic}:{index}:{offset}" for (topic, index), offset in positions.items()))

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._process.ask("seek", f"{partition[0]}:{partition[1]}:{offset}")

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._process.ask("pause", *(f"{topic}:{index}" for topic, index in partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._process.ask("resume", *(f"{topic}:{index}" for topic, index in partitions))

    def poll(self) -> list[ConsumedRecord]:
        return [
            ConsumedRecord(topic, int(partition), int(offset), base64.b64decode(value))
            for topic, partition, offset, value in self._process.ask("poll", POLL_MS)
        ]

    def close(self) -> None:
        self._process.ask("close")


PYTHON_READERS: dict[str, Callable[[str, Options], Reader]] = {
    "confluent-kafka": Librdkafka,
    "kafka-python": KafkaPython,
    "aiokafka": AioKafka,
}


def why_no_java_reader() -> str | None:
    """Why the Java program cannot be compiled and run here; None when it can."""
    return why_no_kafka() or (None if shutil.which("javac") else "no javac on the path: install a JDK 17")
