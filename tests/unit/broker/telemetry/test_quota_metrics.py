"""The metrics of quotas (broker/telemetry/quota_metrics.py)."""

from __future__ import annotations

import math

import pytest

from broker.config.connection_configs import ConnectionLimits, ListenerLimits
from broker.quotas.client_quota_manager import ClientQuotaManager
from broker.quotas.connection_quotas import ConnectionQuotas
from broker.quotas.request_meter import RequestMeter
from broker.telemetry.exempt_time import ExemptTime
from broker.telemetry.quota_metrics import MeteredQuotas, QuotaMetrics
from broker.telemetry.request_metrics import RequestMetrics
from broker.telemetry.sampled_source import family_of
from protocol.api import ApiKey
from protocol.errors import KafkaError
from protocol.messages.admin import CreateTopicsRequest
from replication.controller.controller_client import Client
from replication.controller.mutation_quotas import MutationQuotas
from replication.metadata.client_quotas import Quotas
from replication.quota_rates import QuotaWindows
from tests.support.quotas import NoThreads

START_NS = 10**12


EXEMPT = "kafka.server.Request.exempt-request-time"


class Node:
    """What a node measures, at one moment."""

    def __init__(self, connections: ConnectionQuotas | None = None) -> None:
        self.now_ms = START_NS // 10**6
        self.clients = ClientQuotaManager(QuotaWindows())
        self.mutations = MutationQuotas({}, lambda: self.now_ms)
        self.requests, self.controller_requests = RequestMetrics(), RequestMetrics()
        exempt = ExemptTime(self.requests, self.controller_requests, lambda: self.now_ms)
        quotas = MeteredQuotas(self.clients, self.mutations, [connections or ConnectionQuotas()], exempt)
        self.metrics = QuotaMetrics(quotas, lambda: self.now_ms)

    def shown(self) -> dict[str, list[tuple[tuple[tuple[str, str], ...], float]]]:
        """All but the exempt time, which is always there."""
        names = self.metrics.names(0)
        assert names[0] == EXEMPT
        return {
            name: [(sample.labels, round(sample.value, 3)) for sample in self.metrics.numbers(name)]
            for name in names[1:]
        }


def node_with(kind: str, name: str, key: str, bound: float) -> Node:
    node = Node()
    node.clients.update({((kind, name),): {key: bound}})
    return node


def test_without_quotas_there_are_no_metrics() -> None:
    assert Node().shown() == {}


def test_bytes_and_throttle_times_of_a_client_id() -> None:
    node = node_with("client-id", "c", "producer_byte_rate", 100.0)
    sensors = node.clients.find("User:a", "c", 0)
    assert sensors is not None
    RequestMeter(sensors, lambda: START_NS, NoThreads()).charge_produce(500, has_response=True)
    labels = (("user", ""), ("client-id", "c"))
    rate, throttle = "kafka.server.Produce.byte-rate", "kafka.server.Produce.throttle-time"
    ((_, average),) = node.shown()[throttle]
    assert (node.shown()[rate], math.isnan(average)) == ([(labels, 50.0)], True)
    for size in (600, 200):
        RequestMeter(sensors, lambda: START_NS, NoThreads()).charge_produce(size, has_response=True)
    assert node.shown() == {rate: [(labels, 130.0)], throttle: [(labels, 2000.0)]}  # 1000 and 3000 ms
    family = family_of(rate, "", node.metrics.numbers(rate))
    assert family.name == "kafka_server_Produce_byte_rate"
    assert list(family.points) == [("", '{user="",client_id="c"}', 130.0)]


def test_a_quota_that_was_not_used_for_an_hour_has_no_metrics() -> None:
    node = node_with("client-id", "c", "producer_byte_rate", 100.0)
    sensors = node.clients.find("User:a", "c", node.now_ms)
    assert sensors is not None
    RequestMeter(sensors, lambda: START_NS, NoThreads()).charge_produce(500, has_response=True)
    node.now_ms += 3_599_999
    assert "kafka.server.Produce.byte-rate" in node.shown()
    node.now_ms += 1
    assert node.shown() == {}


@pytest.mark.parametrize("is_fetch", [True, False])
def test_the_request_time_of_a_user_is_shown(*, is_fetch: bool) -> None:
    node = node_with("user", "a", "request_percentage", 1.0)
    sensors = node.clients.find("User:a", "c", 0)
    assert sensors is not None
    now_ns = START_NS - 10**9
    meter = RequestMeter(sensors, lambda: now_ns, NoThreads())
    meter.start()
    now_ns = START_NS
    if is_fetch:
        assert meter.charge_fetch([b"x"])
    else:
        meter.charge_time()
    labels = (("user", "a"), ("client-id", ""))
    assert node.shown() == {
        "kafka.server.Request.request-time": [(labels, 10.0)],
        "kafka.server.Request.throttle-time": [(labels, 1000.0)],
    }


def test_new_connections_count_for_their_listener_and_the_broker() -> None:
    limits = ConnectionLimits(ListenerLimits(creation_rate=5), {"out": ListenerLimits(creation_rate=5)})
    connections = ConnectionQuotas(limits)
    for _ in range(20):
        connections.record("OUT", 0)
    node = Node(connections)
    node.now_ms = 0
    group = "kafka.server.socket-server-metrics"
    assert node.shown() == {
        f"{group}.connection-accept-rate": [((("listener", "OUT"),), 2.0)],
        f"{group}.broker-connection-accept-rate": [((), 2.0)],
    }


def test_controller_mutations_of_a_user_are_shown() -> None:
    node = Node()
    quotas: Quotas = {(("user", "a"),): {"controller_mutation_rate": 2.0}}
    request = CreateTopicsRequest(topics=[], timeout_ms=1)
    quota = node.mutations.find(quotas, request, Client("User:a", "10.0.0.1", "c", 7))
    assert quota is not None
    quota.charge(30)
    group, labels = "kafka.server.ControllerMutation", (("user", "a"), ("client-id", ""))
    assert node.shown()[f"{group}.tokens"] == [(labels, -8.0)]  # of 22
    ((_, average),) = node.shown()[f"{group}.throttle-time"]
    assert math.isnan(average)
    with pytest.raises(KafkaError):
        quota.charge(1)
    assert quota.throttle() == 4000
    node.now_ms += 1000
    assert node.shown() == {
        f"{group}.tokens": [(labels, -6.0)],
        f"{group}.mutation-rate": [(labels, round(30 / 31, 3))],  # one window of 30 s is as if nothing was changed
        f"{group}.throttle-time": [(labels, 4000.0)],
    }
    node.now_ms += 3_599_999
    assert node.shown() == {}


def test_requests_of_other_nodes_are_exempt() -> None:
    node = Node()
    (first,) = node.metrics.numbers(EXEMPT)
    assert first.value == 0.0
    for requests, api_key, is_exempt in [
        (node.requests, ApiKey.FETCH, False),
        (node.requests, ApiKey.PRODUCE, False),
        (node.requests, ApiKey.ALTER_PARTITION, False),
        (node.requests, ApiKey.WRITE_TXN_MARKERS, True),
        (node.controller_requests, ApiKey.CREATE_TOPICS, False),
        (node.controller_requests, ApiKey.ALTER_PARTITION, True),
        (node.controller_requests, ApiKey.FETCH, True),
    ]:
        metrics = requests.of(api_key, "", 1, waits_for_clients=False)
        metrics.record_immediate(0, 20_000_000 if is_exempt else 1, 30_000_000 if is_exempt else 2)
    follower = node.requests.of(ApiKey.FETCH, "", 1, waits_for_clients=False).of_follower()
    follower.record_immediate(0, 5_000_000, 10_000_000)
    node.now_ms += 2000
    (second,) = node.metrics.numbers(EXEMPT)
    assert not second.labels
    assert second.value == pytest.approx(5.0)  # 100 ms in 2 s
