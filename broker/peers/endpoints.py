"""Which host and port a client is told for a broker (design section 4).

RULES    1. A client is told the endpoint that the broker registered for the listener that the client came in on.
         2. Where this broker is bound to every address and nothing was advertised, the client is told the address that
            it reached us at: that one works for it.
NOT HERE What a broker registers at its start (`server.py`).
"""

from __future__ import annotations

from typing import NamedTuple

from broker.network.exchange import ConnectionInfo
from replication.metadata.image import BrokerImage, MetadataImage


class Address(NamedTuple):
    """Where a client reaches a broker."""

    node_id: int
    host: str
    port: int
    rack: str | None


class Addresses:
    """Answers for all brokers of an image; knows which of our own listeners are bound to every address."""

    def __init__(self, node_id: int, wildcard_listeners: frozenset[str]) -> None:
        self._node_id = node_id
        self._wildcard_listeners = wildcard_listeners

    def of(self, broker: BrokerImage, connection: ConnectionInfo) -> Address | None:
        """Where the peer of `connection` reaches `broker`; None when it has no such listener."""
        endpoint = broker.endpoint(connection.listener_name)
        if endpoint is None:
            return None
        if broker.broker_id == self._node_id and connection.listener_name in self._wildcard_listeners:
            host = connection.local_host.removeprefix("::ffff:")
            return Address(broker.broker_id, host, connection.local_port, broker.rack)
        return Address(broker.broker_id, endpoint.host, endpoint.port, broker.rack)

    def all(self, image: MetadataImage, connection: ConnectionInfo) -> list[Address]:
        """Every broker that clients may be sent to, by number."""
        addresses = []
        for _, broker in sorted(image.brokers.items()):
            if not broker.is_fenced:
                address = self.of(broker, connection)
                if address is not None:
                    addresses.append(address)
        return addresses

    def node(self, image: MetadataImage, broker_id: int, connection: ConnectionInfo) -> Address | None:
        """One broker's address, if clients may be sent to it."""
        broker = image.brokers.get(broker_id)
        return None if broker is None or broker.is_fenced else self.of(broker, connection)
