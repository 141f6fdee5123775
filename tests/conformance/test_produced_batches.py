"""The batches of tests/support/batches.py, produced to Apache Kafka and to Barnabas: both answer as the table says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from barnabas import Broker
from protocol.errors import ErrorCode
from protocol.messages.produce_fetch import (
    PartitionProduceResponse,
)
from tests.conformance.brokers import append_when_ready
from tests.support.batches import TOPICS, cases
from tests.support.kafka import ApacheKafka, needs_kafka
from tests.support.loading import create
from tests.support.raw_client import RawClient


@contextmanager
def client_with_topics(bootstrap: str) -> Iterator[RawClient]:
    """A client of a broker with the table's topics."""
    with RawClient(bootstrap) as client:
        for name, settings in TOPICS.items():
            create(client, name, **settings)
        yield client


def code_and_blamed(answer: PartitionProduceResponse) -> tuple[ErrorCode, tuple[int, ...]]:
    """The error code and the indexes in record_errors."""
    return ErrorCode(answer.error_code), tuple(error.batch_index for error in answer.record_errors)


@needs_kafka
def test_kafka_answers_as_expected() -> None:
    wrong: list[str] = []
    with ApacheKafka() as node, client_with_topics(node.bootstrap) as client:
        for case in cases(int(time.time() * 1000)):
            if case.kafka is None:
                continue  # Kafka does not answer: its handler throws
            code, blamed = code_and_blamed(append_when_ready(client, case.topic, case.data))
            is_known = blamed == case.rejected or ErrorCode.NONE in {case.ours, case.kafka}
            if code != case.kafka or not is_known:
                wrong.append(f"{case.topic}: {case.name}: {code.name} {blamed}, not {case.kafka.name}")
    assert not wrong, "\n".join(wrong)


def test_our_broker_answers_as_expected() -> None:
    """Accepted batches are in the log without a gap."""
    wrong: list[str] = []
    ends = dict.fromkeys(TOPICS, 0)
    with Broker() as broker, client_with_topics(broker.bootstrap) as client:
        for case in cases(int(time.time() * 1000)):
            answer = append_when_ready(client, case.topic, case.data)
            found = code_and_blamed(answer)
            if found != (case.ours, case.rejected if case.ours else ()):
                wrong.append(f"{case.topic}: {case.name}: {found}, not {case.ours.name} {case.rejected}")
            elif case.ours:
                assert answer.error_message, case
            elif answer.base_offset != ends[case.topic]:
                wrong.append(f"{case.topic}: {case.name}: offset {answer.base_offset}, not {ends[case.topic]}")
            if not found[0]:
                assert case.data is not None
                ends[case.topic] = answer.base_offset + int.from_bytes(case.data[57:61], "big")
    assert not wrong, "\n".join(wrong)
