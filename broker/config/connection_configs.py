"""The limits on connections: numbers and rates, of the broker, of a listener, of an address (KIP-402, KIP-612).

RULES    1. `listener.name.<name>.max.connections` and `….max.connection.creation.rate` limit one listener, in addition to the
            broker's limits.
         2. Host names in `max.connections.per.ip.overrides` are resolved when the limits are read.
NOT HERE Enforcement (`broker/quotas/connection_quotas.py`).
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from typing import Final, NamedTuple

from broker.config.broker_config import BrokerConfig, ConfigError
from broker.config.config_definitions import BROKER_SETTINGS
from storage.config.config_def import MAX_INT, BadSetting, parse

UNLIMITED: Final = MAX_INT
_MAX: Final = "max.connections"
_RATE: Final = "max.connection.creation.rate"
_PER_IP: Final = "max.connections.per.ip"
_OVERRIDES: Final = "max.connections.per.ip.overrides"
_OF_LISTENER: Final = re.compile(r"listener\.name\.([^.]+)\.(max\.connections|max\.connection\.creation\.rate)")
_HOST: Final = re.compile(r"[0-9a-zA-Z\-%._:]*")


class ListenerLimits(NamedTuple):
    """The limits of one listener, or of the broker."""

    max_connections: int = UNLIMITED
    creation_rate: int = UNLIMITED
    """New connections per second."""


class ConnectionLimits(NamedTuple):
    """All limits."""

    broker: ListenerLimits = ListenerLimits()
    listeners: Mapping[str, ListenerLimits] = {}
    """By the listener's name in lower case."""
    max_per_ip: int = UNLIMITED
    per_ip_overrides: Mapping[str, int] = {}
    """By address."""


def is_listener_limit(name: str) -> bool:
    """Whether a setting limits one listener."""
    return _OF_LISTENER.fullmatch(name) is not None


def connection_limits(config: BrokerConfig) -> ConnectionLimits:
    """The limits of a node.

    Raises:
        ConfigError: a setting is invalid.
    """
    listeners: dict[str, ListenerLimits] = {}
    for name, text in config.given.items():
        match = _OF_LISTENER.fullmatch(name)
        if match is not None:
            limits = listeners.get(match[1], ListenerLimits())
            number = _number(name, match[2], text)
            changed = {"max_connections": number} if match[2] == _MAX else {"creation_rate": number}
            listeners[match[1]] = limits._replace(**changed)
    overrides = _overrides(config.given.get(_OVERRIDES, ""))
    max_per_ip = config.number(_PER_IP)
    if max_per_ip == 0 and not overrides:
        raise ConfigError(f"{_PER_IP} can be set to zero only if {_OVERRIDES} property is set.")
    broker = ListenerLimits(config.number(_MAX), config.number(_RATE))
    return ConnectionLimits(broker, listeners, max_per_ip, overrides)


def find_connection_error(config: BrokerConfig) -> str | None:
    """The first error of these settings; None if they are valid."""
    try:
        connection_limits(config)
    except ConfigError as error:
        return str(error)
    return None


def canonical_address(host: str) -> str:
    """An IP address in the form of this module; an IPv4 address that IPv6 maps is an IPv4 address, as in Java."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return str(getattr(address, "ipv4_mapped", None) or address)


def _number(name: str, definition: str, text: str) -> int:
    try:
        value = parse(BROKER_SETTINGS[definition], text)
    except BadSetting as error:
        raise ConfigError(f"{name}: {error}") from None
    assert isinstance(value, int)
    return value


def _overrides(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    invalid = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        host, _, number = entry.rpartition(":")
        if not host or not number.strip().isdecimal():
            raise ConfigError(f"{_OVERRIDES}: {entry!r} is not of the form host:number")
        if _HOST.fullmatch(host.strip()) is None:
            invalid.append(host)
        else:
            found[_resolved(host.strip())] = int(number)
    if invalid:
        raise ConfigError(f"{_OVERRIDES} contains invalid addresses : {','.join(invalid)}")
    return found


def _resolved(host: str) -> str:
    try:
        return canonical_address(host)
    except ValueError:
        pass
    try:
        return socket.gethostbyname(host)
    except (OSError, UnicodeError) as error:  # UnicodeError: it cannot be a name
        reason = getattr(error, "strerror", "it is not valid")
        raise ConfigError(f"{_OVERRIDES}: {host} cannot be resolved: {reason}") from None
