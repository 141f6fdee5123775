"""The metrics page of a broker with traffic, as Prometheus reads it."""

from __future__ import annotations

import itertools
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin
import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from barnabas.cluster import free_ports
from barnabas.embedded import Broker
from tests.support.waiting import until

TOPIC, GROUP = "flights", "readers"
RECORDS, LEFT = 40, 10
VALUE = b"v" * 100
FIRST_MS = 1_700_000_000_000


class Page:
    """The metrics page of a broker."""

    def __init__(self, broker: Broker, port: int) -> None:
        self.broker = broker
        self.port = port

    def get(self, path: str, accept: str = "") -> tuple[int, str]:
        """Status and body."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers={"Accept": accept})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def families(self, query: str = "") -> dict[str, Metric]:
        """The families of the text format, by name."""
        status, text = self.get(f"/metrics{query}")
        assert status == 200
        return {family.name: family for family in read_text(text)}

    def values(self, name: str, **labels: str) -> list[float]:
        """The values of the samples with a name and these labels."""
        return [
            sample.value
            for family in self.families().values()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]


def produce(bootstrap: str) -> confluent_kafka.Producer:
    """Writes the records; its producer stays connected."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        producer.produce(TOPIC, VALUE, partition=0, timestamp=FIRST_MS + number * 1000)
    assert producer.flush(30) == 0
    return producer


def consume(bootstrap: str) -> None:
    """Reads all records but LEFT, commits, and stays as a member."""
    settings = {"bootstrap.servers": bootstrap, "group.id": GROUP, "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer({**settings, "enable.auto.commit": False})
    consumer.subscribe([TOPIC])
    read = 0
    while read < RECORDS:
        read += len(consumer.consume(RECORDS - read, 1.0))
    offset = confluent_kafka.TopicPartition(TOPIC, 0, RECORDS - LEFT)
    consumer.commit(offsets=[offset], asynchronous=False)
    consumer.close()


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """Of a broker with records, and with a group that has read most of them."""
    (port,) = free_ports(1)
    settings = {"barnabas.metrics.listener": f"HTTP://127.0.0.1:{port}", "group.initial.rebalance.delay.ms": 0}
    with Broker(settings=settings) as broker:
        producer = produce(broker.bootstrap)
        consume(broker.bootstrap)
        yield Page(broker, port)
        del producer


def test_both_formats_are_valid(page: Page) -> None:
    status, text = page.get("/metrics", "application/openmetrics-text;version=1.0.0")
    assert status == 200
    openmetrics = {family.name for family in read_openmetrics(text)}
    assert {name.removesuffix("_total") for name in page.families()} >= openmetrics
    assert len(openmetrics) > 50


def test_records_and_bytes_are_counted_by_topic(page: Page) -> None:
    name = "kafka_server_brokertopicmetrics"
    assert page.values(f"{name}_messagesin_total", topic=TOPIC) == [RECORDS]
    (bytes_in,), (bytes_out,) = (page.values(f"{name}_bytes{way}_total", topic=TOPIC) for way in ("in", "out"))
    assert bytes_in > RECORDS * len(VALUE)
    assert bytes_out >= bytes_in
    found = page.families()[f"{name}_bytesin"].samples
    assert max(sample.value for sample in found) == sum(sample.value for sample in found if not sample.labels)


def test_requests_are_counted_by_api_with_their_times(page: Page) -> None:
    name = "kafka_network_requestmetrics"
    assert sum(page.values(f"{name}_requests_total", request="Produce")) > 0
    (count,) = page.values(f"{name}_totaltimems_count", request="FetchConsumer")
    (again,) = page.values("barnabas_request_duration_seconds_count", api="FetchConsumer", phase="total")
    assert count == again > 0
    (median_ms,) = page.values(f"{name}_totaltimems", request="Produce", quantile="0.50")
    assert 0 < median_ms < 10_000


def test_an_error_is_counted_once(page: Page) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": page.broker.bootstrap})
    (created,) = admin.create_topics([confluent_kafka.admin.NewTopic(TOPIC, 1, 1)]).values()
    with pytest.raises(confluent_kafka.KafkaException, match="TOPIC_ALREADY_EXISTS"):
        created.result(30)
    name = "kafka_network_requestmetrics_errors_total"
    assert page.values(name, request="CreateTopics", error="TOPIC_ALREADY_EXISTS") == [1]
    assert page.values(name, request="CreateTopics", error="NONE") == [0]


def test_a_node_with_single_replicas_is_ready_and_not_safe_to_stop(page: Page) -> None:
    assert page.get("/healthz") == (200, '{"status": "ok"}\n')
    until(lambda: page.get("/readyz")[0] == 200, "the broker is ready")
    status, body = page.get("/safe-to-stop")
    answer = json.loads(body)
    assert status == 503
    assert {"topic": TOPIC, "partition": 0, "in_sync": [1], "min_insync_replicas": 1} in answer["partitions"]
    assert answer["count"] >= 1


def test_unknown_names_are_refused(page: Page) -> None:
    assert page.get("/metrics?names=x")[0] == 400


def test_the_lag_of_a_group_in_records_and_in_seconds(page: Page) -> None:
    """The first record that is not committed has the timestamp of its number."""
    of_partition = {"topic": TOPIC, "partition": "0"}
    assert page.values("kafka_topic_partition_current_offset", **of_partition) == [RECORDS]
    of_group = {"consumergroup": GROUP, **of_partition}
    assert page.values("kafka_consumergroup_current_offset", **of_group) == [RECORDS - LEFT]
    assert page.values("kafka_consumergroup_lag", **of_group) == [LEFT]
    assert page.values("kafka_consumergroup_lag_sum", consumergroup=GROUP, topic=TOPIC) == [LEFT]
    (behind_s,) = page.values("kafka_consumergroup_group_lag_seconds", group=GROUP, **of_partition)
    written_s = (FIRST_MS + (RECORDS - LEFT) * 1000) / 1000
    assert behind_s == pytest.approx(time.time() - written_s, abs=60)
    assert page.values("kafka_consumergroup_group_max_lag_seconds", group=GROUP)[0] >= behind_s
    assert page.values("barnabas_consumergroup_catch_up_seconds", consumergroup=GROUP) == [float("inf")]


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_the_option_metrics_opens_the_page(host: str) -> None:
    with Broker(arguments=["--metrics", f"{host}:0"]) as broker:
        found = re.search(r"metrics are at (\S+)/metrics", broker.log())
        assert found is not None
        assert found[1].startswith(f"http://{host}:")
        with urllib.request.urlopen(f"{found[1]}/healthz", timeout=30) as answer:
            assert answer.status == 200


def documented() -> set[str]:
    """The names in docs/metrics.md and docs/quotas.md; `a_{b,c}_d` means several."""
    text = "".join((Path(__file__).parents[2] / "docs" / f"{name}.md").read_text() for name in ("metrics", "quotas"))
    found = set()
    for span in re.findall(r"`((?:[A-Za-z0-9_]|\{[a-z0-9_,]+\})+)`", text):
        choices = [part.split(",") for part in re.split(r"[{}]", span)]
        found |= {"".join(one) for one in itertools.product(*choices)}
    return found


def test_every_metric_of_the_broker_is_documented(page: Page) -> None:
    """Client metrics have a page of their own, and so have quotas, which this broker has none of."""
    names = {f"{name}_total" if family.type == "counter" else name for name, family in page.families().items()}
    assert names - documented() == set()
