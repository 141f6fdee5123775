"""Connections to the controllers by node id.

RULES    1. A controller's address comes from the raft messages, else from its registration, else from the voter set.
         2. Ids below -1 are the bootstrap servers in the order of the setting, starting at -2.
NOT HERE The requests (`replication/raft`, `controller_channel.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from broker.network.peer import ClientContext, HostAndPort, PeerConnections, Response
from protocol.messages.produce_fetch import FetchRequest
from protocol.schema import Message
from replication.metadata.image import MetadataImage
from replication.raft.voters import ListenerAddress, VoterSet

_FIRST_BOOTSTRAP: Final = -2


class ControllerPeers(PeerConnections):
    """Connections to the other controllers."""

    def __init__(
        self, caller: ClientContext, bootstrap: Sequence[HostAndPort], listener: str, response_timeout_ms: int
    ) -> None:
        """`bootstrap` are controller.quorum.bootstrap.servers, `listener` is the controller listener's name.

        `image` and `voters` are set when they are known.
        """
        super().__init__(caller, self._address_of)
        self._response_timeout_ms = response_timeout_ms
        self._bootstrap = bootstrap
        self._listener = listener
        self._learned_addresses: dict[int, HostAndPort] = {}
        self.image: Callable[[], MetadataImage | None] = lambda: None
        self.voters: Callable[[], VoterSet] = lambda: VoterSet([])

    def send_request(self, node_id: int, request: Message) -> Response:
        """Sends a request to a controller."""
        waits_ms = request.max_wait_ms if isinstance(request, FetchRequest) else 0
        return self.connection(node_id).send_request(request, self._response_timeout_ms + waits_ms)

    def send_request_to(
        self,
        node_id: int,
        address: ListenerAddress | None,
        request: Message,
    ) -> Response:
        """Sends a request to a controller at a known address."""
        if address is not None:
            self._learned_addresses[node_id] = HostAndPort(address.host, address.port)
        return self.send_request(node_id, request)

    def _address_of(self, node_id: int) -> HostAndPort | None:
        if node_id <= _FIRST_BOOTSTRAP:
            return self._bootstrap[_FIRST_BOOTSTRAP - node_id]
        if node_id in self._learned_addresses:
            return self._learned_addresses[node_id]
        image = self.image()
        registered = None if image is None else image.controllers.get(node_id)
        for endpoint in () if registered is None else registered.endpoints:
            if endpoint.listener == self._listener:
                return HostAndPort(endpoint.host, endpoint.port)
        voter = self.voters().get(node_id)
        for address in () if voter is None else voter.addresses:
            return HostAndPort(address.host, address.port)
        return None
