"""Clients' own metrics (KIP-714): who is asked for what, who may speak when, beside Apache Kafka; what comes of it."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from barnabas import Broker
from protocol.errors import ErrorCode
from protocol.messages.admin import AlterConfigsResource, IncrementalAlterConfigsRequest
from protocol.messages.metadata import ApiVersionsRequest
from protocol.messages.telemetry import GetTelemetrySubscriptionsRequest, PushTelemetryRequest
from tests.support.config_cases import CLIENT_METRICS, DELETE_SETTING, SET, Change, resource
from tests.support.kafka import ApacheKafka, compile_java, free_port, needs_kafka, run_tool
from tests.support.raw_client import RawClient
from tests.support.waiting import until

TAKER = Path(__file__).parent / "java" / "MetricsTaker.java"
SOFTWARE = ApiVersionsRequest(client_software_name="raw-client", client_software_version="1.2")
NOBODY = bytes(16)
LARGE = bytes(1024 * 1024 + 1)


class Player:
    """Clients of a broker, with a note of all that they are told but what differs from run to run."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.client = RawClient(bootstrap)
        self.client.ask(SOFTWARE, 4)
        self.told: list[Any] = []

    def asks(self, instance: bytes = NOBODY, client: RawClient | None = None) -> tuple[bytes, int]:
        """What is wanted of it? The id and the subscription that come back."""
        got = (client or self.client).ask(GetTelemetrySubscriptionsRequest(client_instance_id=instance), 0)
        assert got.error_code or got.client_instance_id != NOBODY
        assert got.error_code or instance in (NOBODY, got.client_instance_id)
        self.told.append(
            (
                got.error_code, got.subscription_id == 0, got.accepted_compression_types, got.push_interval_ms,
                got.telemetry_max_bytes, got.delta_temporality, sorted(got.requested_metrics),
            )
        )  # fmt: skip
        return got.client_instance_id, got.subscription_id

    def sends(
        self, instance: bytes, number: int, metrics: bytes = b"", *, last: bool = False, codec: int = 0
    ) -> ErrorCode:
        """A report."""
        request = PushTelemetryRequest(
            client_instance_id=instance, subscription_id=number, terminating=last, compression_type=codec,
            metrics=metrics,
        )  # fmt: skip
        code = ErrorCode(self.client.ask(request, 0).error_code)
        self.told.append(code)
        return code

    def wants(self, name: str, *changes: Change, shows: list[str]) -> None:
        """Another subscription; from now on these metrics are wanted of a new client."""
        (answer,) = self.client.ask(alter(resource(CLIENT_METRICS, name, *changes)), 1).responses
        assert answer.error_code == ErrorCode.NONE, answer
        nobody = GetTelemetrySubscriptionsRequest(client_instance_id=NOBODY)
        until(lambda: sorted(self.client.ask(nobody, 0).requested_metrics) == shows, f"{shows} are wanted")


def alter(wanted: AlterConfigsResource) -> IncrementalAlterConfigsRequest:
    return IncrementalAlterConfigsRequest(resources=[wanted])


def story(bootstrap: str) -> list[Any]:
    """Everything that clients may do wrong, and who is meant by which subscription."""
    player = Player(bootstrap)
    speak_when_it_is_time(player)
    say_something_wrong(player)
    end(player)
    are_meant(player)
    return player.told


def speak_when_it_is_time(player: Player) -> None:
    instance, number = player.asks()
    player.asks(instance)
    player.sends(instance, number)
    player.sends(instance, number)
    player.sends(instance, number + 1)
    player.asks(instance)
    player.sends(instance, number, last=True)


def say_something_wrong(player: Player) -> None:
    for number_is_wrong, codec in ((True, 0), (False, 9)):
        instance, number = player.asks()
        player.sends(instance, number + number_is_wrong, codec=codec)
        player.asks(instance)
        player.sends(instance, number, codec=codec)
        player.asks(instance)
    for reserved in (NOBODY, (1).to_bytes(16, "big")):
        player.sends(reserved, 1)
    stranger = os.urandom(16)
    player.sends(stranger, 5)
    player.sends(stranger, 5)
    player.asks(stranger)
    instance, number = player.asks()
    player.sends(instance, number + 1, LARGE, codec=9)
    player.sends(instance, number, LARGE, codec=9, last=True)
    for codec, metrics in ((0, LARGE), (1, b"no gzip"), (4, b"no zstd")):
        instance, number = player.asks()
        player.sends(instance, number, metrics, codec=codec)


def end(player: Player) -> None:
    instance, number = player.asks()
    player.sends(instance, number)
    player.sends(instance, number, last=True)
    player.sends(instance, number, last=True)
    player.sends(instance, number)
    player.asks(instance)


def may_ask(player: Player, instance: bytes) -> bool:
    """Whether it may; what else it is told is no part of the story."""
    count = len(player.told)
    player.asks(instance)
    code, *_ = player.told[-1]
    del player.told[count:]
    return bool(code == ErrorCode.NONE)


def are_meant(player: Player) -> None:
    player.wants("a", ("metrics", SET, "org.b,org.a"), ("interval.ms", SET, "20000"), ("match", SET, "client_id=r.w"),
                 shows=["org.a", "org.b"])  # fmt: skip
    facts = r"client_software_name=raw-c.*,client_software_version=1\.2,client_source_address=127.0.0.1"
    player.wants("b", ("metrics", SET, "org.c,org.a"), ("interval.ms", SET, "150"),
                 ("match", SET, f"{facts},client_source_port=[0-9]+"), shows=["org.a", "org.b", "org.c"])  # fmt: skip
    instance, number = player.asks()
    player.wants("a", ("metrics", SET, "org.d"), shows=["org.a", "org.c", "org.d"])
    player.sends(instance, number)
    _, other = player.asks(instance)
    assert other != number
    until(lambda: may_ask(player, instance), "the interval is over")
    player.sends(instance, other)
    with RawClient(player.bootstrap) as silent:
        instance, _ = player.asks(client=silent)
        player.asks(instance, silent)
    until(lambda: may_ask(player, instance), "with its connection it was forgotten")
    player.wants("c", ("metrics", SET, "unknown.software"), ("match", SET, "client_software_name=unknown"),
                 shows=["org.a", "org.c", "org.d"])  # fmt: skip
    with RawClient(player.bootstrap) as silent:
        player.asks(client=silent)
    player.wants("d", ("metrics", SET, "zz"), ("match", SET, "client_instance_id=.{22}"),
                 shows=["org.a", "org.c", "org.d", "zz"])  # fmt: skip
    player.wants("e", ("metrics", SET, "*"), ("match", SET, "client_id=aw"), shows=["org.a", "org.c", "org.d", "zz"])
    player.wants("e", ("match", SET, ""), shows=["*"])
    player.asks()
    for name in "abcde":
        keys = ("metrics", "interval.ms", "match")
        wanted = resource(CLIENT_METRICS, name, *((key, DELETE_SETTING, None) for key in keys))
        assert player.client.ask(alter(wanted), 1).responses[0].error_code == ErrorCode.NONE
    player.wants("f", ("metrics", SET, ""), ("interval.ms", SET, "400000"), shows=[])
    player.asks()


@needs_kafka
def test_clients_are_told_what_kafka_tells_them() -> None:
    """Codes, intervals, limits, metrics that are wanted; Kafka with a reporter that takes what is sent."""
    classes = compile_java(TAKER)
    with ApacheKafka({"metric.reporters": "MetricsTaker"}, classes=classes) as kafka:
        theirs = story(kafka.bootstrap)
    with Broker() as broker:
        assert story(broker.bootstrap) == theirs


# ---- what comes of it


def page(port: int, path: str = "/metrics") -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return answer.read().decode().splitlines()


@pytest.fixture
def shown() -> Iterator[tuple[str, int]]:
    """A broker that asks everybody for everything, and where it shows that."""
    port = free_port()
    with Broker(settings={"barnabas.metrics.listener": f"HTTP://127.0.0.1:{port}"}) as broker:
        with RawClient(broker.bootstrap) as client:
            wanted = resource(CLIENT_METRICS, "all", ("metrics", SET, "*"), ("interval.ms", SET, "100"))
            assert client.ask(alter(wanted), 1).responses[0].error_code == ErrorCode.NONE
        yield broker.bootstrap, port


def test_what_librdkafka_reports_is_shown(shown: tuple[str, int]) -> None:
    """Its producer's numbers, with its name, version and id."""
    bootstrap, port = shown
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "client.id": 'my "own" app'})
    producer.produce("t", "v")
    assert producer.flush(30) == 0
    until(lambda: producer.poll(0) is not None and any("producer" in line for line in page(port)), "a report")
    lines = [line for line in page(port) if line.startswith("org_apache_kafka_producer_")]
    labels = {line.partition("{")[2].rpartition("}")[0] for line in lines}
    assert all(r'client_id="my \"own\" app"' in told for told in labels)
    assert all('client_software_name="confluent-kafka-python"' in told for told in labels)
    assert len({told.partition(",")[0] for told in labels}) == 1


@needs_kafka
def test_what_java_reports_is_shown(shown: tuple[str, int]) -> None:
    """What a producer has reported stays for a while when it has ended."""
    bootstrap, port = shown
    done = run_tool(
        "org.apache.kafka.tools.ProducerPerformance", "--topic", "t", "--num-records", 1000, "--record-size", 10,
        "--throughput", 300, "--command-property", f"bootstrap.servers={bootstrap}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (sent,) = [line for line in page(port) if line.startswith("org_apache_kafka_producer_record_send_total{")]
    assert 0 < float(sent.rpartition(" ")[2]) <= 1000
    assert 'client_software_name="apache-kafka-java"' in sent
