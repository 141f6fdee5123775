"""Refuses security settings that this broker does not enforce.

RULES    1. A node never starts less protected than Apache Kafka would with the same settings. Each refusal is one sentence
            that names the setting and what to do.
         2. A setting that has no effect in Apache Kafka either is accepted: `ssl.*` and `sasl.*` while all listeners are
            PLAINTEXT, `super.users` without an authorizer, defaults.
         3. A listener's protocol is found as Kafka finds it: by the map, else by the listener's name.
         4. Client listeners open when the ACLs are loaded, controllers' listeners before: `early.start.listeners` changes
            nothing.
NOT HERE Enforcement (`broker/security/`), the other invalid combinations (`config_rules.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from broker.config.broker_config import BrokerConfig

_MAP: Final = "listener.security.protocol.map"
_PLAINTEXT: Final = "PLAINTEXT"
_PROTOCOLS: Final = (_PLAINTEXT, "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LISTENER_PREFIX: Final = "listener.name."
_SEE: Final = "(docs/security.md)"

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

_DEFAULTS: Final[Mapping[str, frozenset[str]]] = {
    "alter.config.policy.class.name": frozenset({""}),
    "authorizer.class.name": frozenset({"", STANDARD_AUTHORIZER}),
    "client.quota.callback.class": frozenset({""}),
    "create.topic.policy.class.name": frozenset({""}),
    "delegation.token.secret.key": frozenset({""}),
    "max.connection.creation.rate": frozenset({"2147483647"}),
    "max.connections.per.ip.overrides": frozenset({""}),
    "principal.builder.class": frozenset(
        {"", "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"}
    ),
    "security.inter.broker.protocol": frozenset({_PLAINTEXT}),
    "security.providers": frozenset({""}),
}
"""Settings that restrict clients in Apache Kafka, but not here, with the values that restrict nothing."""

AUTHORIZER_SETTINGS: Final = ("allow.everyone.if.no.acl.found", "super.users")
"""Settings of the authorizer's class, which Apache Kafka does not define itself."""

_PER_LISTENER: Final[Mapping[str, frozenset[str]]] = {
    "max.connection.creation.rate": _DEFAULTS["max.connection.creation.rate"],
    "max.connections": frozenset({"2147483647"}),
    "principal.builder.class": _DEFAULTS["principal.builder.class"],
}
"""The same for settings with the prefix of a listener; others concern TLS and SASL only, or performance."""


def find_unenforced(config: BrokerConfig) -> str | None:
    """The first setting that must be refused, as a sentence; None if all are enforced."""
    return _listener_error(config) or find_unenforced_value(config.given) or _authorizer_error(config)


def _authorizer_error(config: BrokerConfig) -> str | None:
    """Kafka's messages about the settings of an authorizer."""
    if not config.value("authorizer.class.name"):
        return None
    for name in config.super_users:
        if ":" not in name:
            return f"super.users: expected a string in format principalType:principalName but got {name}"
    listeners = {endpoint.name for endpoint in (*config.listeners, *config.controller_listeners)}
    for name in config.texts("early.start.listeners"):
        if name.upper() not in {listener.upper() for listener in listeners}:
            return (
                f"early.start.listeners contains listener {name.upper()}, but this is not contained in listeners or "
                "controller.listener.names"
            )
    return None


def find_unenforced_value(texts: Mapping[str, str]) -> str | None:
    """The first of some settings, by name, that must be refused, as a sentence; None if all are enforced."""
    for name in sorted(texts):
        harmless = _harmless_values(name)
        if harmless is not None and texts[name].strip() not in harmless:
            return f"{name} is not enforced by this broker: remove the setting {_SEE}"
    return None


def _harmless_values(name: str) -> frozenset[str] | None:
    """The values of a setting that restrict nothing; None for a setting that is not refused."""
    if not name.startswith(_LISTENER_PREFIX):
        return _DEFAULTS.get(name)
    _, _, own_name = name.removeprefix(_LISTENER_PREFIX).partition(".")
    return _PER_LISTENER.get(own_name)


def _listener_error(config: BrokerConfig) -> str | None:
    protocols: dict[str, str] = {}
    for entry in config.given.get(_MAP, "").split(","):
        name, _, protocol = (part.strip().upper() for part in entry.partition(":"))
        if entry.strip() and protocol not in _PROTOCOLS:
            return f"{_MAP}: {entry.strip()!r} is not of the form LISTENER:PROTOCOL with one of {', '.join(_PROTOCOLS)}"
        protocols[name] = protocol
    for name in _listener_names(config):
        protocol = protocols.get(name.upper(), name.upper())
        if protocol in _PROTOCOLS[1:]:
            return (
                f"listener {name} has the protocol {protocol}, but this broker has only {_PLAINTEXT}: {_advice(name)}"
            )
        if protocol not in _PROTOCOLS and _MAP in config.given:
            return f"No security protocol defined for listener {name}: add {name}:{_PLAINTEXT} to {_MAP}"
    return None


def _listener_names(config: BrokerConfig) -> Iterable[str]:
    """The listeners of this node, and on a broker those of the controllers, to which it connects."""
    names = [endpoint.name for endpoint in (*config.listeners, *config.controller_listeners)]
    return dict.fromkeys([*names, *(config.controller_listener_names if config.roles == {"broker"} else ())])


def _advice(name: str) -> str:
    how = f"map it with {_MAP}={name}:{_PLAINTEXT}" if name.upper() not in _PROTOCOLS else "replace it"
    return f"{how} if its network is closed {_SEE}"
