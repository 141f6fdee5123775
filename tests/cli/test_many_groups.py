"""`groups lag`, `groups describe` and `top` ask for many groups at once, with the results of asking for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from kafka import KafkaConsumer

import barnabas
from barnabas.admin.client import Client
from barnabas.client.topic_partition import TopicPartition
from tests.cli.running import Verbs
from tests.support.librdkafka import create_topic, produce

GROUPS = 250
BATCHES = 3
"""Of at most 100 groups."""


@pytest.fixture(scope="module")
def broker() -> Iterator[barnabas.Broker]:
    with barnabas.Broker() as found:
        create_topic(found.bootstrap, "flights", partitions=2)
        create_topic(found.bootstrap, "gone")
        produce(found.bootstrap, "flights", [b"x"] * 20, partitions=2)
        from barnabas.admin.groups import commit_offsets

        with Client({"bootstrap_servers": [found.bootstrap]}) as client:
            for number in range(GROUPS):
                commit_offsets(client, f"g{number}", {TopicPartition("flights", number % 2): number % 10})
            commit_offsets(client, "g0", {TopicPartition("gone", 0): 7})
        yield found


@pytest.fixture
def verbs(broker: barnabas.Broker) -> Verbs:
    return Verbs(broker.bootstrap)


@pytest.fixture
def requests() -> Iterator[Counter[str]]:
    """How many requests of each kind the verbs send."""
    found: Counter[str] = Counter()
    ask = Client._ask

    def counted(client: Client, request: Any, node: int) -> Any:
        found[type(request).__name__.removesuffix("Request")] += 1
        return ask(client, request, node)

    with mock.patch.object(Client, "_ask", counted):
        yield found


def test_the_lag_of_all_groups_needs_a_few_requests(verbs: Verbs, requests: Counter[str]) -> None:
    rows = {row["group"]: row["lag"] for row in verbs.rows("groups lag")}
    assert rows == {f"g{number}": 10 - number % 10 for number in range(GROUPS)}
    assert requests == {
        "ListGroups": 1,
        "FindCoordinator": 1,
        "ConsumerGroupDescribe": BATCHES,
        "DescribeGroups": BATCHES,
        "OffsetFetch": BATCHES,
        "Metadata": 2,
        "ListOffsets": 1,
    }


def test_top_asks_for_the_offsets_of_groups_in_batches(verbs: Verbs, requests: Counter[str]) -> None:
    [view] = verbs.rows("top --once --interval 100ms")
    assert {row["group"]: row["lag"] for row in view["groups"]} == {
        f"g{number}": 10 - number % 10 for number in range(GROUPS)
    }
    assert (requests["OffsetFetch"], requests["FindCoordinator"]) == (2 * BATCHES, 1)


def test_a_group_alone_has_the_rows_that_it_has_among_many(verbs: Verbs) -> None:
    verbs.rows("topics delete gone")
    consumer = KafkaConsumer("flights", bootstrap_servers=verbs.bootstrap, group_id="g1", client_id="reader")
    try:
        next(consumer)
        consumer.commit()
        names = [f"g{number}" for number in range(0, GROUPS, 50)] + ["g1"]
        together = verbs.rows(f"groups describe {' '.join(names)}")
        with (
            mock.patch("barnabas.admin.many_groups.describe_groups", return_value={}),
            mock.patch("barnabas.admin.many_groups.committed_offsets_of", return_value={}),
        ):
            assert verbs.rows(f"groups describe {' '.join(names)}") == together
    finally:
        consumer.close()
    assert {row["client_id"] for row in together[-1]["partitions"]} == {"reader"}
    assert [(row["topic"], row["lag"]) for row in together[0]["partitions"]] == [("flights", 10)]


def test_a_group_that_does_not_exist_is_named_and_the_others_are_shown(verbs: Verbs) -> None:
    ended = verbs.run("groups lag g2 nope g3 --json")
    assert (ended.code, ended.err) == (1, "barnabas: Cannot describe group nope: there is no group nope.\n")
    assert [line.split('"')[3] for line in ended.out.splitlines()] == ["g2", "g3"]


def test_a_cluster_that_is_too_old_for_batches_is_asked_for_each_group(verbs: Verbs, requests: Counter[str]) -> None:
    with mock.patch.object(Client, "coordinators", return_value={}):
        rows = verbs.rows("groups lag g4 g5")
    assert [row["lag"] for row in rows] == [6, 5]
    assert requests["OffsetFetch"] == requests["FindCoordinator"] == 2
