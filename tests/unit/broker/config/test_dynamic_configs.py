"""Changes of dynamic settings (broker/config/dynamic_configs.py) beside values that a controller stored without a check."""

from __future__ import annotations

import pytest

from broker.config.broker_config import BrokerConfig
from broker.config.dynamic_configs import DynamicBrokerConfig, is_per_broker


@pytest.mark.parametrize(
    ("name", "usable"), [("log.roll.jitter.ms", "5"), ("max.connections", "100"), ("min.insync.replicas", "2")]
)
def test_a_brokers_own_setting_can_be_deleted_although_the_default_of_all_is_unusable(name: str, usable: str) -> None:
    rules = DynamicBrokerConfig(BrokerConfig({}))
    assert rules.validation_error({name: usable}, {name: "many"}) is None


def test_a_default_of_topics_that_no_topic_may_have_is_refused() -> None:
    rules = DynamicBrokerConfig(BrokerConfig({}))
    expected = "requirement failed: log.roll.ms must be greater than or equal to 1"
    assert rules.validation_error({}, {"log.roll.ms": "0"}) == expected


@pytest.mark.parametrize(
    ("own_name", "expected"),
    [
        ("max.connections", False),
        ("max.connection.creation.rate", False),
        ("num.network.threads", False),
        ("connections.max.reauth.ms", True),
        ("plain.sasl.jaas.config", True),
        ("ssl.keystore.location", True),
        ("nothing.known", True),
    ],
)
def test_settings_of_a_listener_are_those_of_one_broker_but_for_its_limits(own_name: str, *, expected: bool) -> None:
    """Apache Kafka: DynamicBrokerConfig.perBrokerConfig."""
    assert is_per_broker(f"listener.name.plaintext.{own_name}") == expected
