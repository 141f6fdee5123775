"""The admin verbs at three nodes: requests reach the node that answers them, and replicas really move."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from unittest import mock

import pytest

import barnabas
from barnabas.admin.client import GROUP, Client
from tests.cli.running import Verbs
from tests.support.librdkafka import produce
from tests.support.waiting import until

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def verbs() -> Iterator[Verbs]:
    with barnabas.Cluster(3) as cluster:
        found = Verbs(cluster.bootstrap)
        found.rows("topics create spread -p 9 -r 1")
        found.rows("topics create kept -p 3 -r 3")
        yield found


def replicas(verbs: Verbs, topic: str) -> list[list[int]]:
    [found] = verbs.rows(f"topics describe {topic}")
    return [part["replicas"] for part in found["partitions"]]


def leaders(verbs: Verbs, topic: str) -> list[int]:
    [found] = verbs.rows(f"topics describe {topic}")
    return [part["leader"] for part in found["partitions"]]


def test_offsets_are_of_all_leaders(verbs: Verbs) -> None:
    produce(verbs.bootstrap, "spread", [b"x"] * 90, partitions=9)
    [topic] = verbs.rows("topics describe spread --offsets")
    assert {part["leader"] for part in topic["partitions"]} == {1, 2, 3}
    assert [part["end"] for part in topic["partitions"]] == [10] * 9
    assert [row["deleted"] for row in verbs.rows("topics trim spread --offset 3 --execute")] == [3] * 9


def test_groups_of_all_coordinators_are_listed(verbs: Verbs) -> None:
    names = [f"group-{number}" for number in range(12)]
    for name in names:
        verbs.rows(f"groups reset {name} --topic spread --to-offset 5 --execute")
    rows = verbs.rows("groups list group-.*")
    assert sorted(row["name"] for row in rows) == sorted(names)
    assert {row["coordinator"] for row in rows} == {1, 2, 3}
    assert {row["lag"] for row in verbs.rows("groups lag")} == {45}


def test_groups_whose_coordinators_have_moved_are_found_again(verbs: Verbs) -> None:
    """The client remembers coordinators; here all of them are wrong."""
    names = [f"moved-{number}" for number in range(12)]
    for name in names:
        verbs.rows(f"groups reset {name} --topic spread --to-offset 5 --execute")
    coordinators = Client.coordinators

    def wrong(client: Client, groups: Iterable[str]) -> dict[str, int]:
        found = {name: node % 3 + 1 for name, node in coordinators(client, groups).items()}
        client._coordinators |= {(GROUP, name): node for name, node in found.items()}
        return found

    with mock.patch.object(Client, "coordinators", wrong):
        rows = verbs.rows(f"groups lag {' '.join(names)}")
    assert [(row["group"], row["lag"]) for row in rows] == [(name, 45) for name in names]


def test_each_broker_answers_for_itself(verbs: Verbs) -> None:
    assert [row["broker"] for row in verbs.rows("nodes dirs")] == [1, 2, 3]
    for broker in (1, 2, 3):
        [row] = verbs.rows(f"configs describe broker {broker} --key node.id")
        assert row["value"] == str(broker)
    verbs.rows("configs set broker 2 log.cleaner.threads=2")

    def threads() -> tuple[str, str]:
        [row] = verbs.rows("configs describe broker 2 --key log.cleaner.threads")
        return row["value"], row["source"]

    until(lambda: threads() == ("2", "broker"), "the broker has applied what the controller has written")
    [quorum] = verbs.rows("nodes quorum")
    assert sorted(one["id"] for one in quorum["replicas"] if one["role"] != "observer") == [1, 2, 3]


def test_replicas_move_and_leaders_follow(verbs: Verbs) -> None:
    before = replicas(verbs, "spread")
    plan = verbs.rows("partitions reassign spread --to 1,2 -r 2")
    assert replicas(verbs, "spread") == before
    assert {len(row["new_replicas"]) for row in plan} == {2}
    verbs.rows("partitions reassign spread --to 1,2 -r 2 --execute")
    until(lambda: not verbs.rows("partitions reassignments"), "the replicas have moved")
    assert all(sorted(one) == [1, 2] for one in replicas(verbs, "spread"))
    verbs.rows("partitions elect spread")
    until(lambda: leaders(verbs, "spread") == [one[0] for one in replicas(verbs, "spread")], "the first replicas lead")
    [topic] = verbs.rows("topics describe spread --offsets")
    assert [(part["start"], part["end"]) for part in topic["partitions"]] == [(3, 10)] * 9
    assert verbs.rows("partitions reassign spread --to 1,2 -r 2") == []
    assert verbs.rows("partitions reassign kept") == []


def test_top_sees_all_nodes(verbs: Verbs) -> None:
    [view] = verbs.rows("top --once --interval 100ms")
    assert [row["node"] for row in view["nodes"]] == [1, 2, 3]
    assert sum(row["leaders"] for row in view["nodes"]) == sum(row["partitions"] for row in view["topics"])
