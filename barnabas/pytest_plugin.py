"""Pytest fixtures: a broker for the session, a closed one, a topic for each test.

    def test_round_trip(kafka_broker, kafka_topic):
        producer = KafkaProducer(bootstrap_servers=kafka_broker.bootstrap)

RULES    1. The broker starts when the first test requests it.
         2. With `--kafka-bootstrap HOST:PORT` the tests use a running broker, for example Apache Kafka.
         3. Topic names are unique across test runs. Topics of a broker that is not ours are deleted after their test.
         4. A project chooses the security of the closed broker with its own fixture `kafka_security`.
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from barnabas.embedded import Broker
from barnabas.security import Security

PARTITIONS = 4
SETTINGS = {"group.initial.rebalance.delay.ms": "100"}
"""The default rebalance delay of three seconds is too long for tests."""
_RUN = secrets.token_hex(4)
_numbers = itertools.count(1)


class ForeignBroker:
    """A broker that was started elsewhere."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declares the option and the setting."""
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
def kafka_broker(pytestconfig: pytest.Config) -> Iterator[Broker | ForeignBroker]:
    """A running broker for the whole session; clients connect to `.bootstrap`."""
    foreign = pytestconfig.getoption("--kafka-bootstrap")
    if foreign:
        yield ForeignBroker(str(foreign))
        return
    with Broker(settings=_settings(pytestconfig)) as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka_security() -> Security:
    """The security of the closed broker: SASL_SSL, SCRAM-SHA-512, one user."""
    return Security()


@pytest.fixture(scope="session")
def kafka_secure_broker(pytestconfig: pytest.Config, kafka_security: Security) -> Iterator[Broker]:
    """A closed broker for the whole session; clients connect with `.client_settings(library)`."""
    with Broker(settings=_settings(pytestconfig), security=kafka_security) as broker:
        yield broker


@pytest.fixture
def kafka_topic(kafka_broker: Broker | ForeignBroker, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a new topic with four partitions."""
    test = re.sub(r"[^A-Za-z0-9._-]+", "-", request.node.name).strip("-.")[:150]
    name = f"{test}-{_RUN}-{next(_numbers)}"
    with _admin(kafka_broker.bootstrap) as admin:
        _create_topic(admin, name)
    yield name
    if isinstance(kafka_broker, ForeignBroker):
        with _admin(kafka_broker.bootstrap) as admin:
            admin.delete_topics([name])


def _settings(pytestconfig: pytest.Config) -> dict[str, str]:
    lines: list[str] = pytestconfig.getini("barnabas_settings")
    settings = dict(SETTINGS)
    for line in lines:
        name, separator, value = line.partition("=")
        if not separator:
            raise pytest.UsageError(f"barnabas_settings: {line!r} is not of the form name=value")
        settings[name.strip()] = value.strip()
    return settings


@contextmanager
def _admin(bootstrap: str) -> Iterator[Any]:
    """A client that creates and deletes topics."""
    try:
        from kafka.admin import KafkaAdminClient
    except ImportError:
        pytest.skip("the fixture kafka_topic needs a client to create topics with: pip install kafka-python")
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        yield admin


def _create_topic(admin: Any, name: str) -> None:
    from kafka.admin import NewTopic

    admin.create_topics([NewTopic(name=name, num_partitions=PARTITIONS, replication_factor=1)])
