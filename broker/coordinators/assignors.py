"""Who of a consumer group reads which partitions: the assignors `uniform` and `range`.

RULES    1. Every partition of a topic that somebody subscribes to has exactly one owner, who subscribes to it.
         2. The result depends on nothing but the arguments; ties go by instance id and member id.
         3. uniform moves as little as it can: a member keeps what it has unless somebody else has two partitions less
            and subscribes to it too. Members with the same subscription end at most one partition apart.
         4. range gives out runs of consecutive partitions, the same of every topic: what has the same key is read by
            one member where topics have as many partitions and members the same subscription.
NOT HERE When an assignment is made and how members come to it (`consumer_groups.py`, `reconciliation.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

Partitions = Mapping[bytes, frozenset[int]]
"""Partitions by topic id."""
TopicPartition = tuple[bytes, int]

MAX_PASSES: Final = 16
"""Over the pools of partitions; more only where subscriptions overlap in odd ways, for a little more balance."""


class Subscriber(NamedTuple):
    """A member as an assignor sees it: the topics that exist, and what it was to have so far."""

    member_id: str
    instance_id: str | None
    topics: frozenset[bytes]
    owned: Partitions


Assignor = Callable[[Sequence[Subscriber], Mapping[bytes, int]], dict[str, Partitions]]
"""Of the subscribers, and of every topic's number of partitions."""


def _in_order(subscribers: Iterable[Subscriber]) -> list[Subscriber]:
    """Static members first: their instance ids stay the same when they come back."""
    return sorted(subscribers, key=lambda one: (one.instance_id is None, one.instance_id or "", one.member_id))


# ---- range


def assign_range(subscribers: Sequence[Subscriber], counts: Mapping[bytes, int]) -> dict[str, Partitions]:
    """Runs of consecutive partitions."""
    members = _in_order(subscribers)
    readers: dict[bytes, list[str]] = {}
    for member in members:
        for topic_id in member.topics:
            readers.setdefault(topic_id, []).append(member.member_id)
    found: dict[str, dict[bytes, frozenset[int]]] = {member.member_id: {} for member in members}
    for topic_id in sorted(readers):
        share, extra = divmod(counts[topic_id], len(readers[topic_id]))
        start = 0
        for index, member_id in enumerate(readers[topic_id]):
            end = start + share + (index < extra)
            if end > start:
                found[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(found)


# ---- uniform


class _Pool:
    """All partitions that the same members may read."""

    def __init__(self, readers: tuple[int, ...]) -> None:
        self.readers = readers
        self.count = 0
        self.free: list[TopicPartition] = []
        self.held: dict[int, list[TopicPartition]] = {reader: [] for reader in readers}
        """By reader, what is given up first stands last."""


def assign_uniform(subscribers: Sequence[Subscriber], counts: Mapping[bytes, int]) -> dict[str, Partitions]:
    """As evenly as subscriptions allow, with as few moves as that takes."""
    members = _in_order(subscribers)
    pools = _pools(members, counts)
    loads = [0] * len(members)
    for pool in pools:
        for reader, held in pool.held.items():
            loads[reader] += len(held)
    for pool in pools:
        _give_out(pool, loads)
    for _ in range(MAX_PASSES):
        if not sum(_level(pool, loads) for pool in pools):
            break
    return _collect(members, pools)


def _pools(members: list[Subscriber], counts: Mapping[bytes, int]) -> list[_Pool]:
    """The pools, those with the most partitions for each reader first, with what members keep of them."""
    readers: dict[bytes, list[int]] = {}
    for index, member in enumerate(members):
        for topic_id in member.topics:
            readers.setdefault(topic_id, []).append(index)
    pools: dict[tuple[int, ...], _Pool] = {}
    for topic_id in sorted(readers):
        key = tuple(readers[topic_id])
        pool = pools.setdefault(key, _Pool(key))
        count = counts[topic_id]
        pool.count += count
        owners = {partition: index for index in reversed(key) for partition in members[index].owned.get(topic_id, ())}
        for partition in range(count):
            owner = owners.get(partition)
            (pool.free if owner is None else pool.held[owner]).append((topic_id, partition))
    return sorted(pools.values(), key=lambda pool: (-pool.count / len(pool.readers), len(pool.readers), pool.readers))


def _give_out(pool: _Pool, loads: list[int]) -> None:
    """Partitions that nobody has go to whoever has the least."""
    least = [(loads[reader], reader) for reader in pool.readers]
    heapify(least)
    for partition in pool.free:
        load, reader = heappop(least)
        pool.held[reader].append(partition)
        loads[reader] = load + 1
        heappush(least, (load + 1, reader))


def _level(pool: _Pool, loads: list[int]) -> int:
    """Move partitions from those who have the most to those who have the least; how many.

    Who gives stays at or above all who take, so that its old place in `least` does not matter, nor theirs in `most`.
    """
    lowest, highest = min(loads[reader] for reader in pool.readers), max(loads[reader] for reader in pool.readers)
    if highest - lowest < 2:
        return 0
    least = [(loads[reader], reader) for reader in pool.readers]
    most = [(-loads[reader], -reader) for reader in pool.readers if pool.held[reader]]
    heapify(least)
    heapify(most)
    moved = 0
    while most:
        giver = -heappop(most)[1]
        load, taker = heappop(least)
        if loads[giver] - load < 2:
            break
        pool.held[taker].append(pool.held[giver].pop())
        loads[giver] -= 1
        loads[taker] += 1
        moved += 1
        heappush(least, (loads[taker], taker))
        if pool.held[giver]:
            heappush(most, (-loads[giver], -giver))
    return moved


def _collect(members: list[Subscriber], pools: list[_Pool]) -> dict[str, Partitions]:
    found: list[dict[bytes, set[int]]] = [{} for _ in members]
    for pool in pools:
        for reader, held in pool.held.items():
            topics = found[reader]
            for topic_id, partition in held:
                topics.setdefault(topic_id, set()).add(partition)
    return {
        member.member_id: {topic_id: frozenset(partitions) for topic_id, partitions in topics.items()}
        for member, topics in zip(members, found, strict=True)
    }


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
