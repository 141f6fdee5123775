"""Metrics over all nodes of a cluster: each controller, partition and group is on one node; the lag knows other leaders."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import confluent_kafka
import confluent_kafka.admin
import pytest

from barnabas.cluster import Cluster
from protocol.errors import ErrorCode
from tests.process.test_metrics_page import Page
from tests.process.test_unusable_dynamic_settings import default
from tests.support.raw_client import RawClient
from tests.support.waiting import until

pytestmark = pytest.mark.long

TOPIC, GROUP, PARTITIONS, COMMITTED = "spread", "readers", 6, 2
RECORDS = 5


@pytest.fixture(scope="module")
def pages() -> Iterator[list[Page]]:
    """Of three nodes that lead two partitions each, and one group."""
    with Cluster(3, settings={"barnabas.metrics.listener": "HTTP://127.0.0.1:0"}) as cluster:
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": cluster.bootstrap})
        topic = confluent_kafka.admin.NewTopic(TOPIC, PARTITIONS, 3, config={"min.insync.replicas": "3"})
        for created in admin.create_topics([topic]).values():
            created.result(60)
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap})
        for index in range(PARTITIONS):
            for _ in range(RECORDS):
                producer.produce(TOPIC, b"value", partition=index)
        assert producer.flush(60) == 0
        consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": GROUP})
        places = [confluent_kafka.TopicPartition(TOPIC, index, COMMITTED) for index in range(PARTITIONS)]
        consumer.commit(offsets=places, asynchronous=False)
        consumer.close()
        yield [Page(broker, port_of(broker.log())) for broker in cluster.nodes.values()]


def port_of(log: str) -> int:
    found = re.search(r"metrics are at http://127\.0\.0\.1:(\d+)/metrics", log)
    assert found is not None
    return int(found[1])


def summed(pages: list[Page], name: str, **labels: str) -> float:
    return sum(value for page in pages for value in page.values(name, **labels))


def test_there_is_one_active_controller(pages: list[Page]) -> None:
    assert summed(pages, "kafka_controller_kafkacontroller_activecontrollercount") == 1
    leaders = {page.values("kafka_server_raftmetrics_current_leader")[0] for page in pages}
    assert len(leaders) == 1


def test_each_partition_is_shown_by_its_leader_and_each_topic_once(pages: list[Page]) -> None:
    assert summed(pages, "kafka_topic_partition_current_offset", topic=TOPIC) == PARTITIONS * RECORDS
    assert summed(pages, "kafka_topic_partitions", topic=TOPIC) == PARTITIONS
    assert summed(pages, "kafka_server_replicamanager_underreplicatedpartitions") == 0


def test_followers_are_counted_apart(pages: list[Page]) -> None:
    name = "kafka_server_brokertopicmetrics"
    sent = sum(page.values(f"{name}_replicationbytesout_total")[0] for page in pages)
    assert sent > 0
    until(
        lambda: sum(page.values(f"{name}_replicationbytesin_total")[0] for page in pages) > 0, "followers have records"
    )
    assert summed(pages, "kafka_network_requestmetrics_requests_total", request="FetchFollower") > 0


def test_the_groups_coordinator_knows_the_ends_of_other_leaders(pages: list[Page]) -> None:
    lag = "kafka_consumergroup_lag"
    expected = PARTITIONS * (RECORDS - COMMITTED)
    until(lambda: summed(pages, lag, consumergroup=GROUP) == expected, "the lag of all partitions")
    (coordinator,) = [page for page in pages if page.values(lag, consumergroup=GROUP)]
    assert len(coordinator.values("kafka_consumergroup_group_lag_seconds", group=GROUP)) == PARTITIONS


def test_a_node_is_needed_if_all_replicas_must_be_in_sync(pages: list[Page]) -> None:
    status, body = pages[0].get("/safe-to-stop")
    assert status == 503
    assert [one["topic"] for one in json.loads(body)["partitions"]].count(TOPIC) == PARTITIONS


def test_the_number_of_fetchers_per_leader_is_changed_at_runtime(pages: list[Page]) -> None:
    def peers() -> float:
        return summed(pages, "kafka_server_socketservermetrics_connections", clientSoftwareName="barnabas")

    def set_fetchers(count: int) -> None:
        with RawClient(pages[0].broker.bootstrap) as client:
            altered = client.ask(default("num.replica.fetchers", str(count)), 1)
        assert altered.responses[0].error_code == ErrorCode.NONE

    leaders_of_each_node = len(pages) - 1
    more = len(pages) * leaders_of_each_node
    until(lambda: peers() == peers(), "the connections are open that the pages themselves need")
    before = peers()
    set_fetchers(2)
    until(lambda: peers() == before + more, "each follower has another connection to each leader")
    producer = confluent_kafka.Producer({"bootstrap.servers": pages[0].broker.bootstrap, "acks": "all"})
    for index in range(PARTITIONS):
        producer.produce(TOPIC, b"later", partition=index)
    assert producer.flush(60) == 0
    set_fetchers(1)
    until(lambda: peers() == before, "the connections of removed fetchers are closed")
