"""The metrics of quotas on the metrics page, and those of Apache Kafka's MBeans after the same requests."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from barnabas import Broker
from barnabas.cluster import free_ports
from protocol.errors import ErrorCode
from protocol.messages.admin import CreateTopicsRequest
from tests.conformance.brokers import KAFKA, append_when_ready
from tests.support.follower_harness import BOTH
from tests.support.kafka import QUICK_JVM, ApacheKafka, run_tool
from tests.support.loading import create, one_record, topic
from tests.support.quotas import produce, set_quotas
from tests.support.raw_client import RawClient

GROUPS: Final = ("ControllerMutation", "Produce", "Request")
QUEUES: Final = "queue-size"
"""Apache Kafka also shows how many throttled connections wait."""
Metrics = dict[tuple[str, str, str], float]
"""Values by group, entity and name, such as ("Produce", "client-id=c", "byte-rate")."""


@contextmanager
def measured(kind: str) -> Iterator[tuple[str, Callable[[], Metrics]]]:
    """A node: its address, and what reads its metrics."""
    (port,) = free_ports(1)
    if kind == KAFKA:
        options = (f"port={port}", "authenticate=false", "ssl=false", "host=127.0.0.1")
        jvm = (*QUICK_JVM, *(f"-Dcom.sun.management.jmxremote.{option}" for option in options))
        with ApacheKafka(jvm=jvm) as kafka:
            yield kafka.bootstrap, lambda: of_beans(port)
    else:
        with Broker(settings={"barnabas.metrics.listener": f"HTTP://127.0.0.1:{port}"}) as broker:
            yield broker.bootstrap, lambda: of_page(port)


def of_beans(port: int) -> Metrics:
    found: Metrics = {}
    url = f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{port}/jmxrmi"
    for group in GROUPS:
        query = ("--object-name", f"kafka.server:type={group},*")
        read = run_tool(
            "org.apache.kafka.tools.JmxTool", "--jmx-url", url, *query, "--one-time", "--report-format", "properties"
        )
        assert read.returncode == 0, read.stderr
        for entity, name, value in re.findall(r"type=\w+,?([^:]*):([\w-]+)=(\S+)", read.stdout):
            if name != QUEUES:
                found[group, entity, name] = float(value)
    return found


def of_page(port: int) -> Metrics:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    found: Metrics = {}
    for line in lines:
        match = re.fullmatch(rf"kafka_server_({'|'.join(GROUPS)})_(\w+?)(?:\{{(.*)\}})? (\S+)", line)
        if match is not None:
            group, name, labels, value = match.groups()
            entity = [f"{key.replace('_', '-')}={text}" for key, text in re.findall(r'(\w+)="([^"]+)"', labels or "")]
            found[group, ",".join(entity), name.replace("_", "-")] = float(value)
    return found


def creation(client: RawClient, **partitions: int) -> list[int]:
    """Creates topics; their error codes."""
    topics = [topic(name, count) for name, count in partitions.items()]
    request = CreateTopicsRequest(topics=topics, timeout_ms=10_000, validate_only=False)
    return [made.error_code for made in client.ask(request, 7).topics]


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.long
def test_quotas_that_are_used_have_metrics(kind: str) -> None:
    with measured(kind) as (bootstrap, metrics):
        with RawClient(bootstrap) as client:
            create(client, "t")
            append_when_ready(client, "t", one_record(b""))
        for key, value in {
            "controller_mutation_rate": 1.0,
            "producer_byte_rate": 1e6,
            "request_percentage": 1e3,
        }.items():
            set_quotas(bootstrap, ({"client-id": "c"}, key, value))
        with RawClient(bootstrap, client_id="c") as client:
            produce(client, "t", 90_000)
            assert creation(client, a=71) == [ErrorCode.NONE]
            assert creation(client, b=1) == [ErrorCode.THROTTLING_QUOTA_EXCEEDED]
        found = metrics()
    of_client = {(group, name): value for (group, entity, name), value in found.items() if entity == "client-id=c"}
    assert set(of_client) == {
        ("ControllerMutation", "tokens"),
        ("ControllerMutation", "mutation-rate"),
        ("ControllerMutation", "throttle-time"),
        ("Produce", "byte-rate"),
        ("Produce", "throttle-time"),
        ("Request", "request-time"),
        ("Request", "throttle-time"),
    }
    assert [(group, name) for group, entity, name in found if not entity] == [("Request", "exempt-request-time")]
    assert -60 <= of_client["ControllerMutation", "tokens"] <= -30  # 11 - 71, and one more in each second
    assert 1.2 <= of_client["ControllerMutation", "mutation-rate"] <= 2.4  # 71 in 30 seconds and the time since
    assert 4000 <= of_client["Produce", "byte-rate"] <= 10_000
