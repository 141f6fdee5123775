"""The other brokers of the cluster as nodes to be asked, by their ids: for coordinators and partitions that are there.

RULES    1. A broker's address is that of the listener that brokers use among themselves, as it has registered it.
NOT HERE What they are asked (`coordinators/`); fetching from them, which has connections of its own (`fetchers.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from broker.network.peer import Address, Peer
from protocol.schema import Message
from replication.deadlines import Deadlines
from replication.image import MetadataImage


class Brokers:
    """Connections to the other brokers, made when first needed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        own_id: int,
        image: Callable[[], MetadataImage],
        listener: str,
        deadlines: Deadlines,
        mono_ms: Callable[[], int],
        timeout_ms: int,
    ) -> None:
        """Know nobody yet.

        Args:
            loop: the event loop.
            own_id: this broker.
            image: the newest published one.
            listener: the name of the listener that brokers use among themselves.
            deadlines: where time-outs wait.
            mono_ms: the clock.
            timeout_ms: how long an answer may take: request.timeout.ms.
        """
        self._loop = loop
        self._own_id = own_id
        self._image = image
        self._listener = listener
        self._deadlines = deadlines
        self._mono_ms = mono_ms
        self._timeout_ms = timeout_ms
        self._peers: dict[int, Peer] = {}

    def ask(self, broker_id: int, request: Message, answered: Callable[[Message | None], None]) -> None:
        """Ask a broker; None: it did not answer."""
        self.connection(broker_id).ask(request, answered)

    def connection(self, broker_id: int) -> Peer:
        """The one connection to a broker."""
        peer = self._peers.get(broker_id)
        if peer is None:
            peer = self._peers[broker_id] = Peer(
                self._loop,
                partial(self._address, broker_id),
                f"broker-{self._own_id}",
                self._deadlines,
                self._mono_ms,
                self._timeout_ms,
            )
        return peer

    def close(self) -> None:
        """End all connections."""
        for peer in self._peers.values():
            peer.close()

    def _address(self, broker_id: int) -> Address | None:
        broker = self._image().brokers.get(broker_id)
        endpoint = None if broker is None else broker.endpoint(self._listener)
        return None if endpoint is None else Address(endpoint.host, endpoint.port)
