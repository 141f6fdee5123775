"""Validates the listeners against the roles of the node, with Kafka's messages where Kafka has the rule.

RULES    1. A broker needs a client listener, a controller one of controller.listener.names; neither may have the other's.
         2. A combined node without other nodes needs no controller listener.
NOT HERE The other controllers (`quorum_config.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

_NAMES = "controller.listener.names"
_BOTH = {"broker", "controller"}


class Endpoint(NamedTuple):
    """A listener's name and address; an empty host means all addresses of this machine."""

    name: str
    host: str
    port: int

    @property
    def is_wildcard(self) -> bool:
        """Whether it means all addresses."""
        return self.host in ("", "0.0.0.0", "::")  # noqa: S104


class ListenerConfig(NamedTuple):
    """The settings of a node's listeners."""

    roles: frozenset[str]
    clients: Sequence[Endpoint]
    controllers: Sequence[Endpoint]
    """Those of `listeners` that are in controller.listener.names."""
    controller_names: Sequence[str]
    advertised: Mapping[str, Endpoint]
    """advertised.listeners."""
    inter_broker_listener: str
    has_quorum: bool
    """Whether the settings name controllers."""


def find_listener_error(node: ListenerConfig) -> str | None:
    """The first error; None if the listeners are valid."""
    listeners = [*node.clients, *node.controllers]
    names = [listener.name for listener in listeners]
    if len(set(names)) != len(names):
        return "listeners: each listener needs a unique name"
    addresses = [(listener.host, listener.port) for listener in listeners]
    for host, port in sorted(addresses):
        if port and addresses.count((host, port)) > 1:
            return f"listeners: each listener must have a different port, and port {port} is named twice"
    return _role_error(node) or _advertised_error(node, names)


def _role_error(node: ListenerConfig) -> str | None:
    unknown = node.roles - _BOTH
    if unknown:
        return f"process.roles: {', '.join(sorted(unknown))} is not a role: use broker or controller"
    if node.roles == {"broker"}:
        return _broker_error(node)
    if node.roles == {"controller"}:
        return _controller_error(node)
    return None if node.clients else _NO_BROKER_LISTENER


_NO_BROKER_LISTENER = (
    f"There must be at least one broker advertised listener. Perhaps all listeners appear in {_NAMES}? Such as "
    "PLAINTEXT://127.0.0.1:9092"
)


def _broker_error(node: ListenerConfig) -> str | None:
    if not node.controller_names:
        return f'Missing required configuration "{_NAMES}" which has no default value.'
    if node.controllers:
        return (
            f"{_NAMES} must not contain a value appearing in the 'listeners' configuration when running KRaft with just the "
            "broker role"
        )
    if not node.has_quorum:
        return (
            "If using process.roles, either controller.quorum.bootstrap.servers must contain the set of bootstrap controllers "
            "or controller.quorum.voters must contain a parseable set of controllers."
        )
    return None if node.clients else _NO_BROKER_LISTENER


def _controller_error(node: ListenerConfig) -> str | None:
    if not node.controllers:
        return (
            f"{_NAMES} must contain at least one value appearing in the 'listeners' configuration when running the KRaft "
            "controller role, such as CONTROLLER://127.0.0.1:9093"
        )
    if node.clients:
        return (
            f"The listeners config must only contain KRaft controller listeners from {_NAMES} when "
            "process.roles=controller"
        )
    return None


def _advertised_error(node: ListenerConfig, names: list[str]) -> str | None:
    advertised = node.advertised
    if set(advertised) - set(names):
        return (
            "advertised.listeners listener names must be equal to or a subset of the ones defined in listeners. Found "
            f"{','.join(advertised)}. The valid options based on the current configuration are {','.join(names)}"
        )
    if any(listener.host == "0.0.0.0" for listener in advertised.values()):  # noqa: S104
        return "advertised.listeners cannot use the nonroutable meta-address 0.0.0.0. Use a routable IP address."
    clients = [listener.name for listener in node.clients]
    if "broker" in node.roles and node.inter_broker_listener not in clients:
        return (
            "inter.broker.listener.name must be a listener name defined in advertised.listeners. The valid options based on "
            f"currently configured listeners are {','.join(clients)}"
        )
    return None
