"""Searches by key and header in a running broker, on both storage engines."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.cluster import free_ports
from barnabas.embedded import Broker
from tests.support.waiting import until

RECORDS = 3000
KEYS = 100


class Topic:
    """A topic of a broker with a metrics listener."""

    def __init__(self, broker: Broker, port: int, name: str) -> None:
        self.broker = broker
        self.port = port
        self.name = name

    def write(self, first: int, transactional_id: str | None = None) -> None:
        """Write RECORDS records; with a transactional id the transaction is aborted."""
        settings = {"bootstrap.servers": self.broker.bootstrap, "compression.type": "zstd"}
        if transactional_id is not None:
            settings["transactional.id"] = transactional_id
        producer = Producer(settings)
        if transactional_id is not None:
            producer.init_transactions(60)
            producer.begin_transaction()
        for number in range(first, first + RECORDS):
            headers: list[tuple[str, str | bytes | None]] = [("id", b"%d" % number)]
            producer.produce(self.name, key=b"k%d" % (number % KEYS), value=b"v%d" % number, headers=headers)
        assert producer.flush(60) == 0
        if transactional_id is not None:
            producer.abort_transaction(60)

    def search(self, query: str) -> dict[str, Any] | None:
        """The answer, if the index is complete."""
        url = f"http://127.0.0.1:{self.port}/search?topic={self.name}&{query}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            page: dict[str, Any] = json.load(answer)
        is_complete = all(0 < part["to_offset"] == part["end_offset"] for part in page["partitions"])
        return page if is_complete else None

    def values(self, query: str) -> list[str]:
        """The values that are found, the newest first, after the index is complete."""
        page = until(lambda: self.search(query), "a complete index")
        return [record["value"] for record in page["records"]]


@pytest.fixture(scope="module")
def broker() -> Iterator[tuple[Broker, int]]:
    (port,) = free_ports(1)
    with Broker(settings={"barnabas.metrics.listener": f"HTTP://127.0.0.1:{port}"}) as running:
        yield running, port


@pytest.fixture(params=["segments", "commitlog"])
def topic(broker: tuple[Broker, int], request: pytest.FixtureRequest) -> Topic:
    running, port = broker
    config = {"barnabas.index.keys": "key,header:id", "barnabas.storage.engine": request.param}
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    (created,) = admin.create_topics([NewTopic(request.param, 2, 1, config=config)]).values()
    created.result(30)
    return Topic(running, port, request.param)


def test_committed_records_are_found_also_after_a_kill(topic: Topic) -> None:
    topic.write(0)
    topic.write(RECORDS, f"aborted-{topic.name}")
    expected = [f"v{number}" for number in range(RECORDS - KEYS + 7, 0, -KEYS)]
    assert topic.values("key=k7&max=10000") == expected
    assert topic.values("header=id=1234") == ["v1234"]
    assert topic.values(f"header=id={RECORDS + 1}") == []
    topic.broker.kill()
    topic.broker.restart()
    topic.write(2 * RECORDS)
    later = [f"v{number}" for number in range(3 * RECORDS - KEYS + 7, 2 * RECORDS, -KEYS)]
    assert topic.values("key=k7&max=10000") == later + expected
    assert topic.values("key=absent") == []


def test_a_topic_without_index_is_refused(broker: tuple[Broker, int]) -> None:
    running, port = broker
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    (created,) = admin.create_topics([NewTopic("plain", 1, 1)]).values()
    created.result(30)
    with pytest.raises(urllib.error.HTTPError) as caught:
        Topic(running, port, "plain").search("key=k")
    assert caught.value.code == 400
    assert "barnabas.index.keys is empty" in caught.value.read().decode()
