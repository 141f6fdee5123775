"""The API table of a listener, and the forms of a response.

RULES    1. ApiVersions advertises the routes of this table, except those of our own APIs.
         2. A handler returns the response (a message), no response (None: Produce with acks=0) or a completion of one of
            these. It is completed on the loop; handlers create no tasks. If the connection closes first, it is cancelled.
         3. Handlers are registered in `broker/api_table.py`, not discovered; this module imports none.
         4. `CloseConnection`, raised or as the error of a completion, closes the connection. Any other exception is a fault
            (`request_dispatcher.py`).
NOT HERE Frames and sockets (`network/connection.py`), the APIs (their handlers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from broker.network.exchange import ConnectionInfo
from broker.quotas.request_meter import RequestMeter
from broker.telemetry.request_metrics import UNCOUNTED, ApiMetrics
from protocol.framing import Part
from protocol.schema import Message
from replication.completion import Completion


class RequestContext(NamedTuple):
    """Header, arrival time and connection of a request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    connection: ConnectionInfo
    mono_ms: int
    wall_ms: int
    meter: RequestMeter | None = None
    """What the request uses, if its client has a quota."""
    metrics: ApiMetrics = UNCOUNTED
    """Of its API and version; fast paths count errors there."""

    @property
    def principal(self) -> str:
        """The principal, as "User:name"."""
        return self.connection.principal


Handler = Callable[[RequestContext, Any], "Message | Completion[Any] | None"]


FastPath = Callable[[RequestContext, bytearray, int], "list[Part] | Completion[Any] | None"]
"""The encoded response to a frame, whose message begins at a position and is not decoded, now or later.

None: another layout. Then nothing has happened, and the handler is called.
"""


class Route(NamedTuple):
    """A route: API key, versions and handler.

    `advertised_min` differs from `min_version` only for Produce, which must be advertised from 0 on for old librdkafka
    (KAFKA-18659) but is supported from 3 on. With `can_pipeline`, a request may start before the responses to earlier ones
    of the same connection are complete: everything that depends on their order is done when the handler returns.
    `fast_path` returns the fast path of a version, if it has one. APIs that Apache Kafka does not have are not advertised.
    """

    api_key: int
    min_version: int
    max_version: int
    handler: Handler
    advertised_min: int | None = None
    fast_path: Callable[[int], FastPath | None] | None = None
    can_pipeline: bool = False
    is_advertised: bool = True


class Router:
    """The API table of one listener."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.table: dict[int, Route] = {}
        for route in routes:
            assert route.api_key not in self.table, f"API {route.api_key} has two handlers"
            self.table[route.api_key] = route

    def advertised(self) -> list[tuple[int, int, int]]:
        """Every advertised route as (API key, lowest, highest version), by API key."""
        return [
            (
                route.api_key,
                route.min_version if route.advertised_min is None else route.advertised_min,
                route.max_version,
            )
            for _, route in sorted(self.table.items())
            if route.is_advertised
        ]
