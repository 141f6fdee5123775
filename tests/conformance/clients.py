"""The Python drivers of the conformance suite, in the test's own process, for scenarios that run with all of them.

NOT HERE Java's clients (`test_java_tools.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

from tests.conformance.python.aiokafka_driver import AioKafka
from tests.conformance.python.confluent import Confluent
from tests.conformance.python.driver import Driver
from tests.conformance.python.kafka_python import KafkaPython
from tests.conformance.suite.steps import Record
from tests.support.waiting import until

CLIENTS: dict[str, Callable[[str], Driver]] = {
    "kafka-python": KafkaPython,
    "confluent-kafka": Confluent,
    "aiokafka": AioKafka,
}
PARTITIONS, RECORDS = 6, 300
ALL = {(partition, offset) for partition in range(PARTITIONS) for offset in range(RECORDS // PARTITIONS)}
"""Partition and offset of the records that a test of groups writes first."""


def consume(driver: Driver, topic: str, count: int, partitions: int = 4) -> list[Record]:
    """The first `count` records of the topic's partitions."""
    return [Record.from_json(row) for row in driver.consume(topic, list(range(partitions)), count)["records"]]


class Member:
    """A consumer in the group with the name of its topic, during a `with` block; it commits what it reads."""

    def __init__(self, client: str, bootstrap: str, topic: str, **how: Any) -> None:
        self._driver: Driver = CLIENTS[client](bootstrap)
        self._driver.join("member", topic, [topic], "earliest", "auto", **how)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Commits and leaves."""
        self._driver.close()

    @property
    def share(self) -> int:
        """The number of assigned partitions."""
        return len(self._driver.member("member")["assigned"])

    @property
    def seen(self) -> set[tuple[int, int]]:
        """Partition and offset of the records that it has read."""
        return {(record["partition"], record["offset"]) for record in self._driver.member("member")["records"]}


def seen_by(members: Iterable[Member]) -> set[tuple[int, int]]:
    return set().union(*(member.seen for member in members))


def until_balanced(members: list[Member]) -> None:
    """Waits until the members share the partitions evenly."""
    share = PARTITIONS // len(members)
    until(lambda: [member.share for member in members] == [share] * len(members), f"{share} partitions for each member")
