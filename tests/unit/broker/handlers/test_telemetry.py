"""Client metrics: instances, stored metrics, the Prometheus page."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from broker.handlers.router import RequestContext
from broker.handlers.telemetry import TelemetryHandlers
from broker.network.exchange import ConnectionInfo
from broker.telemetry.clients import client_instances, received_metrics
from broker.telemetry.clients.client_instances import ClientInstance, ClientInstances
from broker.telemetry.clients.received_metrics import ClientMetricsStore, Sample
from broker.telemetry.exposition import Format
from broker.telemetry.families import Dialect
from broker.telemetry.page import MetricsPage
from broker.telemetry.sampled_source import SampledSource
from protocol.compression import compress
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.telemetry import GetTelemetrySubscriptionsRequest
from replication.metadata.client_metrics import ClientAttributes
from replication.metadata.image import MetadataImage, ResourceType

DELTA, CUMULATIVE = 1, 2
FACTS: ClientAttributes = {"client_id": "c", "client_instance_id": None}
Configs = dict[str, dict[str, str]]


def attribute(key: str, text: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=text))


def report(*metrics: Metric, rack: str = "r") -> bytes:
    resource = Resource(attributes=[attribute("client_rack", rack)])
    scopes = [ScopeMetrics(metrics=metrics)]
    data = MetricsData(resource_metrics=[ResourceMetrics(resource=resource, scope_metrics=scopes)])
    return bytes(data.SerializeToString())


def total(value: int, how: Any, *, topic: str = "t", is_monotonic: bool = True) -> Metric:
    point = NumberDataPoint(as_int=value, attributes=[attribute("topic", topic)])
    return Metric(name="a.b", sum=Sum(data_points=[point], aggregation_temporality=how, is_monotonic=is_monotonic))


def gauge(name: str, value: float) -> Metric:
    return Metric(name=name, gauge=Gauge(data_points=[NumberDataPoint(as_double=value)]))


def take(kept: ClientMetricsStore, data: bytes, *, who: bytes = b"w" * 16, codec: int = 0, now_ms: int = 0) -> None:
    kept.update(who, FACTS, codec, data, now_ms=now_ms, expires_ms=now_ms + 1000)


# ---- stored metrics


def test_deltas_are_summed_and_cumulative_values_replaced() -> None:
    kept = ClientMetricsStore()
    for value in (3, 4):
        take(kept, report(total(value, DELTA), total(value, CUMULATIVE, topic="u")))
    assert kept.names(0) == ["a.b"]
    who = ("client_id", "c"), ("client_rack", "r")
    assert kept.numbers("a.b") == [Sample((*who, ("topic", "t")), 7.0, True), Sample((*who, ("topic", "u")), 4.0, True)]


def test_an_attribute_of_resource_or_point_is_the_same_series() -> None:
    kept = ClientMetricsStore()
    how: Any = DELTA
    for value, of_resource, of_point in ((3, "a", "b"), (4, "b", "a")):
        point = NumberDataPoint(as_int=value, attributes=[attribute(of_point, "x")])
        delta = Metric(name="m", sum=Sum(data_points=[point], aggregation_temporality=how, is_monotonic=True))
        resource = Resource(attributes=[attribute(of_resource, "x")])
        part = ResourceMetrics(resource=resource, scope_metrics=[ScopeMetrics(metrics=[delta])])
        take(kept, bytes(MetricsData(resource_metrics=[part]).SerializeToString()))
    assert kept.numbers("m") == [Sample((("client_id", "c"), ("a", "x"), ("b", "x")), 7.0, is_counter=True)]


@pytest.mark.parametrize("codec", range(5))
def test_every_codec_is_read(codec: int) -> None:
    kept = ClientMetricsStore()
    take(kept, bytes(compress(codec, report(gauge("g", 1.5)))), codec=codec)
    assert [number.value for number in kept.numbers("g")] == [1.5]


def test_metrics_expire_without_new_reports() -> None:
    kept = ClientMetricsStore()
    take(kept, report(gauge("g", 1.0)), who=b"1" * 16)
    take(kept, report(gauge("h", 1.0)), who=b"2" * 16, now_ms=900)
    assert (kept.names(999), kept.names(1000), kept.names(1900)) == (["g", "h"], ["h"], [])


def test_histograms_are_left_out() -> None:
    kept = ClientMetricsStore()
    take(kept, report(Metric(name="h", histogram=Histogram(data_points=[HistogramDataPoint(count=1)])), gauge("g", 1)))
    assert kept.names(0) == ["g"]


@pytest.mark.parametrize(
    ("data", "codec", "code"),
    [
        (b"\xff", 0, ErrorCode.INVALID_RECORD),
        (b"no gzip", 1, ErrorCode.INVALID_RECORD),
        (bytes(compress(4, bytes(received_metrics.MAX_BYTES + 1))), 4, ErrorCode.TELEMETRY_TOO_LARGE),
        (report(*(gauge(f"g{n}", n) for n in range(received_metrics.MAX_SAMPLES_PER_CLIENT + 1))), 0,
         ErrorCode.TELEMETRY_TOO_LARGE),
    ],
)  # fmt: skip
def test_malformed_or_too_large_metrics_are_rejected(data: bytes, codec: int, code: ErrorCode) -> None:
    kept = ClientMetricsStore()
    with pytest.raises(KafkaError) as refusal:
        take(kept, data, codec=codec)
    assert (refusal.value.code, kept.names(0)) == (code, [])


def test_metrics_beyond_the_limit_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(received_metrics, "MAX_SAMPLES", 4)
    kept = ClientMetricsStore()
    data = report(gauge("g", 1), gauge("h", 2))
    take(kept, data, who=b"1" * 16)
    take(kept, data, who=b"1" * 16, now_ms=500)
    take(kept, report(gauge("g", 1)), who=b"2" * 16, now_ms=1200)
    with pytest.raises(KafkaError):
        take(kept, data, who=b"3" * 16, now_ms=1300)
    take(kept, data, who=b"3" * 16, now_ms=1500)
    assert len(kept.numbers("g")) == 2


def test_clients_within_the_limit_go_on_reporting_when_it_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(received_metrics, "MAX_SAMPLES", 2)
    kept = ClientMetricsStore()
    for value in (1, 2):
        for who in (b"1" * 16, b"2" * 16):
            take(kept, report(gauge("g", value)), who=who)
    with pytest.raises(KafkaError):
        take(kept, report(gauge("g", 2), gauge("h", 2)), who=b"2" * 16)
    assert [sample.value for sample in kept.numbers("g")] == [2, 2]


MANY = 200_000


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\x00" * MANY,
        MetricsData(resource_metrics=[ResourceMetrics(resource=Resource(attributes=[KeyValue()] * MANY))]),
        MetricsData(resource_metrics=[ResourceMetrics(scope_metrics=[ScopeMetrics(metrics=[Metric()] * MANY)])]),
    ],
)
def test_a_small_report_with_many_elements_is_refused(data: bytes | MetricsData) -> None:
    text = data if isinstance(data, bytes) else data.SerializeToString()
    kept = ClientMetricsStore()
    with pytest.raises(KafkaError) as refusal:
        take(kept, bytes(compress(4, text)), codec=4)
    assert refusal.value.code == ErrorCode.TELEMETRY_TOO_LARGE


def test_the_text_of_all_reports_is_limited() -> None:
    kept, data = ClientMetricsStore(), report(gauge("g", 1), rack="x" * 1_000_000)
    fitting = received_metrics.MAX_TEXT // 1_000_000
    for number in range(fitting):
        take(kept, data, who=number.to_bytes(16, "big"))
    with pytest.raises(KafkaError) as refusal:
        take(kept, data, who=fitting.to_bytes(16, "big"))
    assert refusal.value.code == ErrorCode.TELEMETRY_TOO_LARGE


KEYS = ["client_id", "client.id", "a.b", "a_b", "__name__", "", "client_rack", "2"]


@pytest.mark.parametrize("name", ["", "_total", "g"])
@pytest.mark.parametrize("dialect", [Dialect.JMX, Dialect.CONFLUENT])
@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
def test_no_client_makes_a_page_that_prometheus_refuses(name: str, dialect: Dialect, accept: str) -> None:
    labels = [attribute(key, f"of point {key}") for key in KEYS]
    labels.append(KeyValue(key="list", value=AnyValue(array_value=ArrayValue(values=[AnyValue(int_value=1)]))))
    point = NumberDataPoint(as_int=1, attributes=labels)
    kept = ClientMetricsStore()
    take(kept, report(Metric(name=name, sum=Sum(data_points=[point], is_monotonic=True)), rack="of resource"))
    source = SampledSource(kept, "Help.", lambda: 0)
    *_, line = [one for one in "".join(Format(accept, dialect).slices([source])).splitlines() if one[0] != "#"]
    shown = 'client_id="c",_="of point ",_2="of point 2",a_b="of point a.b",client_rack="of point client_rack"'
    series, _, value = line.rpartition(" ")
    assert re.fullmatch(f"[a-z_]+{re.escape('{' + shown + '}')}", series)
    assert value == "1.0"


# ---- client instances


class TelemetryHarness:
    def __init__(self) -> None:
        self.image = MetadataImage("c")
        self.count = 0
        self.clients = ClientInstances(lambda: self.image, self._new_id)

    def _new_id(self) -> bytes:
        self.count += 1
        return bytes([self.count]) * 16

    def wants(self, configs: Configs) -> None:
        self.image = MetadataImage("c")
        self.image.configs = {(ResourceType.CLIENT_METRICS, name): own for name, own in configs.items()}

    def hears(self, instance_id: bytes = bytes(16), now_ms: int = 0, connection_id: int = 1) -> ClientInstance:
        return self.clients.of(instance_id, connection_id, lambda _: FACTS, now_ms)


def test_a_client_instance_expires_with_its_last_connection() -> None:
    harness = TelemetryHarness()
    client = harness.hears(connection_id=1)
    harness.hears(client.instance_id, connection_id=2)
    harness.clients.forget(client.instance_id, 1)
    assert harness.hears(client.instance_id, connection_id=2) is client
    harness.clients.forget(client.instance_id, 2)
    assert harness.hears(client.instance_id) is not client


def test_idle_client_instances_expire() -> None:
    harness = TelemetryHarness()
    for interval, expires_ms in ((100, 60_000), (30_000, 90_000)):
        harness.wants({"s": {"interval.ms": str(interval)}})
        client = harness.hears()
        assert harness.hears(client.instance_id, expires_ms - 1) is client
        harness.hears(now_ms=2 * expires_ms)
        assert harness.hears(client.instance_id, 2 * expires_ms) is not client


def test_the_least_recently_seen_client_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_instances, "MAX_INSTANCES", 2)
    harness = TelemetryHarness()
    first, second = harness.hears(), harness.hears()
    harness.hears(first.instance_id)
    harness.hears()
    harness.hears()
    assert harness.hears(second.instance_id) is not second


def test_only_a_changed_subscription_changes_the_subscription_id() -> None:
    harness = TelemetryHarness()
    harness.wants({"s": {"metrics": "m"}})
    client = harness.hears()
    harness.wants({"s": {"metrics": "m"}})
    assert harness.hears(client.instance_id) is client
    harness.wants({"s": {"metrics": "n"}})
    again = harness.hears(client.instance_id)
    assert (again.wanted.metrics, again.subscription_id != client.subscription_id) == (("n",), True)


def test_a_subscription_without_a_match_selects_no_client() -> None:
    harness = TelemetryHarness()
    harness.wants(
        {"bad": {"metrics": "m", "match": "client_id=(?=c)c"}, "good": {"metrics": "n", "match": "client_id=c"}}
    )
    assert harness.hears().wanted.metrics == ("n",)
    harness.wants({"s": {"metrics": "m", "match": "client_instance_id=.*"}})
    assert harness.hears().wanted.metrics == ()


def test_the_metrics_parser_is_imported_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    loading: list[str] = []
    monkeypatch.setattr(received_metrics, "_parser", lambda: loading.append(threading.current_thread().name))
    harness = TelemetryHarness()
    handlers = TelemetryHandlers(harness.clients, ClientMetricsStore(), 1 << 20)
    connection = ConnectionInfo(1, "PLAINTEXT", ("127.0.0.1", 9092), ("127.0.0.1", 40000), "User:ANONYMOUS")

    def ask() -> list[str]:
        context = RequestContext(71, 0, 1, "c", connection, 0, 0)
        handlers.get_subscriptions(context, GetTelemetrySubscriptionsRequest(client_instance_id=bytes(16)))
        for thread in threading.enumerate():
            if thread.name == "telemetry":
                thread.join()
        return loading

    assert ask() == []
    harness.wants({"s": {"metrics": "m"}})
    assert ask() == ["telemetry"]
    assert ask() == ["telemetry"]


# ---- the metrics page


class Listed:
    """A source with one name."""

    def __init__(self, name: str, samples: list[Sample]) -> None:
        self._name, self._samples = name, samples

    def names(self, now_ms: int) -> list[str]:
        return [self._name]

    def numbers(self, name: str) -> list[Sample]:
        return self._samples


def shown(name: str, samples: list[Sample]) -> str:
    source = SampledSource(Listed(name, samples), "Help.", lambda: 0)
    return "".join(Format("").slices([source]))


def test_the_page_is_in_prometheus_format() -> None:
    numbers = [Sample((("a.b", 'x"\\\n'),), 1.0, True), Sample((("1", "y"),), float("inf"), True)]
    assert shown("k.n-a", numbers) == (
        "# HELP k_n_a_total Help.\n# TYPE k_n_a_total counter\n"
        'k_n_a_total{a_b="x\\"\\\\\\n"} 1.0\nk_n_a_total{_1="y"} +Inf\n'
    )
    nothing = [Sample((), float("nan"), False)]
    assert shown("9.total", nothing) == "# HELP _9_total Help.\n# TYPE _9_total gauge\n_9_total NaN\n"
    assert shown("n", []) == ""


async def answer(kept: ClientMetricsStore, question: bytes) -> bytes:
    page = MetricsPage(("127.0.0.1", 0))
    page.sources = {Dialect.JMX: [SampledSource(kept, "Reported.", lambda: 0)]}
    page.start(asyncio.get_running_loop())
    reader, writer = await asyncio.open_connection(*page.address)
    writer.write(question)
    responses = await reader.read()
    writer.close()
    page.close()
    return responses


@pytest.mark.parametrize(
    ("question", "check"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", lambda body: b'\ng{client_id="c",client_rack="r"} 1.0\n' in body),
        (b"GET / HTTP/1.1\r\n\r\n", lambda body: body.startswith(b"HTTP/1.1 200 OK\r\n")),
        (b"GET /other HTTP/1.1\r\n\r\n", lambda body: body.startswith(b"HTTP/1.1 404 ")),
        (b"POST /metrics HTTP/1.1\r\n\r\n", lambda body: body.startswith(b"HTTP/1.1 405 ")),
        (b"GET /" + b"x" * 20_000, lambda body: body.startswith(b"HTTP/1.1 431 ")),
    ],
)  # fmt: skip
async def test_the_metrics_page_serves_only_its_path(question: bytes, check: Callable[[bytes], bool]) -> None:
    """Rule 2 of page.py."""
    kept = ClientMetricsStore()
    take(kept, report(gauge("g", 1.0)))
    responses = await answer(kept, question)
    assert check(responses), responses
