"""Real consumers behind one small door, so that every scenario of reading runs with all of them.

RULES    1. Settings are Kafka's, each client's own names for them stand here; no reader commits or joins a group.
NOT HERE What is read (`test_readers.py`), clients that also write (`clients.py`).
"""

from __future__ import annotations

import asyncio
import base64
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import aiokafka
import confluent_kafka
import kafka

from tests.support.kafka import tool_command, why_no_kafka

POLL_MS = 300
REQUEST_TIMEOUT_MS = 60_000

Place = tuple[str, int]
"""Topic and partition."""


class Options(NamedTuple):
    """What a scenario may ask for; the rest is the client's default."""

    isolation: str = "read_uncommitted"
    min_bytes: int = 1
    max_wait_ms: int = 500
    max_partition_bytes: int = 1 << 20
    max_bytes: int = 50 << 20
    rack: str = ""
    check_crcs: bool = True


class Got(NamedTuple):
    """A record as a consumer gave it out."""

    topic: str
    partition: int
    offset: int
    value: bytes


class Reader(Protocol):
    """A consumer."""

    def assign(self, positions: Mapping[Place, int]) -> None:
        """Read these, each from its offset on."""

    def seek(self, place: Place, offset: int) -> None:
        """Go on elsewhere."""

    def pause(self, places: Iterable[Place]) -> None:
        """Give out nothing of these until they are resumed."""

    def resume(self, places: Iterable[Place]) -> None:
        """Give them out again."""

    def poll(self) -> list[Got]:
        """Some records, or none when none came in time."""

    def close(self) -> None:
        """Hang up."""


class Librdkafka:
    """confluent-kafka."""

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

    def assign(self, positions: Mapping[Place, int]) -> None:
        """Read these."""
        self._consumer.assign([confluent_kafka.TopicPartition(*place, offset) for place, offset in positions.items()])

    def seek(self, place: Place, offset: int) -> None:
        """Go on elsewhere."""
        self._consumer.seek(confluent_kafka.TopicPartition(*place, offset))

    def pause(self, places: Iterable[Place]) -> None:
        """Give out nothing of these."""
        self._consumer.pause([confluent_kafka.TopicPartition(*place) for place in places])

    def resume(self, places: Iterable[Place]) -> None:
        """Give them out again."""
        self._consumer.resume([confluent_kafka.TopicPartition(*place) for place in places])

    def poll(self) -> list[Got]:
        """Some records."""
        found = []
        for message in self._consumer.consume(1000, POLL_MS / 1000):
            if message.error() is not None:
                raise confluent_kafka.KafkaException(message.error())
            found.append(Got(message.topic(), message.partition(), message.offset(), message.value()))
        return found

    def close(self) -> None:
        """Hang up."""
        self._consumer.close()


def _settings(bootstrap: str, options: Options) -> dict[str, Any]:
    """What kafka-python and aiokafka call by the same names."""
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


class KafkaPython:
    """kafka-python."""

    def __init__(self, bootstrap: str, options: Options) -> None:
        self._consumer = kafka.KafkaConsumer(**_settings(bootstrap, options))

    def assign(self, positions: Mapping[Place, int]) -> None:
        """Read these."""
        self._consumer.assign([kafka.TopicPartition(*place) for place in positions])
        for place, offset in positions.items():
            self.seek(place, offset)

    def seek(self, place: Place, offset: int) -> None:
        """Go on elsewhere."""
        self._consumer.seek(kafka.TopicPartition(*place), offset)

    def pause(self, places: Iterable[Place]) -> None:
        """Give out nothing of these."""
        self._consumer.pause(*(kafka.TopicPartition(*place) for place in places))

    def resume(self, places: Iterable[Place]) -> None:
        """Give them out again."""
        self._consumer.resume(*(kafka.TopicPartition(*place) for place in places))

    def poll(self) -> list[Got]:
        """Some records."""
        polled = self._consumer.poll(POLL_MS, max_records=1000)
        return [
            Got(record.topic, record.partition, record.offset, record.value)
            for some in polled.values()
            for record in some
        ]

    def close(self) -> None:
        """Hang up."""
        self._consumer.close()


class AioKafka:
    """aiokafka, on a loop of its own that runs while something is asked of it."""

    def __init__(self, bootstrap: str, options: Options) -> None:
        self._runner = asyncio.Runner()
        self._runner.run(self._start(bootstrap, options))

    async def _start(self, bootstrap: str, options: Options) -> None:
        self._consumer = aiokafka.AIOKafkaConsumer(**_settings(bootstrap, options), enable_auto_commit=False)
        await self._consumer.start()

    def assign(self, positions: Mapping[Place, int]) -> None:
        """Read these."""

        async def assign() -> None:
            self._consumer.assign([aiokafka.TopicPartition(*place) for place in positions])
            for place, offset in positions.items():
                self._consumer.seek(aiokafka.TopicPartition(*place), offset)

        self._runner.run(assign())

    def seek(self, place: Place, offset: int) -> None:
        """Go on elsewhere."""
        self._call(lambda: self._consumer.seek(aiokafka.TopicPartition(*place), offset))

    def pause(self, places: Iterable[Place]) -> None:
        """Give out nothing of these."""
        self._call(lambda: self._consumer.pause(*(aiokafka.TopicPartition(*place) for place in places)))

    def resume(self, places: Iterable[Place]) -> None:
        """Give them out again."""
        self._call(lambda: self._consumer.resume(*(aiokafka.TopicPartition(*place) for place in places)))

    def poll(self) -> list[Got]:
        """Some records."""
        polled = self._runner.run(self._consumer.getmany(timeout_ms=POLL_MS))
        return [
            Got(record.topic, record.partition, record.offset, record.value)
            for some in polled.values()
            for record in some
        ]

    def close(self) -> None:
        """Hang up."""
        self._runner.run(self._consumer.stop())
        self._runner.close()

    def _call(self, what: Callable[[], None]) -> None:
        async def call() -> None:
            what()

        self._runner.run(call())


class JavaProcess:
    """One JVM for all of a run's Java readers."""

    def __init__(self) -> None:
        source = Path(__file__).parent / "java" / "Reader.java"
        self._process = subprocess.Popen(
            tool_command(str(source)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def ask(self, command: str, *words: object) -> list[list[str]]:
        """Have a command done; the words of each line of its answer."""
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
        """End the JVM: its input is over."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


class Java:
    """Apache Kafka's own consumer."""

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

    def assign(self, positions: Mapping[Place, int]) -> None:
        """Read these."""
        self._process.ask("assign", *(f"{topic}:{index}:{offset}" for (topic, index), offset in positions.items()))

    def seek(self, place: Place, offset: int) -> None:
        """Go on elsewhere."""
        self._process.ask("seek", f"{place[0]}:{place[1]}:{offset}")

    def pause(self, places: Iterable[Place]) -> None:
        """Give out nothing of these."""
        self._process.ask("pause", *(f"{topic}:{index}" for topic, index in places))

    def resume(self, places: Iterable[Place]) -> None:
        """Give them out again."""
        self._process.ask("resume", *(f"{topic}:{index}" for topic, index in places))

    def poll(self) -> list[Got]:
        """Some records."""
        return [
            Got(topic, int(partition), int(offset), base64.b64decode(value))
            for topic, partition, offset, value in self._process.ask("poll", POLL_MS)
        ]

    def close(self) -> None:
        """Hang up."""
        self._process.ask("close")


PYTHON_READERS: dict[str, Callable[[str, Options], Reader]] = {
    "confluent-kafka": Librdkafka,
    "kafka-python": KafkaPython,
    "aiokafka": AioKafka,
}


def why_no_java_reader() -> str | None:
    """Why the Java program cannot be compiled and run here; None when it can."""
    return why_no_kafka() or (None if shutil.which("javac") else "no javac on the path: install a JDK 17")
