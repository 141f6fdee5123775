"""The metrics of quotas, with Apache Kafka's names: `byte-rate` of `kafka.server:type=Produce,user=…,client-id=…`, and others.

RULES    1. Clients and listeners without a quota have no metrics. An entity that does not matter has an empty label.
         2. request-time is in percent of a second, throttle-time the average of the last minute in milliseconds.
NOT HERE Measuring (`broker/quotas/`), the metrics of controllers' quotas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from broker.process.timer import mono_ms as system_mono_ms
from broker.quotas.client_quota_manager import FETCH, PRODUCE, REQUEST, ClientQuotaManager
from broker.quotas.connection_quotas import ConnectionQuotas
from broker.telemetry.received import Sample

_USES: Final = {
    "kafka.server.Produce.byte-rate": PRODUCE,
    "kafka.server.Fetch.byte-rate": FETCH,
    "kafka.server.Request.request-time": REQUEST,
}
_THROTTLES: Final = {
    "kafka.server.Produce.throttle-time": PRODUCE,
    "kafka.server.Fetch.throttle-time": FETCH,
    "kafka.server.Request.throttle-time": REQUEST,
}
_CONNECTIONS: Final = "kafka.server.socket-server-metrics.connection-accept-rate"
_BROKER_CONNECTIONS: Final = "kafka.server.socket-server-metrics.broker-connection-accept-rate"


class QuotaMetrics:
    """The metrics of a broker's quotas, for the metrics page."""

    def __init__(
        self,
        clients: ClientQuotaManager,
        connections: Iterable[ConnectionQuotas],
        mono_ms: Callable[[], int] = system_mono_ms,
    ) -> None:
        self._clients = clients
        self._connections = list(connections)
        self._mono_ms = mono_ms

    def names(self, _now_ms: int) -> list[str]:
        """The names that have values now."""
        return [name for name in (*_USES, *_THROTTLES, _CONNECTIONS, _BROKER_CONNECTIONS) if self.numbers(name)]

    def numbers(self, name: str) -> list[Sample]:
        """The values of a name."""
        if name in (_CONNECTIONS, _BROKER_CONNECTIONS):
            return self._accept_rates(is_broker=name == _BROKER_CONNECTIONS)
        now_ms = self._mono_ms()
        found = []
        for kind, sensor in self._clients.sensors():
            labels = (("user", sensor.user), ("client-id", sensor.client_id))
            if _USES.get(name) == kind:
                found.append(Sample(labels, sensor.rate.measure(now_ms), is_counter=False))
            elif _THROTTLES.get(name) == kind:
                found.append(Sample(labels, sensor.average_throttle_ms(now_ms), is_counter=False))
        return found

    def _accept_rates(self, *, is_broker: bool) -> list[Sample]:
        now_ms = self._mono_ms()
        return [
            Sample(() if is_broker else ((kind, name),), rate, is_counter=False)
            for quotas in self._connections
            for kind, name, rate in quotas.rates(now_ms)
            if is_broker is (kind == "")
        ]
