"""The API table of a listener, and the forms of a response.

RULES    1. ApiVersions advertises exactly the routes of this table.
         2. A handler returns the response (a message), no response (None: Produce with acks=0) or a Pending.
            A Pending is completed on the loop; handlers create no tasks.
         3. Handlers are registered, not discovered: `server.py` collects their routes, this module imports none.
         4. A handler that raises has changed nothing: the client gets UNKNOWN_SERVER_ERROR if the response has an
            error code, else the connection is closed; the traceback is logged and the fault is counted.
NOT HERE Frames and sockets (`network/connection.py`), the APIs (their handlers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from broker.network.exchange import CloseConnection, ConnectionInfo, DeferredResponse
from protocol.framing import Part
from protocol.schema import Message

__all__ = ["CloseConnection", "ConnectionInfo", "Handler", "Pending", "RequestContext", "Route", "Router"]


class RequestContext:
    """Header, arrival time and connection of a request."""

    __slots__ = ("api_key", "api_version", "client_id", "connection", "correlation_id", "mono_ms", "wall_ms")

    def __init__(
        self,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        connection: ConnectionInfo,
        mono_ms: int,
        wall_ms: int,
    ) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.connection = connection
        self.mono_ms = mono_ms
        self.wall_ms = wall_ms

    @property
    def principal(self) -> str:
        """The principal, as "User:name"."""
        return self.connection.principal


class Pending:
    """A response that comes later; complete it once, on the loop.

    `complete` may be called before the Pending is returned. If the connection closes first, `on_cancel` is called
    and a later `complete` is ignored.

    Args:
        on_cancel: called once if the response is no longer needed.
        lets_next_begin: whether the connection's next request of the same API may start before this one completes:
            everything that depends on their order is done.
    """

    __slots__ = ("_answer", "_close", "_close_reason", "_deliver", "is_done", "lets_next_begin", "on_cancel")

    def __init__(self, on_cancel: Callable[[], None] | None = None, *, lets_next_begin: bool = False) -> None:
        self.on_cancel = on_cancel
        self.lets_next_begin = lets_next_begin
        self.is_done = False
        self._answer: Message | None = None
        self._deliver: Callable[[Message | None], None] | None = None
        self._close: Callable[[str], None] | None = None
        self._close_reason: str | None = None

    def complete(self, answer: Message | None) -> None:
        """Set the response (None: no response)."""
        if self.is_done:
            return
        deliver, _ = self._end()
        if deliver is None:
            self._answer = answer
        else:
            deliver(answer)

    def close(self, reason: str) -> None:
        """Close the connection instead of responding; like raising `CloseConnection`."""
        if self.is_done:
            return
        _, close = self._end()
        self._close_reason = reason
        if close is not None:
            close(reason)

    def deliver_to(self, deliver: Callable[[Message | None], None], close: Callable[[str], None]) -> None:
        """Called by the connection: pass the response to `deliver`, or the reason to `close`, now or later."""
        if self._close_reason is not None:
            close(self._close_reason)
        elif self.is_done:
            deliver(self._answer)
        else:
            self._deliver = deliver
            self._close = close

    def cancel(self) -> None:
        """Called by the connection: the response is no longer needed."""
        if self.is_done:
            return
        on_cancel = self.on_cancel
        self._end()
        if on_cancel is not None:
            on_cancel()

    def _end(self) -> tuple[Callable[[Message | None], None] | None, Callable[[str], None] | None]:
        """Drop the references to both sides, to break cycles that hold open files."""
        sides = self._deliver, self._close
        self.is_done = True
        self.on_cancel = self._deliver = self._close = None
        return sides


Handler = Callable[[RequestContext, Any], "Message | Pending | None"]


FastPath = Callable[[RequestContext, bytearray, int], "list[Part] | Message | DeferredResponse | None"]
"""Answers a request frame, whose message begins at a position, without decoding it, now or later.

None: another layout. Then nothing has happened, and the handler is called.
"""

FastPaths = Callable[[int], "FastPath | None"]
"""The fast path of a version, if it has one."""


class Route(NamedTuple):
    """A route: API key, versions and handler.

    `advertised_min` differs from `min_version` only for Produce, which must be advertised from 0 on for old librdkafka
    (KAFKA-18659) but is supported from 3 on.
    """

    api_key: int
    min_version: int
    max_version: int
    handler: Handler
    advertised_min: int | None = None
    fast_path: FastPaths | None = None


class Router:
    """The API table of one listener."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.table: dict[int, Route] = {}
        for route in routes:
            assert route.api_key not in self.table, f"API {route.api_key} has two handlers"
            self.table[route.api_key] = route

    def advertised(self) -> list[tuple[int, int, int]]:
        """Every route as (API key, lowest, highest version), by API key."""
        return [
            (
                route.api_key,
                route.min_version if route.advertised_min is None else route.advertised_min,
                route.max_version,
            )
            for _, route in sorted(self.table.items())
        ]
