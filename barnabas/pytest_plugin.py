"""Fixtures for anybody's tests: a broker for the whole run, a topic for each test.

    def test_round_trip(kafka_broker, kafka_topic):
        producer = KafkaProducer(bootstrap_servers=kafka_broker.bootstrap)

RULES    1. Nothing is started before a test asks for it.
         2. With `--kafka-bootstrap HOST:PORT` the same tests run against a broker that is there already, Apache Kafka
            among them.
         3. Each topic has a name that no other run uses.
NOT HERE Starting and stopping (`embedded.py`).
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
from collections.abc import Iterator
from typing import Protocol

import pytest

from barnabas.embedded import Broker

PARTITIONS = 4
SETTINGS = {"group.initial.rebalance.delay.ms": "100"}
"""Kafka waits three seconds for more members before a new group begins: too long for each test."""
_RUN = secrets.token_hex(4)
_numbers = itertools.count(1)


class KafkaBroker(Protocol):
    """What tests may rely on, whichever broker it is."""

    @property
    def bootstrap(self) -> str:
        """Where clients connect, as HOST:PORT."""


class ForeignBroker:
    """A broker that somebody else started."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option and the setting."""
    group = parser.getgroup("barnabas", "Barnabas, the Kafka-protocol broker")
    group.addoption(
        "--kafka-bootstrap",
        metavar="HOST:PORT",
        default=os.environ.get("KAFKA_BOOTSTRAP"),
        help="use the broker at this address instead of starting one (default: $KAFKA_BOOTSTRAP)",
    )
    parser.addini(
        "barnabas_settings",
        type="linelist",
        default=[],
        help="settings of the broker that the fixture kafka_broker starts, one name=value a line; "
        "group.initial.rebalance.delay.ms is 100 unless it is named",
    )


@pytest.fixture(scope="session")
def kafka_broker(pytestconfig: pytest.Config) -> Iterator[KafkaBroker]:
    """A running broker, the same for all tests of the run; `.bootstrap` is what clients want."""
    foreign = pytestconfig.getoption("--kafka-bootstrap")
    if foreign:
        yield ForeignBroker(str(foreign))
        return
    lines: list[str] = pytestconfig.getini("barnabas_settings")
    named = dict(line.split("=", 1) for line in lines)
    with Broker(settings={**SETTINGS, **named}) as broker:
        yield broker


@pytest.fixture
def kafka_topic(kafka_broker: KafkaBroker, request: pytest.FixtureRequest) -> str:
    """The name of a fresh topic of four partitions, created and ready."""
    test = re.sub(r"[^A-Za-z0-9._-]+", "-", request.node.name).strip("-.")[:150]
    name = f"{test}-{_RUN}-{next(_numbers)}"
    _create_topic(kafka_broker.bootstrap, name)
    return name


def _create_topic(bootstrap: str, name: str) -> None:
    try:
        from kafka.admin import KafkaAdminClient, NewTopic
    except ImportError:
        pytest.skip("the fixture kafka_topic needs a client to create topics with: pip install kafka-python")
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.create_topics([NewTopic(name=name, num_partitions=PARTITIONS, replication_factor=1)])
    finally:
        admin.close()
