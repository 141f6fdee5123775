"""What the broker uses of the controller, wherever it runs (`broker/peers/controller_channel.py`)."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from protocol.schema import Message
from replication.completion import Completion
from replication.metadata.image import MetadataImage


class Client(NamedTuple):
    """The client whose request a broker forwards."""

    principal: str
    """As "User:name"."""
    host: str
    """Its IP address."""
    client_id: str | None = None
    api_version: int | None = None
    """The version of its request; None: the broker made the request for it."""
    is_token_authenticated: bool = False
    """Whether it logged in with a delegation token."""


class Controller(Protocol):
    """Submits requests to the controller, and has the metadata image."""

    def submit(self, request: Message, client: Client | None = None) -> Completion[Any]:
        """Submit a request of this broker, or of a client; the response exists after its records are committed."""

    @property
    def image(self) -> MetadataImage:
        """The published image."""
