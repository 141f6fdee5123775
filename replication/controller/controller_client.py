"""What the broker uses of the controller, wherever it runs (`broker/peers/controller_channel.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from protocol.schema import Message
from replication.metadata.image import MetadataImage


class ControllerClient(Protocol):
    """Submits requests to the controller."""

    def submit(self, request: Message, *, wall_ms: int, reply: Callable[[Any], None]) -> None:
        """Submit a request; `reply` gets the response after its records are committed."""


class Controller(ControllerClient, Protocol):
    """Submits requests, and has the metadata image."""

    @property
    def image(self) -> MetadataImage:
        """The published image."""
