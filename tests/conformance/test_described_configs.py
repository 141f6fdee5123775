"""DescribeConfigs beside Apache Kafka's: values, where they come from, what can be changed, in every layer.

Left out are settings that have to differ (addresses, directories, what the test's Kafka is started with), and those of TLS,
SASL and listeners, which Kafka can change while it runs and we cannot.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from barnabas import Broker
from protocol.errors import ErrorCode
from protocol.messages.admin import (
    AlterConfigsResource,
    CreateTopicsRequest,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)
from tests.support.admin_cases import topic
from tests.support.config_cases import BROKER, CLIENT_METRICS, GROUP, SET, TOPIC, resource
from tests.support.kafka import ApacheKafka, needs_kafka
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
    resource(TOPIC, "t", ("cleanup.policy", SET, "compact, delete"), ("preallocate", SET, "TRUE")),
]
_DIFFERENT = """
advertised.listeners broker.id controller.quorum.bootstrap.servers group.initial.rebalance.delay.ms
inter.broker.listener.name listener.security.protocol.map listeners log.dirs offsets.topic.num.partitions
principal.builder.class transaction.state.log.num.partitions transaction.state.log.min.isr
log.retention.minutes log.retention.hours log.roll.hours log.flush.scheduler.interval.ms
"""
DIFFERENT = _DIFFERENT.split()
"""The last four: once anything was changed Kafka shows none of the file's values under these names."""
OF_FILES = ("ssl.key.", "ssl.keystore.", "ssl.truststore.")
"""What Kafka has changed for one listener only."""
OWN = "barnabas."


def is_compared(name: str) -> bool:
    return name not in DIFFERENT and not name.startswith((*OF_FILES, OWN))


def described(client: RawClient, kind: int, name: str) -> dict[str, Any]:
    """All that is told, by the settings' names."""
    asked = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    request = DescribeConfigsRequest(resources=[asked], include_synonyms=True, include_documentation=True)
    (told,) = client.ask(request, 4).results
    assert told.error_code == 0, told
    return {
        row.name: (
            row.value,
            row.read_only,
            row.config_source,
            row.is_sensitive,
            int(row.config_type),
            [(synonym.name, synonym.value, synonym.source) for synonym in row.synonyms],
        )
        for row in told.configs
        if is_compared(row.name)
    }


def undocumented(client: RawClient) -> list[str]:
    """Settings of topic and broker without a sentence."""
    found = []
    for kind, name in ((TOPIC, "t"), (BROKER, "1"), (GROUP, "g"), (CLIENT_METRICS, "m")):
        asked = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        (told,) = client.ask(DescribeConfigsRequest(resources=[asked], include_documentation=True), 4).results
        found += [row.name for row in told.configs if not row.documentation]
    return found


def listed(client: RawClient, *kinds: int) -> list[tuple[int, str]]:
    """What has settings."""
    told = client.ask(ListConfigResourcesRequest(resource_types=list(kinds)), 1)
    assert told.error_code == 0
    return sorted((row.resource_type, row.resource_name) for row in told.config_resources)


def change(client: RawClient, wanted: AlterConfigsResource) -> None:
    (told,) = client.ask(IncrementalAlterConfigsRequest(resources=[wanted]), 1).responses
    assert told.error_code == 0, told


def story(client: RawClient) -> list[dict[str, Any]]:
    """Everything that has settings, before and after some were changed."""
    client.ask(CreateTopicsRequest(topics=[topic("t")], timeout_ms=10_000), 7)
    resources = ((TOPIC, "t"), (BROKER, "1"), (BROKER, ""), (GROUP, "g"), (CLIENT_METRICS, "m"))
    until(lambda: "retention.ms" in described(client, TOPIC, "t"), "the topic is known")
    before = [described(client, kind, name) for kind, name in resources]
    assert undocumented(client) == []
    for wanted in CHANGES:
        change(client, wanted)
    until(lambda: described(client, TOPIC, "t")["preallocate"][0] == "true", "the last change is known")
    assert listed(client) == [(TOPIC, "t"), (BROKER, "1"), (8, "1"), (CLIENT_METRICS, "m"), (GROUP, "g")]
    assert listed(client, GROUP, CLIENT_METRICS, GROUP) == [(CLIENT_METRICS, "m"), (GROUP, "g")]
    (subscription,) = client.ask(ListConfigResourcesRequest(), 0).config_resources
    assert subscription.resource_name == "m"
    refused = client.ask(ListConfigResourcesRequest(resource_types=[TOPIC, 3]), 1)
    assert (refused.error_code, refused.config_resources) == (ErrorCode.UNSUPPORTED_VERSION, [])
    return before + [described(client, kind, name) for kind, name in resources]


@needs_kafka
def test_settings_are_described_as_in_kafka(tmp_path: Path) -> None:
    with (
        ApacheKafka(SETTINGS, data_dir=tmp_path / "kafka") as kafka,
        RawClient(kafka.bootstrap) as client,
    ):
        theirs = story(client)
    with (
        Broker(data_dir=tmp_path / "ours", settings=SETTINGS) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        ours = story(client)
    for kafkas, our in zip(theirs, ours, strict=True):
        different = {
            name: (kafkas.get(name), our.get(name)) for name in kafkas | our if kafkas.get(name) != our.get(name)
        }
        if different:
            pytest.fail("\n".join(f"{name}:\n  Kafka {row[0]}\n  we    {row[1]}" for name, row in different.items()))
