"""What handlers need of the controller: it decides, and shows what was decided.

NOT HERE The decisions (`replication/controller/`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from protocol.schema import Message
from replication.metadata.image import MetadataImage


class Decider(Protocol):
    """Who decides on changes of the metadata."""

    def submit(self, request: Message, *, wall_ms: int, reply: Callable[[Any], None]) -> None:
        """Decide on a request; `reply` gets the response when it is committed."""


class Controller(Decider, Protocol):
    """Who decides, and shows the metadata."""

    @property
    def image(self) -> MetadataImage:
        """The published image."""
