"""From a decoded request to its answer: the table of APIs and the two shapes an answer may have.

RULES    1. The ApiVersions answer is this table (seam 4): what has no row is not advertised.
         2. A handler answers at once (a message), never (None: Produce with acks=0) or later (a Pending).
            It creates no task; whoever completes the Pending runs on the loop.
         3. Handlers are registered, not discovered: `server.py` collects their rows, nothing here imports one.
         4. A handler that raises changed nothing: the client gets UNKNOWN_SERVER_ERROR where the message has room
            for it, the fault is logged with its trace and counted, and the connection goes on or is closed.
NOT HERE Bytes and sockets (`network/connection.py`), what an API does (its handler).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from broker.network.exchange import CloseConnection, ConnectionInfo, Later
from protocol.framing import Part
from protocol.schema import Message

__all__ = ["CloseConnection", "ConnectionInfo", "Handler", "Pending", "RequestContext", "Route", "Router"]


class RequestContext:
    """One request's header, its time and where it came from."""

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
        """Who asks, as "User:name"."""
        return self.connection.principal


class Pending:
    """An answer that comes later; complete it once, from the loop.

    `complete` may come before the Pending is returned. When the connection goes away first, `on_cancel` is called
    and a later `complete` is ignored.

    Args:
        on_cancel: told once that nobody will read the answer.
        lets_next_begin: whether the connection's next request, if it is of the same kind, may be begun meanwhile: all
            that depends on their order has been done.
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
        """Give the answer (None: nothing is sent)."""
        if self.is_done:
            return
        deliver, _ = self._end()
        if deliver is None:
            self._answer = answer
        else:
            deliver(answer)

    def close(self, reason: str) -> None:
        """End the connection instead of answering; the pending form of raising `CloseConnection`."""
        if self.is_done:
            return
        _, close = self._end()
        self._close_reason = reason
        if close is not None:
            close(reason)

    def deliver_to(self, deliver: Callable[[Message | None], None], close: Callable[[str], None]) -> None:
        """The connection's side: call `deliver` with the answer, or `close` with a reason, now or when it comes."""
        if self._close_reason is not None:
            close(self._close_reason)
        elif self.is_done:
            deliver(self._answer)
        else:
            self._deliver = deliver
            self._close = close

    def cancel(self) -> None:
        """The connection's side: nobody will read the answer."""
        if self.is_done:
            return
        on_cancel = self.on_cancel
        self._end()
        if on_cancel is not None:
            on_cancel()

    def _end(self) -> tuple[Callable[[Message | None], None] | None, Callable[[str], None] | None]:
        """Let go of both sides, which know this object: what they hold, open files among it, is freed at once then."""
        sides = self._deliver, self._close
        self.is_done = True
        self.on_cancel = self._deliver = self._close = None
        return sides


Handler = Callable[[RequestContext, Any], "Message | Pending | None"]


Shortcut = Callable[[RequestContext, bytearray, int], "list[Part] | Message | Later | None"]
"""Answers a frame of the usual shape, whose message begins at a position, without decoding it, now or later.

None where the shape is another one: then nothing has happened, and the handler is asked.
"""

Shortcuts = Callable[[int], "Shortcut | None"]
"""The short cut of a version, if it has one."""


class Route(NamedTuple):
    """A row of the API table.

    `advertised_min` differs from `min_version` only for Produce, which must be advertised from 0 for old librdkafka
    (KAFKA-18659) though it is served from 3.
    """

    api_key: int
    min_version: int
    max_version: int
    handler: Handler
    advertised_min: int | None = None
    shortcut: Shortcuts | None = None


class Router:
    """The API table of one listener."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.table: dict[int, Route] = {}
        for route in routes:
            assert route.api_key not in self.table, f"API {route.api_key} has two handlers"
            self.table[route.api_key] = route

    def advertised(self) -> list[tuple[int, int, int]]:
        """Every row as (API key, lowest, highest version), in the order of the keys."""
        return [
            (
                route.api_key,
                route.min_version if route.advertised_min is None else route.advertised_min,
                route.max_version,
            )
            for _, route in sorted(self.table.items())
        ]
