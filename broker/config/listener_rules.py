"""Which listeners a node needs in its roles, and which it cannot have; in Kafka's words where Kafka has the rule.

RULES    1. A broker has a listener for clients, a controller one of controller.listener.names; neither has the other's.
         2. A node that is broker and controller and knows of no other node need not listen as a controller.
NOT HERE Who the other controllers are (`quorum_config.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Place = tuple[str, str, int]
"""A listener's name, host and port."""
_NAMES = "controller.listener.names"
_BOTH = {"broker", "controller"}


class Listening(NamedTuple):
    """What the settings say of a node's listeners."""

    roles: frozenset[str]
    clients: Sequence[Place]
    controllers: Sequence[Place]
    """Those of `listeners` that are in controller.listener.names."""
    controller_names: Sequence[str]
    told: Mapping[str, Place]
    """advertised.listeners."""
    between_brokers: str
    has_quorum: bool
    """Whether the settings say where controllers are."""


def wrong_listeners(node: Listening) -> str | None:
    """What is wrong, as a sentence; None: nothing."""
    every = [*node.clients, *node.controllers]
    names = [name for name, _, _ in every]
    if len(set(names)) != len(names):
        return "listeners: each listener needs a name of its own"
    ports = [(host, port) for _, host, port in every]
    taken = {place for place in ports if place[1] and ports.count(place) > 1}
    if taken:
        return f"listeners: each listener must have a different port, and port {min(taken)[1]} is named twice"
    return _of_roles(node) or _advertised(node, names)


def _of_roles(node: Listening) -> str | None:
    """Rule 1."""
    unknown = node.roles - _BOTH
    if unknown:
        return f"process.roles: {', '.join(sorted(unknown))} is no role; there are broker and controller"
    if node.roles == {"broker"}:
        return _of_a_broker(node)
    if node.roles == {"controller"}:
        return _of_a_controller(node)
    return None if node.clients else _NO_BROKER_LISTENER


_NO_BROKER_LISTENER = (
    f"There must be at least one broker advertised listener. Perhaps all listeners appear in {_NAMES}? Such as "
    "PLAINTEXT://127.0.0.1:9092"
)


def _of_a_broker(node: Listening) -> str | None:
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


def _of_a_controller(node: Listening) -> str | None:
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


def _advertised(node: Listening, names: list[str]) -> str | None:
    told = node.told
    if set(told) - set(names):
        return (
            "advertised.listeners listener names must be equal to or a subset of the ones defined in listeners. Found "
            f"{','.join(told)}. The valid options based on the current configuration are {','.join(names)}"
        )
    if any(host == "0.0.0.0" for _, host, _ in told.values()):  # noqa: S104
        return "advertised.listeners cannot use the nonroutable meta-address 0.0.0.0. Use a routable IP address."
    clients = [name for name, _, _ in node.clients]
    if "broker" in node.roles and node.between_brokers not in clients:
        return (
            "inter.broker.listener.name must be a listener name defined in advertised.listeners. The valid options based on "
            f"currently configured listeners are {','.join(clients)}"
        )
    return None
