"""Both brokers answer admin requests as the table says (tests/support/admin_cases.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from barnabas import Broker
from protocol.messages.admin import CreateTopicsRequest
from tests.support.admin_cases import CASES, Case, normalised, topic
from tests.support.cluster_cases import CLUSTER_CASES
from tests.support.feature_cases import FEATURES
from tests.support.kafka import ApacheKafka, needs_kafka
from tests.support.raw_client import RawClient
from tests.support.settings_cases import SETTINGS_CASES

SETTINGS = {"num.partitions": "1"}


def prepared(bootstrap: str) -> RawClient:
    """A client of a broker that has the table's topics."""
    client = RawClient(bootstrap)
    topics = [topic("t1", 3), topic("t2", 2, configs=[("cleanup.policy", "compact,delete")]), topic("c.c")]
    made = client.ask(CreateTopicsRequest(topics=topics, timeout_ms=10_000), 7)
    assert [code for _, code, _ in normalised(made)] == [0, 0, 0]
    return client


ALL = CASES | SETTINGS_CASES | CLUSTER_CASES | {"features": FEATURES}


@pytest.fixture(scope="module")
def kafka() -> Iterator[RawClient]:
    with ApacheKafka(SETTINGS) as broker, prepared(broker.bootstrap) as client:
        yield client


@pytest.fixture(scope="module")
def ours() -> Iterator[RawClient]:
    with Broker(settings=SETTINGS) as broker, prepared(broker.bootstrap) as client:
        yield client


def compare(client: RawClient, api: str, expected: Callable[[Case], object]) -> None:
    wrong = []
    for case in ALL[api]:
        answer = normalised(client.ask(case.request, type(case.request).MAX_VERSION))
        if answer != expected(case):
            wrong.append(f"{case.request}\n  broker: {answer}\n  table:  {expected(case)}")
    assert not wrong, "\n".join(wrong)


@needs_kafka
@pytest.mark.parametrize("api", ALL)
def test_kafka_answers_as_the_table_says(kafka: RawClient, api: str) -> None:
    """The oracle: codes and sentences word for word."""
    compare(kafka, api, lambda case: case.answer)


@pytest.mark.parametrize("api", ALL)
def test_we_answer_as_the_table_says(ours: RawClient, api: str) -> None:
    """Through socket, router, handler and controller; where we differ, the table says why."""
    compare(ours, api, lambda case: case.answer if case.ours is None else case.ours)
