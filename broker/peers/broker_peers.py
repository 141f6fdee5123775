"""The other brokers of the cluster as nodes to be asked, by their ids: for coordinators and partitions that are there.

RULES    1. A broker's address is that of the listener that brokers use among themselves, as it has registered it.
NOT HERE What they are asked (`coordinators/`); fetching from them, which has connections of its own (`replica_fetchers.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from broker.network.peer import Address, Caller, Peers
from protocol.schema import Message
from replication.metadata.image import MetadataImage


class Brokers(Peers):
    """Connections to the other brokers; `listener` is the name of the one that brokers use among themselves."""

    def __init__(self, caller: Caller, image: Callable[[], MetadataImage], listener: str) -> None:
        """Know nobody yet; `image` is the newest published one."""
        super().__init__(caller, self._address_of)
        self._image = image
        self._listener = listener

    def ask(self, broker_id: int, request: Message, answered: Callable[[Message | None], None]) -> None:
        """Ask a broker; None: it did not answer."""
        self.connection(broker_id).ask(request, answered)

    def _address_of(self, broker_id: int) -> Address | None:
        broker = self._image().brokers.get(broker_id)
        endpoint = None if broker is None else broker.endpoint(self._listener)
        return None if endpoint is None else Address(endpoint.host, endpoint.port)
