"""How many connections may be accepted, and how fast (Kafka: ConnectionQuotas; KIP-308, KIP-402, KIP-612).

RULES    1. The checks are Kafka's, in its order: the rates of broker and listener (accepting waits, at most one window), their
            numbers (accepting waits for a connection to close), the rate of the address (the connection is held for the
            delay, then closed, and does not count), the number of the address (closed at once).
         2. Broker-wide limits do not apply to the inter-broker listener if there are others. If it exceeds them, the least
            recently used connections of other listeners are closed; so after a limit was lowered.
         3. Nothing is measured without a limit.
NOT HERE Sockets (`broker/network/listener.py`), idle connections, file descriptors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Protocol

from broker.config.broker_config import BrokerConfig
from broker.config.connection_configs import (
    UNLIMITED,
    ConnectionLimits,
    ListenerLimits,
    canonical_address,
    connection_limits,
)
from replication.metadata.client_quotas import IP, Quotas
from replication.quota_rates import QuotaWindows, SampledRate

_KEY: Final = "connection_creation_rate"
_MAX_ADDRESSES: Final = 10_000
_NO_LIMITS: Final = ListenerLimits()
_BROKER: Final = ""
_MAX_SEARCHED: Final = 32


class OpenConnection(Protocol):
    """A connection that can be closed for another one."""

    last_active_mono_ms: int

    def close(self) -> None:
        """Close it."""


class ConnectionQuotas:
    """The limits that some listeners share."""

    def __init__(
        self,
        limits: ConnectionLimits | None = None,
        windows: QuotaWindows | None = None,
        inter_broker_listener: str | None = None,
    ) -> None:
        self.limits = limits or ConnectionLimits()
        self._windows = windows or QuotaWindows()
        self._inter_broker_listener = inter_broker_listener
        self._counts: Counter[str] = Counter()  # by listener
        self._per_ip: Counter[str] = Counter()
        self._rates: dict[str, SampledRate] = {}  # of the broker and of listeners
        self._ip_rates: dict[str, SampledRate] = {}  # least recently used first
        self._connections: dict[str, Callable[[], Iterable[OpenConnection]]] = {}
        self._waiting: dict[str, Callable[[], None]] = {}
        self._quotas: Quotas = {}
        self._rates_of_addresses: dict[str | None, float] = {}  # None: of all others

    @classmethod
    def of(cls, config: BrokerConfig, *, are_brokers: bool) -> ConnectionQuotas:
        """The limits of the listeners of brokers, or of controllers."""
        inter_broker = config.inter_broker_listener if are_brokers else None
        return cls(connection_limits(config), config.quota_windows(), inter_broker)

    def add_listener(self, listener: str, connections: Callable[[], Iterable[OpenConnection]]) -> None:
        """Limit a listener; `connections` returns its open connections."""
        self._connections[listener] = connections

    def has_several_active(self, since_mono_ms: int) -> bool:
        """Whether several connections have been active since then; of more than _MAX_SEARCHED that is assumed."""
        if self._counts.total() > _MAX_SEARCHED:
            return True
        found = 0
        for connections in self._connections.values():
            for connection in connections():
                found += connection.last_active_mono_ms >= since_mono_ms
        return found > 1

    def update(self, limits: ConnectionLimits) -> None:
        """Use other limits."""
        self.limits = limits
        for name in [name for name in self._rates if self._creation_rate_of(name) == UNLIMITED]:
            del self._rates[name]
        self._close_excess()
        self._wake()

    def update_addresses(self, quotas: Quotas) -> None:
        """Use the quotas of addresses of a new image."""
        if quotas is not self._quotas:
            self._quotas, self._rates_of_addresses = quotas, _rates_of_addresses(quotas)
            for address in [one for one in self._ip_rates if self._rate_of_address(one) is None]:
                del self._ip_rates[address]

    # ------------------------------------------------------------ accepting
    def has_slot(self, listener: str) -> bool:
        """Whether the numbers of broker and listener allow another connection."""
        if self._counts[listener] >= self._limits_of(listener).max_connections:
            return False
        return self._is_protected(listener) or self._counts.total() < self.limits.broker.max_connections

    def when_free(self, listener: str, callback: Callable[[], None]) -> None:
        """Call `callback` once when the listener has a slot; it replaces an earlier one."""
        self._waiting[listener] = callback

    def record(self, listener: str, mono_ms: int) -> int:
        """Count a new connection in the rates of broker and listener; returns how long accepting must wait."""
        wait_ms = self._record(listener, self._limits_of(listener).creation_rate, mono_ms)
        if not self._is_protected(listener):
            wait_ms = max(wait_ms, self._record(_BROKER, self.limits.broker.creation_rate, mono_ms))
        return wait_ms

    def record_address(self, listener: str, address: str, mono_ms: int) -> int:
        """Count a connection of an address; above 0 it must be closed after this delay, and counts nowhere."""
        bound = self._rate_of_address(address)
        if bound is None:
            return 0
        rate = self._ip_rates.pop(address, None) or SampledRate(self._windows)
        self._ip_rates[address] = rate
        if len(self._ip_rates) > _MAX_ADDRESSES:
            del self._ip_rates[next(iter(self._ip_rates))]
        rate.record(1, mono_ms)
        delay_ms = self._bounded(rate, bound, mono_ms)
        if delay_ms:
            rate.record(-1, mono_ms)
            for name in (listener, _BROKER):
                if name in self._rates and not (name == _BROKER and self._is_protected(listener)):
                    self._rates[name].record(-1, mono_ms)
        return delay_ms

    def rates(self, mono_ms: int) -> list[tuple[str, str, float]]:
        """New connections per second, where they are limited: of the broker, a listener or an address, and its name."""
        found = [
            ("" if name == _BROKER else "listener", name, rate.measure(mono_ms)) for name, rate in self._rates.items()
        ]
        return found + [("ip", address, rate.measure(mono_ms)) for address, rate in self._ip_rates.items()]

    def max_of_address(self, address: str) -> int:
        """The most connections of an address."""
        return self.limits.per_ip_overrides.get(address, self.limits.max_per_ip)

    def add(self, listener: str, address: str) -> bool:
        """Count an open connection; returns False if its address has too many."""
        if self._per_ip[address] >= self.max_of_address(address):
            return False
        self._per_ip[address] += 1
        self._counts[listener] += 1
        self._close_excess()
        return True

    def remove(self, listener: str, address: str) -> None:
        """A connection is closed."""
        self._counts[listener] -= 1
        self._per_ip[address] -= 1
        if self._per_ip[address] <= 0:
            del self._per_ip[address]
        self._wake()

    # ------------------------------------------------------------ limits
    def _limits_of(self, listener: str) -> ListenerLimits:
        return self.limits.listeners.get(listener.lower(), _NO_LIMITS)

    def _creation_rate_of(self, name: str) -> int:
        """The limit of the broker or of a listener."""
        return (self.limits.broker if name == _BROKER else self._limits_of(name)).creation_rate

    def _rate_of_address(self, address: str) -> float | None:
        return self._rates_of_addresses.get(address, self._rates_of_addresses.get(None))

    def _is_protected(self, listener: str) -> bool:
        return listener == self._inter_broker_listener and len(self._connections) > 1

    def _record(self, name: str, bound: int, mono_ms: int) -> int:
        if bound == UNLIMITED:
            self._rates.pop(name, None)
            return 0
        rate = self._rates.setdefault(name, SampledRate(self._windows))
        rate.record(1, mono_ms)
        return self._bounded(rate, bound, mono_ms)

    def _bounded(self, rate: SampledRate, bound: float, mono_ms: int) -> int:
        """The throttle time, at most one window."""
        window_ms = self._windows.window_ms
        return min(rate.throttle_ms(bound, mono_ms), window_ms) if bound else window_ms

    def _wake(self) -> None:
        if self._waiting:
            for listener in [name for name in self._waiting if self.has_slot(name)]:
                self._waiting.pop(listener)()

    def _close_excess(self) -> None:
        """Close connections above the broker's limit (rule 2)."""
        excess = self._counts.total() - self.limits.broker.max_connections
        if excess > 0:
            unprotected = [
                connection
                for listener, connections in self._connections.items()
                if not self._is_protected(listener)
                for connection in connections()
            ]
            for connection in sorted(unprotected, key=lambda one: one.last_active_mono_ms)[:excess]:
                connection.close()


def _rates_of_addresses(quotas: Quotas) -> dict[str | None, float]:
    """The quotas of IP entities by address, None: of all others; a name that is no address has no effect."""
    found: dict[str | None, float] = {}
    for entity, values in quotas.items():
        if _KEY in values and IP in (names_by_type := dict(entity)):
            name = names_by_type[IP]
            with suppress(ValueError):
                found[None if name is None else canonical_address(name)] = values[_KEY]
    return found
