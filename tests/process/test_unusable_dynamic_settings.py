"""Dynamic settings that a broker finds in the metadata and cannot use (broker/node/dynamic_config_applier.py)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from barnabas import Broker
from protocol.errors import ErrorCode
from protocol.messages.admin import CreateTopicsRequest, IncrementalAlterConfigsRequest
from protocol.messages.metadata import ApiVersionsRequest
from replication.controller.configs.config_changes import AlterConfigOp
from replication.metadata.image import ResourceType
from storage.config.log_config import SYNONYMS
from tests.conformance.brokers import describe_configs
from tests.support.batches import batch
from tests.support.config_cases import BROKER, TOPIC
from tests.support.controller_listener import WITH_CONTROLLER, controller_of
from tests.support.loading import load, topic
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.waiting import until


def default(name: str, value: str, broker: str = "") -> IncrementalAlterConfigsRequest:
    """Sets a setting of all brokers, or of one, which a controller does without a check."""
    change = {"name": name, "config_operation": AlterConfigOp.SET, "value": value}
    return message(
        IncrementalAlterConfigsRequest,
        validate_only=False,
        resources=[{"resource_type": ResourceType.BROKER, "resource_name": broker, "configs": [change]}],
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max.connections.per.ip.overrides", "no-host.invalid:5"),
        ("max.connections.per.ip.overrides", "a..b:5"),
        ("max.connections.per.ip", "0"),
        ("listener.name.plaintext.max.connections", "many"),
    ],
)
def test_a_broker_runs_and_starts_with_limits_that_it_cannot_use(name: str, value: str, tmp_path: Path) -> None:
    with Broker(tmp_path, settings=WITH_CONTROLLER) as broker:
        with RawClient(controller_of(broker)) as client:
            assert client.ask(default(name, value), 1).responses[0].error_code == ErrorCode.NONE
        assert "limits of connections have no effect" in broker.log()
        broker.kill()
        broker.restart()
        with RawClient(broker.bootstrap) as client:
            assert client.ask(message(ApiVersionsRequest), 0).error_code == ErrorCode.NONE


def test_the_default_of_all_brokers_counts_where_a_broker_cannot_use_its_own_setting(tmp_path: Path) -> None:
    """DescribeConfigs shows it too."""
    name = "max.connections.per.ip"
    with Broker(tmp_path, settings=WITH_CONTROLLER) as broker, RawClient(broker.bootstrap) as client:
        with RawClient(controller_of(broker)) as controller:
            for request in (default(name, "many", "1"), default(name, "1")):
                assert controller.ask(request, 1).responses[0].error_code == ErrorCode.NONE
        (described,) = describe_configs(client, BROKER, "1", [name]).configs
        assert described.value == "1"
        with RawClient(broker.bootstrap) as another, pytest.raises((EOFError, ConnectionError)):
            another.ask(message(ApiVersionsRequest), 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log.retention.ms", "long"),
        ("log.retention.minutes", "5"),  # it is not dynamic
        ("log.roll.ms", "0"),
        ("min.insync.replicas", "0"),
        ("unclean.leader.election.enable", "maybe"),
    ],
)
def test_a_broker_runs_and_starts_with_topic_defaults_that_it_cannot_use(name: str, value: str, tmp_path: Path) -> None:
    """They have no effect: topics are created, and have the default that was in force before."""
    with Broker(tmp_path, settings=WITH_CONTROLLER) as broker:
        with RawClient(broker.bootstrap) as client:
            before = default_of(client, "before", name)
        with RawClient(controller_of(broker)) as client:
            assert client.ask(default(name, value), 1).responses[0].error_code == ErrorCode.NONE
        with RawClient(broker.bootstrap) as client:
            assert default_of(client, "after", name) == before
            assert describe_configs(client, BROKER, "1", [name]).error_code == ErrorCode.NONE
        assert "WARNING barnabas.config: ignoring" in broker.log()
        broker.kill()
        broker.restart()
        with RawClient(broker.bootstrap) as client:
            assert default_of(client, "restarted", name) == before


@pytest.mark.parametrize(("name", "value"), [("log.cleaner.dedupe.buffer.size", "1"), ("log.cleaner.threads", "1000")])
def test_a_broker_compacts_with_a_buffer_that_is_too_small(name: str, value: str, tmp_path: Path) -> None:
    """It continues with the settings that were in force before."""
    configs = [("cleanup.policy", "compact"), ("min.cleanable.dirty.ratio", "0"), ("segment.bytes", str(1 << 20))]
    records = bytes(batch(time.time_ns() // 1_000_000, 1, value=bytes(900_000)))
    with Broker(tmp_path, settings={**WITH_CONTROLLER, "log.cleaner.backoff.ms": "100"}) as broker:
        with RawClient(controller_of(broker)) as client:
            assert client.ask(default(name, value), 1).responses[0].error_code == ErrorCode.NONE
        with RawClient(broker.bootstrap) as client:
            request = CreateTopicsRequest(topics=[topic("t", configs=configs)], timeout_ms=30_000)
            assert client.ask(request, 7).topics[0].error_code == ErrorCode.NONE
            load(client, "t", [records] * 6)
        assert "the dynamic settings of compaction have no effect: log.cleaner.dedupe.buffer.size" in broker.log()
        logs = broker.data_dir / "t-0"
        until(lambda: len(list(logs.glob("*.log"))) < 3, "the segments without a record that is left are gone")


def default_of(client: RawClient, topic_name: str, setting: str) -> str:
    """Creates a topic; its value of the setting that a broker's setting is the default of."""
    request = CreateTopicsRequest(topics=[topic(topic_name)], timeout_ms=30_000)
    assert client.ask(request, 7).topics[0].error_code == ErrorCode.NONE
    own_name = next(name for name, synonyms in SYNONYMS.items() if setting in dict(synonyms))
    text: str = describe_configs(client, TOPIC, topic_name, [own_name]).configs[0].value
    return text
