"""Random cluster histories: each decision is compared with Apache Kafka's controller (deciding.py)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.deciding import difference
from tests.support.decisions import KafkaDecisions
from tests.support.kafka import needs_kafka

pytestmark = needs_kafka

HISTORIES, STEPS = 30, 150


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaDecisions]:
    with KafkaDecisions() as running:
        yield running


@pytest.mark.parametrize("seed", range(1, HISTORIES + 1))
def test_decisions_equal_those_of_kafkas_controller(kafka: KafkaDecisions, seed: int) -> None:
    """Registrations, heartbeats, placement, ISRs, elections, reassignments: the same responses and records."""
    assert not difference(kafka, seed, STEPS)
