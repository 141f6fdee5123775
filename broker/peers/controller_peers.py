"""The controllers of the cluster as nodes to be asked: where each is, and the connection to it.

RULES    1. A controller's address is what the quorum says it is, else what it has registered, else that of a voter.
         2. Ids below -1 are bootstrap servers, in the order of the setting: -2 is the first.
NOT HERE What they are asked (`replication/raft`, `controller_channel.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from broker.network.peer import Address, Caller, Peers
from protocol.messages.produce_fetch import FetchRequest
from protocol.schema import Message
from replication.metadata.image import MetadataImage
from replication.raft.voters import Address as VoterAddress
from replication.raft.voters import VoterSet

_FIRST_BOOTSTRAP: Final = -2


class Controllers(Peers):
    """Connections to the other controllers; `listener` is the name of theirs, `bootstrap` whom the settings name."""

    def __init__(self, caller: Caller, bootstrap: Sequence[Address], listener: str) -> None:
        """Know the bootstrap servers; `image` and `voters` are told by whoever knows more."""
        super().__init__(caller, self._address_of)
        self._timeout_ms = caller.timeout_ms
        self._bootstrap = bootstrap
        self._listener = listener
        self._told: dict[int, Address] = {}
        self.image: Callable[[], MetadataImage | None] = lambda: None
        self.voters: Callable[[], VoterSet] = lambda: VoterSet([])

    def ask(self, node_id: int, request: Message, answered: Callable[[Message | None], None]) -> None:
        """Ask a controller; None: it did not answer."""
        waits_ms = request.max_wait_ms if isinstance(request, FetchRequest) else 0
        self.connection(node_id).ask(request, answered, self._timeout_ms + waits_ms)

    def ask_at(
        self, node_id: int, address: VoterAddress | None, request: Message, answered: Callable[[Message | None], None]
    ) -> None:
        """Ask a controller that is said to be at an address."""
        if address is not None:
            self._told[node_id] = Address(address.host, address.port)
        self.ask(node_id, request, answered)

    def _address_of(self, node_id: int) -> Address | None:
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
