"""Limits of connections in the settings (broker/config/connection_configs.py)."""

from __future__ import annotations

import pytest

from broker.config.broker_config import BrokerConfig, ConfigError
from broker.config.connection_configs import (
    UNLIMITED,
    ConnectionLimits,
    ListenerLimits,
    canonical_address,
    connection_limits,
    find_connection_error,
)


def test_broker_listeners_and_addresses_have_limits_of_their_own() -> None:
    settings = {
        "max.connections": "100",
        "max.connection.creation.rate": "50",
        "max.connections.per.ip": "7",
        "max.connections.per.ip.overrides": "10.0.0.1:5, ::1:9,::ffff:10.0.0.2:3",
        "listener.name.out.max.connections": "10",
        "listener.name.out.max.connection.creation.rate": "3",
        "listener.name.in.max.connections": "20",
    }
    listeners = {"out": ListenerLimits(10, 3), "in": ListenerLimits(20, UNLIMITED)}
    overrides = {"10.0.0.1": 5, "::1": 9, "10.0.0.2": 3}
    assert connection_limits(BrokerConfig(settings)) == ConnectionLimits(
        ListenerLimits(100, 50), listeners, 7, overrides
    )
    assert connection_limits(BrokerConfig({})) == ConnectionLimits()


def test_host_names_are_resolved() -> None:
    limits = connection_limits(BrokerConfig({"max.connections.per.ip.overrides": "localhost:1"}))
    assert limits.per_ip_overrides == {"127.0.0.1": 1}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"max.connections.per.ip": "0"},
            "can be set to zero only if max.connections.per.ip.overrides property is set.",
        ),
        ({"max.connections.per.ip.overrides": "a b:1"}, "contains invalid addresses : a b"),
        ({"max.connections.per.ip.overrides": "10.0.0.1"}, "'10.0.0.1' is not of the form host:number"),
        ({"listener.name.out.max.connections": "many"}, "listener.name.out.max.connections: "),
        ({"listener.name.out.max.connection.creation.rate": "-1"}, "listener.name.out.max.connection.creation.rate: "),
    ],
)
def test_invalid_limits_are_refused(settings: dict[str, str], words: str) -> None:
    error = find_connection_error(BrokerConfig(settings))
    assert error is not None
    assert words in error
    with pytest.raises(ConfigError):
        connection_limits(BrokerConfig(settings))


def test_zero_connections_of_an_address_need_overrides() -> None:
    settings = {"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "127.0.0.1:5"}
    assert find_connection_error(BrokerConfig(settings)) is None


def test_an_ipv4_address_in_ipv6_is_an_ipv4_address() -> None:
    found = [canonical_address(host) for host in ("::ffff:10.0.0.1", "10.0.0.1", "fe80::1%eth0", "::1")]
    assert found == ["10.0.0.1", "10.0.0.1", "fe80::1", "::1"]
