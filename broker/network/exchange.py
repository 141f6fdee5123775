"""The types that a connection exchanges with the request dispatcher.

RULES    1. The answer to a frame is a list of parts, None (no response), or a completion of one of these. A connection handles
            one request at a time; further requests of the same API start only if its route allows it (`can_pipeline`).
NOT HERE What a frame means (`handlers/`), how parts are sent (`sender.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.telemetry.request_metrics import UNCOUNTED, ApiMetrics
from protocol.framing import Part
from replication.completion import Completion

UNKNOWN_SOFTWARE = "unknown"
"""The client software name and version before an ApiVersions request sets them, as in Apache Kafka."""


class CloseConnection(Exception):
    """The error of a handler that closes the connection; the message is logged.

    Apache Kafka does the same where the protocol has no room for an error: a failed Produce with acks=0.
    """

    def __init__(self, message: str, last_response: list[Part] | None = None) -> None:
        super().__init__(message)
        self.last_response = last_response  # not a default of the class, which a compiled exception does not have
        """Is sent before; None: no response."""


class ConnectionInfo:
    """The connection of a request, as far as handlers need it."""

    __slots__ = (
        "connection_id",
        "is_authenticated",
        "is_token_authenticated",
        "listener_name",
        "local_host",
        "local_port",
        "metrics",
        "mute",
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
        self.is_authenticated = True
        """False on a listener with SASL until the client has a name."""
        self.is_token_authenticated = False
        """Whether the client logged in with a delegation token."""
        self.software_name = self.software_version = UNKNOWN_SOFTWARE
        """From the client's ApiVersions request (KIP-511)."""
        self.on_close: Callable[[], None] | None = None
        """Called once when the connection is closed."""
        self.mute: Callable[[int], None] = no_mute
        """Stops the connection from serving requests for some milliseconds, since its client exceeds a quota (KIP-219)."""
        self.metrics: ApiMetrics = UNCOUNTED
        """Of the request that was dispatched last: the connection records its times there."""


def no_mute(duration_ms: int) -> None:
    """A request in an envelope: the broker that forwarded it mutes the client."""


Response = Completion["list[Part] | None"]
"""The parts of a response, or None for no response; an error closes the connection."""


class Dispatcher(Protocol):
    """Handles the frames of connections."""

    def dispatch(self, frame: bytearray, connection: ConnectionInfo, mono_ms: int) -> list[Part] | Response | None:
        """The parts of the response, now or later; None: no response.

        Raises:
            MalformedRequest: the peer violated the protocol.
            CloseConnection: the connection must be closed without a response.
        """

    def can_pipeline(self, frame: bytearray) -> bool:
        """Whether requests of the frame's API may start before the responses to earlier ones are complete."""

    def waits_for_clients(self, frame: bytearray) -> bool:
        """Whether requests of the frame's API wait for what other clients do, without a bound but their own timeout."""
