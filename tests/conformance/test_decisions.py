"""Lives of clusters, each decision compared with that of Apache Kafka's controller (deciding.py; `make compare-decisions`)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.deciding import difference
from tests.support.decisions import KafkaDecisions
from tests.support.kafka import needs_kafka

pytestmark = needs_kafka

LIVES, STEPS = 30, 150


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaDecisions]:
    with KafkaDecisions() as running:
        yield running


@pytest.mark.parametrize("seed", range(1, LIVES + 1))
def test_what_is_decided_is_what_kafka_s_controller_decides(kafka: KafkaDecisions, seed: int) -> None:
    """Registrations, heartbeats, placement, ISRs, elections, reassignments: the same answers and the same records."""
    assert not difference(kafka, seed, STEPS)
