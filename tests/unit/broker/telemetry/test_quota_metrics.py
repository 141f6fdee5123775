"""The metrics of quotas (broker/telemetry/quota_metrics.py)."""

from __future__ import annotations

import math

import pytest

from broker.config.connection_configs import ConnectionLimits, ListenerLimits
from broker.quotas.client_quota_manager import ClientQuotaManager
from broker.quotas.connection_quotas import ConnectionQuotas
from broker.quotas.request_meter import NoThreads, RequestMeter
from broker.telemetry.quota_metrics import QuotaMetrics
from broker.telemetry.sampled_source import family_of
from protocol.messages.stored_records import ClientQuotaRecord, EntityData
from replication.quota_rates import QuotaWindows

START_NS = 10**12


def metrics_of(kind: str, name: str, key: str, bound: float) -> tuple[QuotaMetrics, ClientQuotaManager]:
    entity = [EntityData(entity_type=kind, entity_name=name)]
    clients = ClientQuotaManager(QuotaWindows())
    clients.update({("quota",): ClientQuotaRecord(entity=entity, key=key, value=bound, remove=False)})
    return QuotaMetrics(clients, [], lambda: START_NS // 10**6), clients


def shown(metrics: QuotaMetrics) -> dict[str, list[tuple[tuple[tuple[str, str], ...], float]]]:
    return {
        name: [(sample.labels, round(sample.value, 3)) for sample in metrics.numbers(name)] for name in metrics.names(0)
    }


def test_without_quotas_there_are_no_metrics() -> None:
    metrics = QuotaMetrics(ClientQuotaManager(QuotaWindows()), [ConnectionQuotas()], lambda: 0)
    assert metrics.names(0) == []


def test_bytes_and_throttle_times_of_a_client_id() -> None:
    metrics, clients = metrics_of("client-id", "c", "producer_byte_rate", 100.0)
    sensors = clients.find("User:a", "c", 0)
    assert sensors is not None
    RequestMeter(sensors, lambda: START_NS, NoThreads()).charge_produce(500, has_response=True)
    labels = (("user", ""), ("client-id", "c"))
    rate, throttle = "kafka.server.Produce.byte-rate", "kafka.server.Produce.throttle-time"
    ((_, average),) = shown(metrics)[throttle]
    assert (shown(metrics)[rate], math.isnan(average)) == ([(labels, 50.0)], True)
    for size in (600, 200):
        RequestMeter(sensors, lambda: START_NS, NoThreads()).charge_produce(size, has_response=True)
    assert shown(metrics) == {rate: [(labels, 130.0)], throttle: [(labels, 2000.0)]}  # 1000 and 3000 ms
    family = family_of(rate, "", metrics.numbers(rate))
    assert family.name == "kafka_server_Produce_byte_rate"
    assert list(family.points) == [("", '{user="",client_id="c"}', 130.0)]


@pytest.mark.parametrize("is_fetch", [True, False])
def test_the_time_of_a_users_requests(*, is_fetch: bool) -> None:
    metrics, clients = metrics_of("user", "a", "request_percentage", 1.0)
    sensors = clients.find("User:a", "c", 0)
    assert sensors is not None
    now_ns = START_NS - 10**9
    meter = RequestMeter(sensors, lambda: now_ns, NoThreads())
    meter.start()
    now_ns = START_NS
    assert (meter.charge_fetch([b"x"]) is True) if is_fetch else meter.charge_time() is None
    labels = (("user", "a"), ("client-id", ""))
    assert shown(metrics) == {
        "kafka.server.Request.request-time": [(labels, 10.0)],
        "kafka.server.Request.throttle-time": [(labels, 1000.0)],
    }


def test_rates_of_connections() -> None:
    limits = ConnectionLimits(ListenerLimits(creation_rate=5), {"out": ListenerLimits(creation_rate=5)})
    connections = ConnectionQuotas(limits)
    for _ in range(20):
        connections.record("OUT", 0)
    metrics = QuotaMetrics(ClientQuotaManager(QuotaWindows()), [connections], lambda: 0)
    group = "kafka.server.socket-server-metrics"
    assert shown(metrics) == {
        f"{group}.connection-accept-rate": [((("listener", "OUT"),), 2.0)],
        f"{group}.broker-connection-accept-rate": [((), 2.0)],
    }
