"""DescribeConfigs compared with Apache Kafka: values, sources, synonyms, read-only flags, on every level.

Excluded are configs that must differ (addresses, directories, those of the test's Kafka), and those of TLS, SASL and listeners,
which only Kafka can change dynamically.
"""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.messages import admin
from storage.config.config_def import Kind
from tests.conformance.brokers import RECORDED, assert_as_recorded, describe_configs, running
from tests.support.config_cases import BROKER, CLIENT_METRICS, GROUP, SET, TOPIC, resource
from tests.support.follower_harness import BOTH
from tests.support.loading import create
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.waiting import until

SETTINGS = {"log.retention.minutes": "600", "log.roll.hours": "100", "log.flush.scheduler.interval.ms": "777"}
CHANGES = [
    resource(BROKER, "", ("log.retention.ms", SET, "70000"), ("log.flush.interval.ms", SET, "900")),
    resource(BROKER, "", ("log.cleaner.io.max.bytes.per.second", SET, "600000"), ("log.segment.bytes", SET, "2000000")),
    resource(BROKER, "", ("replica.alter.log.dirs.io.max.bytes.per.second", SET, "5")),
    resource(
        BROKER, "1", ("log.retention.ms", SET, "80000"), ("nobody.knows", SET, "5"), ("log.roll.ms", SET, "60000")
    ),
    resource(BROKER, "1", ("log.cleaner.threads", SET, "2"), ("log.cleaner.io.max.bytes.per.second", SET, "5e8")),
    resource(TOPIC, "t", ("retention.ms", SET, " 90000 "), ("min.cleanable.dirty.ratio", SET, "1e-4")),
    resource(GROUP, "g", ("consumer.session.timeout.ms", SET, "50000"), ("share.auto.offset.reset", SET, "earliest")),
    resource(CLIENT_METRICS, "m", ("metrics", SET, "a, b"), ("interval.ms", SET, "100")),
    resource(BROKER, "1", ("sasl.kerberos.min.time.before.relogin", SET, "58000"), ("ssl.client.auth", SET, "none")),
    resource(TOPIC, "t", ("internal.segment.bytes", SET, "500000")),
    resource(TOPIC, "t", ("cleanup.policy", SET, "compact, delete"), ("preallocate", SET, "TRUE")),
]
_DIFFERENT = """
advertised.listeners controller.quorum.bootstrap.servers group.initial.rebalance.delay.ms
inter.broker.listener.name listener.security.protocol.map listeners log.dirs offsets.topic.num.partitions
principal.builder.class transaction.state.log.num.partitions transaction.state.log.min.isr
log.retention.minutes log.retention.hours log.roll.hours log.flush.scheduler.interval.ms
"""
DIFFERENT = _DIFFERENT.split()
"""The last four: after any change Kafka shows none of the file's values under these names."""
OF_FILES = ("ssl.key.", "ssl.keystore.", "ssl.truststore.")
"""Kafka changes these per listener only."""
OWN = "barnabas."


def is_compared(name: str) -> bool:
    return name not in DIFFERENT and not name.startswith((*OF_FILES, OWN))


def configs_of(client: RawClient, kind: int, name: str) -> list[Any]:
    response = describe_configs(client, kind, name)
    assert response.error_code == 0, response
    return list(response.configs)


def described(client: RawClient, kind: int, name: str) -> dict[str, Any]:
    """Everything that the response says, by config name."""
    return {
        row.name: (
            row.value,
            row.read_only,
            row.config_source,
            row.is_sensitive,
            int(row.config_type),
            [(synonym.name, synonym.value, synonym.source) for synonym in row.synonyms],
        )
        for row in configs_of(client, kind, name)
        if is_compared(row.name)
    }


def listed(client: RawClient, *kinds: int) -> list[tuple[int, str]]:
    response = client.ask(admin.ListConfigResourcesRequest(resource_types=list(kinds)), 1)
    assert response.error_code == 0
    return sorted((row.resource_type, row.resource_name) for row in response.config_resources)


def script(client: RawClient) -> list[dict[str, Any]]:
    """The configs of every resource, before and after changes."""
    create(client, "t")
    resources = ((TOPIC, "t"), (BROKER, "1"), (BROKER, ""), (GROUP, "g"), (CLIENT_METRICS, "m"))
    until(lambda: "retention.ms" in described(client, TOPIC, "t"), "the topic is known")
    before = [described(client, kind, name) for kind, name in resources]
    assert not [
        row.name for kind, name in resources if name for row in configs_of(client, kind, name) if not row.documentation
    ]
    for wanted in CHANGES:
        (response,) = client.ask(admin.IncrementalAlterConfigsRequest(resources=[wanted]), 1).responses
        assert response.error_code == 0, response
    until(lambda: described(client, TOPIC, "t")["preallocate"][0] == "true", "the last change is known")
    assert listed(client) == [(TOPIC, "t"), (BROKER, "1"), (8, "1"), (CLIENT_METRICS, "m"), (GROUP, "g")]
    assert listed(client, GROUP, CLIENT_METRICS, GROUP) == [(CLIENT_METRICS, "m"), (GROUP, "g")]
    (subscription,) = client.ask(admin.ListConfigResourcesRequest(), 0).config_resources
    assert subscription.resource_name == "m"
    refused = client.ask(admin.ListConfigResourcesRequest(resource_types=[TOPIC, 3]), 1)
    assert (refused.error_code, refused.config_resources) == (ErrorCode.UNSUPPORTED_VERSION, [])
    return before + [described(client, kind, name) for kind, name in resources]


@pytest.mark.parametrize("kind", RECORDED)
def test_configs_are_described_as_recorded_of_apache_kafka(kind: str) -> None:
    with running(kind, SETTINGS) as broker, RawClient(broker.bootstrap) as client:
        assert_as_recorded("described_configs", kind, script(client))


IN_THE_FILE = {
    "listener.name.plaintext.max.connections": "50",
    "listener.name.plaintext.connections.max.reauth.ms": "60000",
    "listener.name.plaintext.ssl.keystore.type": "PEM",
    "listener.name.plaintext.plain.sasl.jaas.config": 'PlainLoginModule required user_a="secret";',
    "super.users": "User:a",
    "nobody.knows": "a secret, perhaps",
}


@pytest.mark.parametrize("kind", BOTH)
def test_settings_of_listeners_and_unknown_ones_are_described(kind: str) -> None:
    """Password types and unknown settings without their values."""
    with running(kind, IN_THE_FILE) as broker, RawClient(broker.bootstrap) as client:
        found = {name: row for name, row in described(client, BROKER, "1").items() if name in IN_THE_FILE}
    prefix = "listener.name.plaintext"
    assert found == {
        f"{prefix}.max.connections": of_file(
            f"{prefix}.max.connections", "50", Kind.INT, ("max.connections", "2147483647", 5)
        ),
        f"{prefix}.connections.max.reauth.ms": of_file(
            f"{prefix}.connections.max.reauth.ms", "60000", Kind.LONG, ("connections.max.reauth.ms", "0", 5)
        ),
        f"{prefix}.ssl.keystore.type": of_file(
            f"{prefix}.ssl.keystore.type", "PEM", Kind.STRING, ("ssl.keystore.type", "JKS", 5)
        ),
        f"{prefix}.plain.sasl.jaas.config": of_file(f"{prefix}.plain.sasl.jaas.config", None, Kind.PASSWORD),
        "super.users": of_file("super.users", None, Kind.UNKNOWN),
        "nobody.knows": of_file("nobody.knows", None, Kind.UNKNOWN),
    }


@pytest.mark.parametrize(("name", "source"), [("1", 2), ("", 3)])
@pytest.mark.parametrize("kind", BOTH)
def test_unknown_dynamic_configs_are_described_without_their_values(kind: str, name: str, source: int) -> None:
    change = {"name": "nobody.knows", "config_operation": SET, "value": "a secret"}
    changed = {"resource_type": BROKER, "resource_name": name, "configs": [change]}
    with running(kind) as broker, RawClient(broker.bootstrap) as client:
        (altered,) = client.ask(message(admin.IncrementalAlterConfigsRequest, resources=[changed]), 1).responses
        assert altered.error_code == ErrorCode.NONE
        until(lambda: "nobody.knows" in described(client, BROKER, name), "the config is described")
        value, _, *rest = described(client, BROKER, name)["nobody.knows"]
        assert (value, rest[:3]) == (None, [source, True, int(Kind.UNKNOWN)])


@pytest.mark.parametrize(("name", "source"), [("1", 2), ("", 3)])
@pytest.mark.parametrize("kind", BOTH)
def test_dynamic_limits_of_listeners_are_described(kind: str, name: str, source: int) -> None:
    limit = "listener.name.plaintext.max.connections"
    with running(kind) as broker, RawClient(broker.bootstrap) as client:
        wanted = resource(BROKER, name, (limit, SET, "50"))
        (altered,) = client.ask(admin.IncrementalAlterConfigsRequest(resources=[wanted]), 1).responses
        assert altered.error_code == ErrorCode.NONE
        until(lambda: limit in described(client, BROKER, name), "the limit is described")
        value, _, *rest = described(client, BROKER, name)[limit]
        assert (value, rest[:3]) == ("50", [source, False, int(Kind.INT)])


def of_file(name: str, value: str | None, kind: Kind, *defaults: tuple[str, str, int]) -> tuple[object, ...]:
    """A description of a setting of the file, and the default of the one that it overrides."""
    return value, True, 4, value is None, int(kind), [(name, value, 4), *defaults]
