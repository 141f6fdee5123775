"""What the broker uses of the controller, wherever it runs (`broker/peers/controller_channel.py`)."""

from __future__ import annotations

from typing import Any, Protocol

from protocol.schema import Message
from replication.completion import Completion
from replication.metadata.image import MetadataImage


class ControllerClient(Protocol):
    """Submits requests to the controller."""

    def submit(self, request: Message) -> Completion[Any]:
        """Submit a request; the response exists after its records are committed."""


class Controller(ControllerClient, Protocol):
    """Submits requests, and has the metadata image."""

    @property
    def image(self) -> MetadataImage:
        """The published image."""
