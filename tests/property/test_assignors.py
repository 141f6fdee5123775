"""The consumer group assignors, with random members, subscriptions, topics and previous assignments."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from broker.coordinators.consumer.assignors import ASSIGNORS, Partitions, Subscriber, assign_range, assign_uniform

TOPICS = [bytes([number]) * 16 for number in range(4)]
counts_of_topics = st.fixed_dictionaries({topic: st.integers(1, 9) for topic in TOPICS})
subscriptions = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=3),
    st.tuples(st.frozensets(st.sampled_from(TOPICS)), st.none() | st.text("ij", min_size=1, max_size=3)),
    min_size=1,
    max_size=7,
)


def members(
    given_: Mapping[str, tuple[frozenset[bytes], str | None]], owned: Mapping[str, Partitions] | None = None
) -> list[Subscriber]:
    return [
        Subscriber(member_id, instance_id, topics, (owned or {}).get(member_id, {}))
        for member_id, (topics, instance_id) in given_.items()
    ]


def partitions_of(assigned: Partitions) -> set[tuple[bytes, int]]:
    return {(topic, partition) for topic, partitions in assigned.items() for partition in partitions}


@given(subscriptions, counts_of_topics, st.sampled_from(sorted(ASSIGNORS)))
def test_every_partition_has_one_subscribed_owner(given_, counts, name) -> None:  # type: ignore[no-untyped-def]
    assigned = ASSIGNORS[name](members(given_), counts)
    wanted = {topic for topics, _ in given_.values() for topic in topics}
    everything = [one for found in assigned.values() for one in partitions_of(found)]
    assert sorted(everything) == sorted((topic, part) for topic in wanted for part in range(counts[topic]))
    assert all(topic in given_[member_id][0] for member_id, found in assigned.items() for topic in found)
    is_certain = len({instance or member_id for member_id, (_, instance) in given_.items()}) == len(given_)
    assert not is_certain or ASSIGNORS[name](members(dict(reversed(given_.items()))), counts) == assigned


@given(st.integers(1, 9), st.integers(1, 9), counts_of_topics)
def test_uniform_is_balanced_with_minimal_moves(before, after, counts) -> None:  # type: ignore[no-untyped-def]
    everyone = {f"m{number}": (frozenset(TOPICS), None) for number in range(max(before, after))}
    first = assign_uniform(members(dict(list(everyone.items())[:before])), counts)
    second = assign_uniform(members(dict(list(everyone.items())[:after]), first), counts)
    for assigned in (first, second):
        loads = [len(partitions_of(found)) for found in assigned.values()]
        assert max(loads) - min(loads) <= 1
    least, extra = divmod(sum(counts.values()), after)
    had = sorted((len(partitions_of(first.get(one, {}))) for one in second), reverse=True)
    most_kept = sum(min(load, least + (index < extra)) for index, load in enumerate(had))
    assert sum(len(partitions_of(second[one]) & partitions_of(first.get(one, {}))) for one in second) == most_kept


@given(subscriptions, counts_of_topics)
def test_a_second_uniform_assignment_changes_nothing(given_, counts) -> None:  # type: ignore[no-untyped-def]
    first = assign_uniform(members(given_), counts)
    assert assign_uniform(members(given_, first), counts) == first


@given(st.integers(1, 6), st.integers(1, 9))
def test_range_assigns_the_same_partitions_of_every_topic(count, partitions) -> None:  # type: ignore[no-untyped-def]
    everyone = {f"m{number}": (frozenset(TOPICS), None) for number in range(count)}
    for found in assign_range(members(everyone), dict.fromkeys(TOPICS, partitions)).values():
        runs = {tuple(sorted(found.get(topic, ()))) for topic in TOPICS}
        assert len(runs) == 1
        (run,) = runs
        assert not run or run == tuple(range(run[0], run[-1] + 1))


def test_static_members_keep_their_range_under_other_member_ids() -> None:
    topics = frozenset(TOPICS[:1])
    before = assign_range([Subscriber("a", "i1", topics, {}), Subscriber("b", "i2", topics, {})], {TOPICS[0]: 4})
    after = assign_range([Subscriber("z", "i1", topics, {}), Subscriber("b", "i2", topics, {})], {TOPICS[0]: 4})
    assert before["a"] == after["z"]
    assert before["b"] == after["b"]
