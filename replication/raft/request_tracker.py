"""In-flight requests and retry backoff per peer (Kafka: RequestManager).

RULES    1. A peer has at most one request in flight. A response to an earlier request is dropped.
         2. After a failure, a peer receives no request during the retry backoff.
"""

from __future__ import annotations

from replication.raft.rpc_messages import Request


class RequestTracker:
    """The in-flight requests of one replica."""

    def __init__(self, retry_backoff_ms: int) -> None:
        self._retry_backoff_ms = retry_backoff_ms
        self._tokens = 0
        self._in_flight: dict[int, tuple[int, Request]] = {}
        self._backoff_until_ms: dict[int, int] = {}

    @property
    def has_in_flight(self) -> bool:
        """Whether any request awaits its response."""
        return bool(self._in_flight)

    @property
    def has_backoff(self) -> bool:
        """Whether any peer is in its retry backoff."""
        return bool(self._backoff_until_ms)

    @property
    def retry_deadlines_ms(self) -> list[int]:
        """The end times of all retry backoffs."""
        return list(self._backoff_until_ms.values())

    def can_send(self, peer: int) -> bool:
        """Whether the peer has no request in flight and no backoff."""
        return peer not in self._in_flight and peer not in self._backoff_until_ms

    def is_backing_off(self, peer: int) -> bool:
        """Whether the peer is in its retry backoff."""
        return peer in self._backoff_until_ms

    def start(self, peer: int, request: Request) -> int:
        """Record a request to a peer; returns the token of its response."""
        self._tokens += 1
        self._in_flight[peer] = (self._tokens, request)
        return self._tokens

    def complete(self, peer: int, token: int) -> Request | None:
        """Remove and return the request of a response; None if it is no longer in flight."""
        in_flight = self._in_flight.get(peer)
        if in_flight is None or in_flight[0] != token:
            return None
        del self._in_flight[peer]
        return in_flight[1]

    def back_off(self, peer: int, mono_ms: int) -> None:
        """Start the retry backoff of a peer."""
        self._backoff_until_ms[peer] = mono_ms + self._retry_backoff_ms

    def expire_backoffs(self, mono_ms: int) -> None:
        """Remove backoffs that have ended."""
        for peer in [peer for peer, retry_ms in self._backoff_until_ms.items() if retry_ms <= mono_ms]:
            del self._backoff_until_ms[peer]

    def reset(self) -> None:
        """Drop all requests and backoffs: they belong to the previous role."""
        self._in_flight.clear()
        self._backoff_until_ms.clear()
