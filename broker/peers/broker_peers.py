"""Connections to the other brokers by id, for coordinators.

RULES    1. A broker's address is its registered endpoint of the inter-broker listener.
NOT HERE The requests (`coordinators/`); fetching, which has its own connections (`replica_fetchers.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from broker.network.peer import ClientContext, HostAndPort, PeerConnections
from protocol.schema import Message
from replication.metadata.image import MetadataImage


class BrokerPeers(PeerConnections):
    """Connections to the other brokers."""

    def __init__(self, caller: ClientContext, image: Callable[[], MetadataImage], listener: str) -> None:
        """`image` returns the published image; `listener` is the name of the inter-broker listener."""
        super().__init__(caller, self._address_of)
        self._image = image
        self._listener = listener

    def send_request(self, broker_id: int, request: Message, on_response: Callable[[Message | None], None]) -> None:
        """Sends a request to a broker; `on_response` gets the response or None."""
        self.connection(broker_id).send_request(request, on_response)

    def _address_of(self, broker_id: int) -> HostAndPort | None:
        broker = self._image().brokers.get(broker_id)
        endpoint = None if broker is None else broker.endpoint(self._listener)
        return None if endpoint is None else HostAndPort(endpoint.host, endpoint.port)
