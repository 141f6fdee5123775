"""The metrics of quotas, with Apache Kafka's names: `byte-rate` of `kafka.server:type=Produce,user=…,client-id=…`, and others.

RULES    1. Clients and listeners without a quota have no metrics. An entity that does not matter has an empty label.
         2. request-time is in percent of a second, throttle-time the average of the last minute in milliseconds.
         3. Changed partitions are counted by the active controller; tokens below zero mean that the quota is exceeded.
NOT HERE Measuring (`broker/quotas/`, `replication/controller/mutation_quotas.py`, `exempt_time.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from broker.process.timer import mono_ms as system_mono_ms
from broker.quotas.client_quota_manager import EXPIRATION_MS, FETCH, PRODUCE, REQUEST, ClientQuotaManager
from broker.quotas.connection_quotas import ConnectionQuotas
from broker.telemetry.clients.received_metrics import Sample
from broker.telemetry.exempt_time import ExemptTime
from replication.controller.mutation_quotas import MutationQuotas, MutationSensor

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
_MUTATIONS: Final[Mapping[str, Callable[[MutationSensor, int], float]]] = {
    "kafka.server.ControllerMutation.tokens": MutationSensor.tokens,
    "kafka.server.ControllerMutation.mutation-rate": MutationSensor.rate,
    "kafka.server.ControllerMutation.throttle-time": lambda sensor, now_ms: sensor.throttle_times.measure(now_ms),
}
_EXEMPT: Final = "kafka.server.Request.exempt-request-time"
_CONNECTIONS: Final = "kafka.server.socket-server-metrics.connection-accept-rate"
_BROKER_CONNECTIONS: Final = "kafka.server.socket-server-metrics.broker-connection-accept-rate"
_NAMES: Final = (*_USES, *_THROTTLES, *_MUTATIONS, _CONNECTIONS, _BROKER_CONNECTIONS)


class MeteredQuotas(NamedTuple):
    """What a node measures for quotas."""

    clients: ClientQuotaManager
    mutations: MutationQuotas
    connections: Iterable[ConnectionQuotas]
    exempt: ExemptTime


class QuotaMetrics:
    """The metrics of a node's quotas, for the metrics page."""

    def __init__(self, quotas: MeteredQuotas, mono_ms: Callable[[], int] = system_mono_ms) -> None:
        self._quotas = quotas
        self._mono_ms = mono_ms

    def names(self, _now_ms: int) -> list[str]:
        """The names that have values now."""
        return [_EXEMPT, *(name for name in _NAMES if self.numbers(name))]

    def numbers(self, name: str) -> list[Sample]:
        """The values of a name."""
        if name == _EXEMPT:
            return [Sample((), self._quotas.exempt.percent(), is_counter=False)]
        if name in (_CONNECTIONS, _BROKER_CONNECTIONS):
            return self._accept_rates(is_broker=name == _BROKER_CONNECTIONS)
        return self._mutations(name) if name in _MUTATIONS else self._uses(name)

    def _uses(self, name: str) -> list[Sample]:
        now_ms = self._mono_ms()
        found = []
        for kind, sensor in self._quotas.clients.sensors():
            if now_ms - sensor.used_mono_ms >= EXPIRATION_MS:
                continue  # it is deleted with the next one that is created
            if _USES.get(name) == kind:
                found.append(_sample(sensor.user, sensor.client_id, sensor.rate.measure(now_ms)))
            elif _THROTTLES.get(name) == kind:
                found.append(_sample(sensor.user, sensor.client_id, sensor.throttle_times.measure(now_ms)))
        return found

    def _mutations(self, name: str) -> list[Sample]:
        now_ms, measure = self._mono_ms(), _MUTATIONS[name]
        return [
            _sample(sensor.user, sensor.client_id, measure(sensor, now_ms))
            for sensor in self._quotas.mutations.sensors()
        ]

    def _accept_rates(self, *, is_broker: bool) -> list[Sample]:
        now_ms = self._mono_ms()
        return [
            Sample(() if is_broker else ((kind, name),), rate, is_counter=False)
            for quotas in self._quotas.connections
            for kind, name, rate in quotas.rates(now_ms)
            if is_broker is (kind == "")
        ]


def _sample(user: str, client_id: str, value: float) -> Sample:
    return Sample((("user", user), ("client-id", client_id)), value, is_counter=False)
