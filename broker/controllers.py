"""The controllers of the cluster as nodes to be asked: where each is, and the connection to it.

RULES    1. A controller's address is what the quorum says it is, else what it has registered, else that of a voter.
         2. Ids below -1 are bootstrap servers, in the order of the setting: -2 is the first.
NOT HERE What they are asked (`replication/raft`, `controller_channel.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from broker.network.peer import Address, Peer
from protocol.messages.produce_fetch import FetchRequest
from protocol.schema import Message
from replication.deadlines import Deadlines
from replication.image import MetadataImage
from replication.raft.voters import Address as VoterAddress
from replication.raft.voters import VoterSet

_FIRST_BOOTSTRAP: Final = -2


class Controllers:
    """Connections to the other controllers, made when first needed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        own_id: int,
        bootstrap: Sequence[Address],
        listener: str,
        deadlines: Deadlines,
        mono_ms: Callable[[], int],
        timeout_ms: int,
    ) -> None:
        """Know the bootstrap servers; `image` and `voters` are told by whoever knows more.

        Args:
            loop: the event loop.
            own_id: this node.
            bootstrap: whom the settings name.
            listener: the name of the controllers' listener.
            deadlines: where time-outs wait.
            mono_ms: the clock.
            timeout_ms: how long an answer may take: controller.quorum.request.timeout.ms.
        """
        self._loop = loop
        self._own_id = own_id
        self._bootstrap = bootstrap
        self._listener = listener
        self._deadlines = deadlines
        self._mono_ms = mono_ms
        self._timeout_ms = timeout_ms
        self._peers: dict[int, Peer] = {}
        self._told: dict[int, Address] = {}
        self.image: Callable[[], MetadataImage | None] = lambda: None
        self.voters: Callable[[], VoterSet] = lambda: VoterSet([])

    def ask(self, node_id: int, request: Message, answered: Callable[[Message | None], None]) -> None:
        """Ask a controller; None: it did not answer."""
        peer = self._peers.get(node_id)
        if peer is None:
            peer = self._peers[node_id] = Peer(
                self._loop,
                partial(self._address, node_id),
                f"barnabas-{self._own_id}",
                self._deadlines,
                self._mono_ms,
                self._timeout_ms,
            )
        waits_ms = request.max_wait_ms if isinstance(request, FetchRequest) else 0
        peer.ask(request, answered, self._timeout_ms + waits_ms)

    def ask_at(
        self, node_id: int, address: VoterAddress | None, request: Message, answered: Callable[[Message | None], None]
    ) -> None:
        """Ask a controller that is said to be at an address."""
        if address is not None:
            self._told[node_id] = Address(address.host, address.port)
        self.ask(node_id, request, answered)

    def close(self) -> None:
        """End all connections."""
        for peer in self._peers.values():
            peer.close()

    def _address(self, node_id: int) -> Address | None:
        if node_id <= _FIRST_BOOTSTRAP:
            return self._bootstrap[_FIRST_BOOTSTRAP - node_id]
        if node_id in self._told:
            return self._told[node_id]
        image = self.image()
        registered = None if image is None else image.controllers.get(node_id)
        for endpoint in () if registered is None else registered.endpoints:
            if endpoint.listener == self._listener:
                return Address(endpoint.host, endpoint.port)
        voter = self.voters().get(node_id)
        for address in () if voter is None else voter.addresses:
            return Address(address.host, address.port)
        return None
