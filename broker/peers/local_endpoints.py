"""Where this node tells others that it is reached.

RULES    1. What advertised.listeners says is told as it stands; else the listener's own address, or the machine's name where
            that is every address.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from broker.config.broker_config import BrokerConfig, Endpoint
from broker.network.listener import Listener
from replication.metadata.image import Endpoint as RegisteredEndpoint
from replication.metadata_log.formatting import ControllerEndpoint

PLAINTEXT: Final = 0
_CONTROLLER_PORT: Final = 9093


def registered(config: BrokerConfig, listener: Listener | Endpoint) -> RegisteredEndpoint:
    """What is told of a listener, bound or as the settings name it (rule 1)."""
    advertised = config.advertised_listeners.get(listener.name)
    if advertised is not None:
        port = advertised.port or listener.port
        return RegisteredEndpoint(listener.name, advertised.host, port, PLAINTEXT)
    bound = Endpoint(listener.name, listener.host, listener.port)
    host = os.uname().nodename if bound.is_wildcard else bound.host
    return RegisteredEndpoint(listener.name, host, listener.port, PLAINTEXT)


def own_controller(config: BrokerConfig, listeners: Sequence[Listener | Endpoint]) -> ControllerEndpoint:
    """Where this controller is reached; without a listener, where it would be: a quorum's record needs an address."""
    for listener in listeners:
        told = registered(config, listener)
        return ControllerEndpoint(told.listener, told.host, told.port)
    names = config.controller_listener_names
    return ControllerEndpoint(names[0] if names else "CONTROLLER", "localhost", _CONTROLLER_PORT)
