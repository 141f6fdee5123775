"""What the broker uses of the controller, wherever it runs (`broker/peers/controller_channel.py`)."""

from __future__ import annotations

from typing import Any, Protocol

from protocol.schema import Message
from replication.completion import Completion
from replication.metadata.image import MetadataImage


class Controller(Protocol):
    """Submits requests to the controller, and has the metadata image."""

    def submit(self, request: Message) -> Completion[Any]:
        """Submit a request; the response exists after its records are committed."""

    @property
    def image(self) -> MetadataImage:
        """The published image."""
