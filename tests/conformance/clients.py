"""The Python drivers of the conformance suite, in the test's own process, for scenarios that run with all of them.

NOT HERE Java's clients (`test_java_tools.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.conformance.python.aiokafka_driver import AioKafka
from tests.conformance.python.confluent import Confluent
from tests.conformance.python.driver import Driver
from tests.conformance.python.kafka_python import KafkaPython
from tests.conformance.suite.steps import Record

CLIENTS = {"kafka-python": KafkaPython, "confluent-kafka": Confluent, "aiokafka": AioKafka}


def produce(driver: Driver, topic: str, records: Sequence[Record], codec: str = "none") -> list[int]:
    offsets: list[int] = driver.produce(topic, [record.to_json() for record in records], codec)["offsets"]
    return offsets


def consume(driver: Driver, topic: str, count: int, partitions: int = 4) -> list[Record]:
    """The first `count` records of the topic's partitions."""
    return [Record.from_json(row) for row in driver.consume(topic, list(range(partitions)), count)["records"]]
