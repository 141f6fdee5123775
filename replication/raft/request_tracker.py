"""In-flight requests and retry backoff per peer (Kafka: RequestManager).

RULES    1. A peer has at most one request in flight. A response to an earlier request is dropped.
         2. After a failure, a peer receives no request during the retry backoff.
"""

from __future__ import annotations

from typing import NamedTuple

from replication.raft.rpc_messages import Request


class InFlightRequest(NamedTuple):
    """A request that awaits its response."""

    token: int
    request: Request


class RequestTracker:
    """The in-flight requests of one replica."""

    def __init__(self, retry_backoff_ms: int) -> None:
        self._retry_backoff_ms = retry_backoff_ms
        self._tokens = 0
        self.in_flight: dict[int, InFlightRequest] = {}
        """The requests without a response, by peer."""
        self.backoff_until_ms: dict[int, int] = {}
        """The ends of the retry backoffs, by peer."""

    def can_send(self, peer: int) -> bool:
        """Whether the peer has no request in flight and no backoff."""
        return peer not in self.in_flight and peer not in self.backoff_until_ms

    def start(self, peer: int, request: Request) -> int:
        """Record a request to a peer; returns the token of its response."""
        self._tokens += 1
        self.in_flight[peer] = InFlightRequest(self._tokens, request)
        return self._tokens

    def complete(self, peer: int, token: int) -> Request | None:
        """Remove and return the request of a response; None if it is no longer in flight."""
        in_flight = self.in_flight.get(peer)
        if in_flight is None or in_flight.token != token:
            return None
        del self.in_flight[peer]
        return in_flight.request

    def back_off(self, peer: int, mono_ms: int) -> None:
        """Start the retry backoff of a peer."""
        self.backoff_until_ms[peer] = mono_ms + self._retry_backoff_ms

    def expire_backoffs(self, mono_ms: int) -> None:
        """Remove backoffs that have ended."""
        for peer in [peer for peer, retry_ms in self.backoff_until_ms.items() if retry_ms <= mono_ms]:
            del self.backoff_until_ms[peer]

    def reset(self) -> None:
        """Drop all requests and backoffs: they belong to the previous role."""
        self.in_flight.clear()
        self.backoff_until_ms.clear()
