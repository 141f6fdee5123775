"""Client metrics (KIP-714): subscriptions, push intervals and errors compared with Apache Kafka, and the published metrics."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from barnabas import Broker
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.metadata import ApiVersionsRequest
from protocol.messages.telemetry import GetTelemetrySubscriptionsRequest, PushTelemetryRequest
from tests.conformance.brokers import alter_configs
from tests.support.config_cases import CLIENT_METRICS, DELETE_SETTING, SET, Change
from tests.support.kafka import ApacheKafka, compile_java, free_port, needs_kafka
from tests.support.kafka_tools import run_in_own_jvm
from tests.support.raw_client import RawClient
from tests.support.waiting import until

TAKER = Path(__file__).parent / "java" / "MetricsTaker.java"
SOFTWARE = ApiVersionsRequest(client_software_name="raw-client", client_software_version="1.2")
NO_ID = bytes(16)
LARGE = bytes(1024 * 1024 + 1)


class Script:
    """Clients of a broker; `responses` holds the parts of all responses that are equal in every run."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.client = RawClient(bootstrap)
        self.client.ask(SOFTWARE, 4)
        self.responses: list[Any] = []

    def get_subscriptions(self, instance: bytes = NO_ID, client: RawClient | None = None) -> tuple[bytes, int]:
        """GetTelemetrySubscriptions; the client instance id and the subscription id."""
        got = (client or self.client).ask(GetTelemetrySubscriptionsRequest(client_instance_id=instance), 0)
        assert got.error_code or got.client_instance_id != NO_ID
        assert got.error_code or instance in (NO_ID, got.client_instance_id)
        self.responses.append(
            (
                got.error_code, got.subscription_id == 0, got.accepted_compression_types, got.push_interval_ms,
                got.telemetry_max_bytes, got.delta_temporality, sorted(got.requested_metrics),
            )
        )  # fmt: skip
        return got.client_instance_id, got.subscription_id

    def push(
        self, instance: bytes, subscription_id: int, metrics: bytes = b"", *, last: bool = False, codec: int = 0
    ) -> ErrorCode:
        request = PushTelemetryRequest(
            client_instance_id=instance, subscription_id=subscription_id, terminating=last, compression_type=codec,
            metrics=metrics,
        )  # fmt: skip
        code = ErrorCode(self.client.ask(request, 0).error_code)
        self.responses.append(code)
        return code

    def subscribe(self, name: str, *changes: Change, shows: list[str]) -> None:
        """Alters a subscription; `shows` are then the metrics requested from a new client."""
        alter_configs(self.client, CLIENT_METRICS, name, *changes)
        new_client = GetTelemetrySubscriptionsRequest(client_instance_id=NO_ID)
        until(lambda: sorted(self.client.ask(new_client, 0).requested_metrics) == shows, f"{shows} are requested")


def run_script(bootstrap: str) -> list[Any]:
    """Invalid requests, push intervals, and which subscription matches which client."""
    script = Script(bootstrap)
    push_intervals(script)
    invalid_requests(script)
    terminate(script)
    matching_clients(script)
    return script.responses


def push_intervals(script: Script) -> None:
    instance, subscription_id = script.get_subscriptions()
    script.get_subscriptions(instance)
    script.push(instance, subscription_id)
    script.push(instance, subscription_id)
    script.push(instance, subscription_id + 1)
    script.get_subscriptions(instance)
    script.push(instance, subscription_id, last=True)


def invalid_requests(script: Script) -> None:
    for number_is_wrong, codec in ((True, 0), (False, 9)):
        instance, subscription_id = script.get_subscriptions()
        script.push(instance, subscription_id + number_is_wrong, codec=codec)
        script.get_subscriptions(instance)
        script.push(instance, subscription_id, codec=codec)
        script.get_subscriptions(instance)
    for reserved in (NO_ID, (1).to_bytes(16, "big")):
        script.push(reserved, 1)
    unknown_id = os.urandom(16)
    script.push(unknown_id, 5)
    script.push(unknown_id, 5)
    script.get_subscriptions(unknown_id)
    instance, subscription_id = script.get_subscriptions()
    script.push(instance, subscription_id + 1, LARGE, codec=9)
    script.push(instance, subscription_id, LARGE, codec=9, last=True)
    for codec, metrics in ((0, LARGE), (1, b"no gzip"), (4, b"no zstd")):
        instance, subscription_id = script.get_subscriptions()
        script.push(instance, subscription_id, metrics, codec=codec)


def terminate(script: Script) -> None:
    instance, subscription_id = script.get_subscriptions()
    script.push(instance, subscription_id)
    script.push(instance, subscription_id, last=True)
    script.push(instance, subscription_id, last=True)
    script.push(instance, subscription_id)
    script.get_subscriptions(instance)


def interval_is_over(script: Script, instance: bytes) -> bool:
    """Whether the push interval has passed; the response is not recorded."""
    count = len(script.responses)
    script.get_subscriptions(instance)
    code, *_ = script.responses[-1]
    del script.responses[count:]
    return bool(code == ErrorCode.NONE)


def matching_clients(script: Script) -> None:
    script.subscribe("a", ("metrics", SET, "org.b,org.a"), ("interval.ms", SET, "20000"), ("match", SET, "client_id=r.w"),
                 shows=["org.a", "org.b"])  # fmt: skip
    client = r"client_software_name=raw-c.*,client_software_version=1\.2,client_source_address=127.0.0.1"
    script.subscribe("b", ("metrics", SET, "org.c,org.a"), ("interval.ms", SET, "150"),
                 ("match", SET, f"{client},client_source_port=[0-9]+"), shows=["org.a", "org.b", "org.c"])  # fmt: skip
    instance, subscription_id = script.get_subscriptions()
    script.subscribe("a", ("metrics", SET, "org.d"), shows=["org.a", "org.c", "org.d"])
    script.push(instance, subscription_id)
    _, other = script.get_subscriptions(instance)
    assert other != subscription_id
    until(lambda: interval_is_over(script, instance), "the interval is over")
    script.push(instance, other)
    with RawClient(script.bootstrap) as silent:
        instance, _ = script.get_subscriptions(client=silent)
        script.get_subscriptions(instance, silent)
    until(lambda: interval_is_over(script, instance), "the instance id is forgotten with its connection")
    script.subscribe("c", ("metrics", SET, "unknown.software"), ("match", SET, "client_software_name=unknown"),
                 shows=["org.a", "org.c", "org.d"])  # fmt: skip
    with RawClient(script.bootstrap) as silent:
        script.get_subscriptions(client=silent)
    script.subscribe("d", ("metrics", SET, "zz"), ("match", SET, "client_instance_id=.{22}"),
                 shows=["org.a", "org.c", "org.d", "zz"])  # fmt: skip
    script.subscribe(
        "e", ("metrics", SET, "*"), ("match", SET, "client_id=aw"), shows=["org.a", "org.c", "org.d", "zz"]
    )
    script.subscribe("e", ("match", SET, ""), shows=["*"])
    script.get_subscriptions()
    for name in "abcde":
        keys = ("metrics", "interval.ms", "match")
        alter_configs(script.client, CLIENT_METRICS, name, *((key, DELETE_SETTING, None) for key in keys))
    script.subscribe("f", ("metrics", SET, ""), ("interval.ms", SET, "400000"), shows=[])
    script.get_subscriptions()


@needs_kafka
def test_clients_get_the_answers_of_kafka() -> None:
    """Error codes, intervals, limits, requested metrics; Kafka has a reporter that accepts client metrics."""
    classes = compile_java(TAKER)
    with ApacheKafka({"metric.reporters": "MetricsTaker"}, classes=classes) as kafka:
        theirs = run_script(kafka.bootstrap)
    with Broker(settings={"barnabas.metrics.listener": "HTTP://127.0.0.1:0"}) as broker:
        assert run_script(broker.bootstrap) == theirs


def test_without_a_page_clients_are_not_asked_for_metrics(kafka_broker: Broker) -> None:
    """No page shows them, and librdkafka writes a line to standard error for each client that may send some."""
    with RawClient(kafka_broker.bootstrap) as client:
        response = client.ask(SOFTWARE, 4)
    assert not {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY} & {row.api_key for row in response.api_keys}


# ---- published metrics


def page(port: int, path: str = "/metrics") -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text: str = answer.read().decode()
    return text.splitlines()


@pytest.fixture
def endpoint() -> Iterator[tuple[str, int]]:
    """A broker with a subscription for all metrics, and the port of its metrics endpoint."""
    port = free_port()
    with Broker(settings={"barnabas.metrics.listener": f"HTTP://127.0.0.1:{port}"}) as broker:
        with RawClient(broker.bootstrap) as client:
            alter_configs(client, CLIENT_METRICS, "all", ("metrics", SET, "*"), ("interval.ms", SET, "100"))
        yield broker.bootstrap, port


def test_librdkafka_metrics_are_published(endpoint: tuple[str, int]) -> None:
    """Its producer metrics, with client id, software name and version."""
    bootstrap, port = endpoint
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "client.id": 'my "own" app'})
    producer.produce("t", "v")
    assert producer.flush(30) == 0
    reported = "org_apache_kafka_producer_"
    until(lambda: producer.poll(0) is not None and any(reported in line for line in page(port)), "a report")
    lines = [line for line in page(port) if line.startswith(reported)]
    labels = {line.partition("{")[2].rpartition("}")[0] for line in lines}
    assert all(r'client_id="my \"own\" app"' in label for label in labels)
    assert all('client_software_name="confluent-kafka-python"' in label for label in labels)
    assert len({label.partition(",")[0] for label in labels}) == 1


@needs_kafka
def test_java_metrics_are_published(endpoint: tuple[str, int]) -> None:
    """The metrics of a closed producer stay for a while."""
    bootstrap, port = endpoint
    assert run_in_own_jvm(
        "org.apache.kafka.tools.ProducerPerformance", "--topic", "t", "--num-records", 1000, "--record-size", 10,
        "--throughput", 300, "--command-property", f"bootstrap.servers={bootstrap}",
    ).stdout  # fmt: skip
    (sent,) = [line for line in page(port) if line.startswith("org_apache_kafka_producer_record_send_total{")]
    assert 0 < float(sent.rpartition(" ")[2]) <= 1000
    assert 'client_software_name="apache-kafka-java"' in sent
