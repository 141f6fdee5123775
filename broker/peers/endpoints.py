"""The endpoints of brokers and controllers: what this node advertises, and what clients get.

RULES    1. A client gets the endpoint that the broker registered for the listener of the client's connection.
         2. If this broker listens on all addresses and advertises none, its clients get the local address of their
            connection: it works for them.
         3. A node registers advertised.listeners, else the listener's address, else the host name if it listens on all
            addresses.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, NamedTuple

from broker.config.broker_config import BrokerConfig, Endpoint
from broker.config.security_configs import SASL_PLAINTEXT, SASL_SSL, SSL, security_protocol
from broker.network.exchange import ConnectionInfo
from broker.network.listener import Listener
from broker.network.peer import HostAndPort
from replication.metadata.image import BrokerImage, MetadataImage
from replication.metadata.image import Endpoint as RegisteredEndpoint
from replication.raft.voters import ListenerAddress

_PLAINTEXT: Final = 0
_PROTOCOL_IDS: Final = {SSL: 1, SASL_PLAINTEXT: 2, SASL_SSL: 3}
"""Kafka's ids of security protocols."""
_CONTROLLER_PORT: Final = 9093


class BrokerNode(NamedTuple):
    """A broker's id, address and rack, as clients get them (Kafka: Node)."""

    node_id: int
    host: str
    port: int
    rack: str | None


class AdvertisedEndpoints:
    """The endpoints of all brokers of an image; `wildcard_listeners` are this broker's listeners on all addresses."""

    def __init__(self, node_id: int, wildcard_listeners: frozenset[str]) -> None:
        self._node_id = node_id
        self._wildcard_listeners = wildcard_listeners

    def of(self, broker: BrokerImage, connection: ConnectionInfo) -> BrokerNode | None:
        """The address of `broker` for the peer of `connection`; None if it has no such listener."""
        endpoint = broker.endpoint(connection.listener_name)
        if endpoint is None:
            return None
        if broker.broker_id == self._node_id and connection.listener_name in self._wildcard_listeners:
            host = connection.local_host.removeprefix("::ffff:")
            return BrokerNode(broker.broker_id, host, connection.local_port, broker.rack)
        return BrokerNode(broker.broker_id, endpoint.host, endpoint.port, broker.rack)

    def all(self, image: MetadataImage, connection: ConnectionInfo) -> list[BrokerNode]:
        """All unfenced brokers, by id."""
        nodes = [self.node(image, broker_id, connection) for broker_id in sorted(image.brokers)]
        return [node for node in nodes if node is not None]

    def node(self, image: MetadataImage, broker_id: int, connection: ConnectionInfo) -> BrokerNode | None:
        """One broker, if it is unfenced."""
        broker = image.brokers.get(broker_id)
        return None if broker is None or broker.is_fenced else self.of(broker, connection)


def inter_broker_address(image: MetadataImage, broker_id: int, listener: str) -> HostAndPort | None:
    """The address of a broker for other brokers: its registered endpoint of the inter-broker listener."""
    broker = image.brokers.get(broker_id)
    endpoint = None if broker is None else broker.endpoint(listener)
    return None if endpoint is None else HostAndPort(endpoint.host, endpoint.port)


def protocol_id(config: BrokerConfig, listener: str) -> int:
    """The id of a listener's security protocol, as nodes register it."""
    return _PROTOCOL_IDS.get(security_protocol(config, listener), _PLAINTEXT)


def advertised_endpoint(config: BrokerConfig, listener: Listener | Endpoint) -> RegisteredEndpoint:
    """The endpoint to register for a listener, bound or as configured (rule 3)."""
    protocol = protocol_id(config, listener.name)
    advertised = config.advertised_listeners.get(listener.name)
    if advertised is not None:
        port = advertised.port or listener.port
        return RegisteredEndpoint(listener.name, advertised.host, port, protocol)
    bound = Endpoint(listener.name, listener.host, listener.port)
    host = os.uname().nodename if bound.is_wildcard else bound.host
    return RegisteredEndpoint(listener.name, host, listener.port, protocol)


def controller_endpoints(
    config: BrokerConfig, listeners: Sequence[Listener | Endpoint]
) -> tuple[RegisteredEndpoint, ...]:
    """The endpoints of this controller; the quorum uses the first one, the first of controller.listener.names.

    Without a listener it is the default one: the voter record of the quorum needs an address.
    """
    names = config.controller_listener_names
    if listeners:
        in_order = sorted(listeners, key=lambda listener: names.index(listener.name))
        return tuple(advertised_endpoint(config, listener) for listener in in_order)
    name = names[0] if names else "CONTROLLER"
    return (RegisteredEndpoint(name, "localhost", _CONTROLLER_PORT, protocol_id(config, name)),)


def quorum_address(endpoints: Sequence[RegisteredEndpoint]) -> ListenerAddress:
    """The address of this controller for the other voters."""
    listener, host, port, _ = endpoints[0]
    return ListenerAddress(listener, host, port)
