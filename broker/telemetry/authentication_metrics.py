"""How often clients authenticated, by listener, for the metrics page (Kafka: socket-server-metrics).

RULES    1. An authentication is repeated if the connection was authenticated before (KIP-368).
         2. A failed TLS handshake is a failed authentication, a complete one successful if no login follows. A client that goes
            away during a handshake counts as neither.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from broker.telemetry.clients.received_metrics import Sample


class Outcome(StrEnum):
    """The counters, by name; Apache Kafka has the same names with dashes."""

    SUCCESSFUL = "successful.authentication"
    FAILED = "failed.authentication"
    SUCCESSFUL_AGAIN = "successful.reauthentication"
    FAILED_AGAIN = "failed.reauthentication"
    EXPIRED = "expired.connections.killed"


class AuthenticationMetrics:
    """The counters of all listeners with SASL or TLS."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {}

    def add_listener(self, name: str) -> None:
        """Shows the counters of a listener, which begin at 0."""
        self._counts.setdefault(name, Counter())

    def count(self, listener: str, outcome: Outcome) -> None:
        """Counts one."""
        self._counts[listener][outcome] += 1

    def names(self, _now_ms: int) -> list[str]:
        """The counters, if a listener has SASL or TLS."""
        return list(Outcome) if self._counts else []

    def numbers(self, name: str) -> list[Sample]:
        """A counter of each listener."""
        return [
            Sample((("listener", listener),), counts[name], is_counter=True)
            for listener, counts in self._counts.items()
        ]
