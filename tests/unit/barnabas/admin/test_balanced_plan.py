"""Plans of replicas: balanced, on different racks, with few moves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.admin.partitions import balanced_plan
from barnabas.client.topic_partition import TopicPartition


@st.composite
def clusters(draw: st.DrawFn) -> tuple[dict[TopicPartition, list[int]], dict[int, str | None], int]:
    brokers = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6, unique=True))
    racks = {one: draw(st.sampled_from([None, "a", "b", "c"])) for one in brokers}
    count = draw(st.integers(1, len(brokers)))
    old = st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True)
    current = {TopicPartition("t", number): draw(old) for number in range(draw(st.integers(1, 12)))}
    return current, racks, count


@given(clusters())
def test_a_plan_is_valid_and_balanced(case: tuple[dict[TopicPartition, list[int]], dict[int, str | None], int]) -> None:
    current, brokers, count = case
    plan = balanced_plan(current, brokers, count)
    assert plan.keys() == current.keys()
    for replicas in plan.values():
        assert len(set(replicas)) == len(replicas) == count
        assert set(replicas) <= brokers.keys()
        assert len({brokers[one] for one in replicas}) == min(count, len(set(brokers.values())))


@given(st.integers(1, 5), st.integers(1, 20))
def test_without_racks_loads_differ_by_one_and_leaders_too(count: int, partitions: int) -> None:
    current = {TopicPartition("t", number): [99] for number in range(partitions)}
    plan = balanced_plan(current, dict.fromkeys(range(5)), count)
    loads = Counter(dict.fromkeys(range(5), 0))
    loads.update(one for replicas in plan.values() for one in replicas)
    assert max(loads.values()) - min(loads.values()) <= 1


@given(clusters())
def test_loads_differ_by_one_wherever_replicas_are_now(
    case: tuple[dict[TopicPartition, list[int]], dict[int, str | None], int],
) -> None:
    current, brokers, count = case
    plan = balanced_plan(current, dict.fromkeys(brokers), count)
    loads = Counter(dict.fromkeys(brokers, 0))
    loads.update(one for replicas in plan.values() for one in replicas)
    assert max(loads.values()) - min(loads.values()) <= 1


@pytest.mark.parametrize("partitions", [3, 12, 50])
def test_a_new_broker_gets_its_share_and_nothing_else_moves(partitions: int) -> None:
    current = {
        TopicPartition("t", number): [(number + place) % 3 for place in range(3)] for number in range(partitions)
    }
    plan = balanced_plan(current, dict.fromkeys(range(4)))
    loads, leads = Counter(one for new in plan.values() for one in new), Counter(new[0] for new in plan.values())
    assert sum(len(set(new).difference(current[tp])) for tp, new in plan.items()) == loads[3] == partitions * 3 // 4
    assert max(loads.values()) - min(loads.values()) <= 1
    assert max(leads.values()) - min(leads[broker] for broker in range(4)) <= 1


def test_a_balanced_cluster_stays_as_it_is() -> None:
    current = {TopicPartition("t", number): [1 + number % 3, 1 + (number + 1) % 3] for number in range(6)}
    assert balanced_plan(current, dict.fromkeys((1, 2, 3))) == current


def test_a_removed_broker_loses_only_its_replicas() -> None:
    current = {TopicPartition("t", 0): [1, 2], TopicPartition("t", 1): [2, 3], TopicPartition("t", 2): [3, 1]}
    plan = balanced_plan(current, dict.fromkeys((1, 2, 4)))
    assert {tp: set(new) for tp, new in plan.items()} == {
        TopicPartition("t", 0): {1, 2},
        TopicPartition("t", 1): {2, 4},
        TopicPartition("t", 2): {1, 4},
    }
