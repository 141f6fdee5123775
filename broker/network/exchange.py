"""What crosses between a connection and whoever answers its requests (seam 3).

RULES    1. A frame is answered at once with parts, never (None), or later (`Later`); a connection has one in work, and behind
            it such as that one lets begin.
NOT HERE What a frame means (`handlers/`), how parts leave (`sender.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from protocol.framing import Part

UNKNOWN_SOFTWARE = "unknown"
"""What a client is whose ApiVersions does not say, as in Apache Kafka."""


class CloseConnection(Exception):
    """A handler's wish to end the connection without an answer; the message is logged.

    Apache Kafka does so where the protocol leaves no room for an error: a failed Produce with acks=0.
    """


class ConnectionInfo:
    """What a handler may know of the connection that a request came in on."""

    __slots__ = (
        "connection_id",
        "listener_name",
        "local_host",
        "local_port",
        "muted_until_mono_ms",
        "on_close",
        "peer_host",
        "peer_port",
        "principal",
        "software_name",
        "software_version",
    )

    def __init__(
        self,
        connection_id: int,
        listener_name: str,
        local: tuple[str, int],
        peer: tuple[str, int],
        principal: str,
    ) -> None:
        self.connection_id = connection_id
        self.listener_name = listener_name
        self.local_host, self.local_port = local
        self.peer_host, self.peer_port = peer
        self.principal = principal
        self.muted_until_mono_ms = 0
        self.software_name = self.software_version = UNKNOWN_SOFTWARE
        """What the client says that it is."""
        self.on_close: Callable[[], None] | None = None
        """Told once when the connection has ended."""


class Later(Protocol):
    """An answer that comes later."""

    def deliver_to(self, deliver: Callable[[list[Part] | None], None], close: Callable[[str], None]) -> None:
        """Call `deliver` with the parts, or `close` with a reason, now or when the answer comes."""

    def cancel(self) -> None:
        """Nobody will read the answer."""

    def lets_begin(self, frame: bytearray) -> bool:
        """Whether the request in a later frame of the connection may be begun before this answer has come."""


Dispatch = Callable[[bytearray, ConnectionInfo, int], "list[Part] | Later | None"]
"""Answers a frame that came in on a connection at a monotonic millisecond.

Raises MalformedRequest where the peer broke the protocol, CloseConnection where the connection must end.
"""
