"""Refuses security settings that this broker does not enforce.

RULES    1. A node never starts less protected than Apache Kafka would with the same settings. Each refusal is one sentence
            that names the setting and what to do.
         2. A setting that has no effect in Apache Kafka either is accepted: `ssl.*` without a listener that uses TLS,
            `sasl.*`, `super.users` without an authorizer, defaults.
         3. A listener's protocol is found as Kafka finds it: by the map, else by the listener's name. Without a map, a
            controllers' listener of another name is PLAINTEXT, unless a listener has the name of a secured protocol.
         4. Client listeners open when the ACLs are loaded, controllers' listeners before: `early.start.listeners` changes
            nothing.
NOT HERE Enforcement (`broker/security/`), the settings of SASL listeners (`sasl_configs.py`), the other invalid combinations
         (`config_rules.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from broker.config.broker_config import BrokerConfig, ConfigError
from broker.config.sasl_configs import ClientCredentials, client_credentials, is_setting_of, sasl_listener
from broker.config.ssl_configs import find_ssl_error, is_ssl_setting, store_setting

_MAP: Final = "listener.security.protocol.map"
_PLAINTEXT: Final = "PLAINTEXT"
SSL: Final = "SSL"
SASL_PLAINTEXT: Final = "SASL_PLAINTEXT"
SASL_SSL: Final = "SASL_SSL"
_PROTOCOLS: Final = (_PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
_SECURED: Final = frozenset({SSL, SASL_PLAINTEXT, SASL_SSL})
_LISTENER_PREFIX: Final = "listener.name."
_SEE: Final = "(docs/security.md)"

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

_DEFAULTS: Final[Mapping[str, frozenset[str]]] = {
    "alter.config.policy.class.name": frozenset({""}),
    "authorizer.class.name": frozenset({"", STANDARD_AUTHORIZER}),
    "client.quota.callback.class": frozenset({""}),
    "create.topic.policy.class.name": frozenset({""}),
    "principal.builder.class": frozenset(
        {"", "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"}
    ),
    "security.providers": frozenset({""}),
}
"""Settings that restrict clients in Apache Kafka, but not here, with the values that restrict nothing."""

AUTHORIZER_SETTINGS: Final = ("allow.everyone.if.no.acl.found", "super.users")
"""Settings of the authorizer's class, which Apache Kafka does not define itself."""

_PER_LISTENER: Final[Mapping[str, frozenset[str]]] = {
    "principal.builder.class": _DEFAULTS["principal.builder.class"],
}
"""The same for settings with the prefix of a listener; others concern TLS and SASL only, or performance."""


def find_unenforced(config: BrokerConfig) -> str | None:
    """The first setting that must be refused, as a sentence; None if all are enforced."""
    return (
        _listener_error(config)
        or _sasl_error(config)
        or find_unenforced_value(config.given)
        or _authorizer_error(config)
    )


def security_protocol(config: BrokerConfig, listener: str) -> str:
    """The security protocol of a listener, by the map, else by its name."""
    return config.listener_protocols.get(listener, listener)


def _sasl_error(config: BrokerConfig) -> str | None:
    """The first error of the SASL listeners' settings."""
    try:
        for endpoint in (*config.listeners, *config.controller_listeners):
            if uses_sasl(config, endpoint.name):
                sasl_listener(config, endpoint.name)
        if config.listeners:
            inter_broker_credentials(config)
        controller_credentials(config)
    except ConfigError as error:
        return str(error)
    return None


def inter_broker_credentials(config: BrokerConfig) -> ClientCredentials | None:
    """How this broker authenticates to other brokers; None: it does not, since it has none or their listener has no SASL.

    Raises:
        ConfigError: a setting is invalid.
    """
    setting = "sasl.mechanism.inter.broker.protocol"
    controllers = config.texts("controller.quorum.voters") + config.texts("controller.quorum.bootstrap.servers")
    is_alone = config.roles == {"broker", "controller"} and len(controllers) <= 1
    if is_alone and setting not in config.given:
        return None
    return _credentials(config, config.inter_broker_listener, setting)


def controller_credentials(config: BrokerConfig) -> ClientCredentials | None:
    """How this node authenticates to controllers; None: it does not.

    Raises:
        ConfigError: a setting is invalid.
    """
    for name in config.controller_listener_names:
        return _credentials(config, name, "sasl.mechanism.controller.protocol")
    return None


def _credentials(config: BrokerConfig, listener: str, setting: str) -> ClientCredentials | None:
    if not uses_sasl(config, listener):
        return None
    credentials = client_credentials(config, listener, setting)
    endpoints = (*config.listeners, *config.controller_listeners)
    if any(endpoint.name == listener for endpoint in endpoints) and (
        credentials.mechanism not in sasl_listener(config, listener).mechanisms
    ):
        raise ConfigError(f"{setting} must be included in sasl.enabled.mechanisms of the listener {listener}")
    return credentials


def _authorizer_error(config: BrokerConfig) -> str | None:
    """Kafka's messages about the settings of an authorizer; `super.users` are read only if there is one."""
    if config.value("authorizer.class.name"):
        for name in config.super_users:
            if ":" not in name:
                return f"super.users: expected a string in format principalType:principalName but got {name}"
    listeners = {endpoint.name for endpoint in (*config.listeners, *config.controller_listeners)}
    for name in config.texts("early.start.listeners"):
        if name.upper() not in listeners | {*config.controller_listener_names}:
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


def uses_tls(config: BrokerConfig, listener: str) -> bool:
    """Whether the connections of a listener are encrypted."""
    return security_protocol(config, listener) in (SSL, SASL_SSL)


def uses_sasl(config: BrokerConfig, listener: str) -> bool:
    """Whether the clients of a listener authenticate with SASL."""
    return security_protocol(config, listener) in (SASL_PLAINTEXT, SASL_SSL)


def find_static_setting(config: BrokerConfig, names: Iterable[str]) -> str | None:
    """The first of some settings of TLS or SASL that a listener uses and that cannot be changed at run time, as a sentence."""
    listeners = [*_listener_names(config)]
    has_tls = any(uses_tls(config, listener) for listener in listeners)
    with_sasl = [listener for listener in listeners if uses_sasl(config, listener)]
    for name in sorted(names):
        is_static_ssl = has_tls and is_ssl_setting(name) and store_setting(name) is None
        if is_static_ssl or any(is_setting_of(name, listener) for listener in with_sasl):
            return f"{name} cannot be changed at run time: change the file and restart {_SEE}"
    return None


def _listener_error(config: BrokerConfig) -> str | None:
    for entry in config.given.get(_MAP, "").split(","):
        if entry.strip() and entry.partition(":")[2].strip().upper() not in _PROTOCOLS:
            return f"{_MAP}: {entry.strip()!r} is not of the form LISTENER:PROTOCOL with one of {', '.join(_PROTOCOLS)}"
    errors = (_protocol_error(config, name) for name in _listener_names(config))
    return next((error for error in errors if error is not None), None) or _inter_broker_error(config)


def _inter_broker_error(config: BrokerConfig) -> str | None:
    name = "security.inter.broker.protocol"
    if config.is_inter_broker_ambiguous:
        return "Only one of inter.broker.listener.name and security.inter.broker.protocol should be set."
    if name not in config.given or "broker" not in config.roles:
        return None
    protocol = config.given[name].strip()
    if protocol in _PROTOCOLS and security_protocol(config, config.inter_broker_listener) != protocol:
        return f"{name}={protocol}, but listener {config.inter_broker_listener} is mapped to another protocol by {_MAP}"
    return None


def _protocol_error(config: BrokerConfig, name: str) -> str | None:
    if uses_tls(config, name):
        return find_listener_ssl_error(config, name)
    if security_protocol(config, name) not in _PROTOCOLS and not _is_plaintext_without_map(config, name):
        return f"No security protocol defined for listener {name}: add {name}:{_PLAINTEXT} to {_MAP}"
    return None


def _is_plaintext_without_map(config: BrokerConfig, name: str) -> bool:
    """Whether a listener is one of controllers, no listener is secured by its name, and there is no map."""
    names = {*_listener_names(config), *config.controller_listener_names}
    return _MAP not in config.given and name in config.controller_listener_names and not names & _SECURED


def find_listener_ssl_error(config: BrokerConfig, name: str) -> str | None:
    """The first setting of a TLS listener that must be refused, as a sentence."""
    served = {endpoint.name for endpoint in (*config.listeners, *config.controller_listeners)}
    return find_ssl_error(config.given, name, is_served=name in served, has_sasl=uses_sasl(config, name))


def _listener_names(config: BrokerConfig) -> Iterable[str]:
    """The listeners of this node, and on a broker those of the controllers, to which it connects."""
    names = [endpoint.name for endpoint in (*config.listeners, *config.controller_listeners)]
    return dict.fromkeys([*names, *(config.controller_listener_names if config.roles == {"broker"} else ())])
