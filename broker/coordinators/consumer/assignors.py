"""The server-side assignors `uniform` and `range`.

RULES    1. Every partition of a subscribed topic has exactly one owner, which subscribes to it.
         2. The result depends on the arguments only; ties are broken by instance id and member id.
         3. uniform moves as few partitions as possible: a member keeps its partitions unless another subscriber has two fewer.
            Members with equal subscriptions differ by at most one partition.
         4. range assigns runs of consecutive partitions, the same for each topic: partitions of co-partitioned topics go to
            one member where subscriptions and partition counts are equal.
NOT HERE When an assignment is computed (`consumer_group_heartbeat.py`), reconciliation (`reconciliation.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain
from typing import Final, NamedTuple

Partitions = Mapping[bytes, frozenset[int]]
"""Partitions by topic id."""
TopicPartition = tuple[bytes, int]

MAX_PASSES: Final = 16
"""Balancing passes over the pools; more than one is needed only for overlapping subscriptions."""


class Subscriber(NamedTuple):
    """A member: subscribed existing topics, and its current target."""

    member_id: str
    instance_id: str | None
    topics: frozenset[bytes]
    owned: Partitions


Assignor = Callable[[Sequence[Subscriber], Mapping[bytes, int]], dict[str, Partitions]]
"""(subscribers, partition counts by topic) -> partitions by member id."""


def _sorted(subscribers: Iterable[Subscriber]) -> list[Subscriber]:
    """Static members first: their instance ids survive a restart."""
    return sorted(subscribers, key=lambda one: (one.instance_id is None, one.instance_id or "", one.member_id))


# ---- range


def assign_range(subscribers: Sequence[Subscriber], counts: Mapping[bytes, int]) -> dict[str, Partitions]:
    """Runs of consecutive partitions."""
    members = _sorted(subscribers)
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
    """The partitions with the same set of subscribers."""

    def __init__(self, readers: list[int], kept: Sequence[Partitions]) -> None:
        self.readers = readers
        self.topics: list[bytes] = []
        self.count = 0
        self.free: list[TopicPartition] = []
        self.drafts: dict[int, list[TopicPartition]] = {}
        """The new partitions of the readers that were changed; the last one is moved first."""
        self._kept = kept

    def assigned(self, reader: int) -> list[TopicPartition]:
        """What a reader has of it, to be changed."""
        draft = self.drafts.get(reader)
        if draft is None:
            kept = self._kept[reader]
            draft = [(topic_id, one) for topic_id in self.topics for one in sorted(kept.get(topic_id, ()))]
            self.drafts[reader] = draft
        return draft


def assign_uniform(subscribers: Sequence[Subscriber], counts: Mapping[bytes, int]) -> dict[str, Partitions]:
    """A balanced assignment with few moves.

    A member without changes keeps the same mapping object: the cost depends on the changes.
    """
    members = _sorted(subscribers)
    kept, free = _kept(members, counts)
    pools = _pools(members, kept, free, counts)
    loads = [sum(map(len, partitions.values())) for partitions in kept]
    for pool in pools:
        _assign_free(pool, loads)
    for _ in range(MAX_PASSES):
        if not sum(_balance(pool, loads) for pool in pools):
            break
    return _collect(members, kept, pools)


def _kept(members: list[Subscriber], counts: Mapping[bytes, int]) -> tuple[list[Partitions], dict[bytes, list[int]]]:
    """The current partitions of each member that stay valid, and the unassigned partitions of each topic."""
    kept: list[Partitions] = []
    owners: dict[bytes, list[int]] = {}
    for index, (_, _, topics, owned) in enumerate(members):
        kept.append(owned if owned.keys() <= topics else {one: owned[one] for one in owned if one in topics})
        for topic_id in kept[index]:
            owners.setdefault(topic_id, []).append(index)
    free = {}
    for topic_id in frozenset().union(*{member.topics for member in members}):
        shares = [kept[index][topic_id] for index in owners.get(topic_id, ())]
        left = frozenset(range(counts[topic_id]))
        taken = left.intersection(frozenset().union(*shares))
        if len(taken) < sum(map(len, shares)):  # duplicate owners, or partitions that do not exist
            _keep_first_owner(kept, owners[topic_id], topic_id, left)
        free[topic_id] = sorted(left - taken)
    return kept, free


def _keep_first_owner(kept: list[Partitions], owners: Iterable[int], topic_id: bytes, left: frozenset[int]) -> None:
    """Keep each partition of a topic at its first owner."""
    for index in owners:
        own = kept[index][topic_id] & left
        left -= own
        others = {one: has for one, has in kept[index].items() if one != topic_id}
        kept[index] = {**others, topic_id: own} if own else others


def _pools(
    members: list[Subscriber], kept: list[Partitions], free: Mapping[bytes, list[int]], counts: Mapping[bytes, int]
) -> list[_Pool]:
    """The pools, sorted by partitions per reader, highest first."""
    subscriptions: dict[frozenset[bytes], list[int]] = {}
    for index, member in enumerate(members):
        subscriptions.setdefault(member.topics, []).append(index)
    pools: dict[tuple[frozenset[bytes], ...], _Pool] = {}
    for topic_id in sorted(free):
        key = tuple(topics for topics in subscriptions if topic_id in topics)
        pool = pools.get(key)
        if pool is None:
            pool = pools[key] = _Pool(sorted(chain.from_iterable(subscriptions[topics] for topics in key)), kept)
        pool.topics.append(topic_id)
        pool.count += counts[topic_id]
        pool.free += [(topic_id, partition) for partition in free[topic_id]]
    return sorted(pools.values(), key=lambda pool: (-pool.count / len(pool.readers), len(pool.readers), pool.readers))


def _assign_free(pool: _Pool, loads: list[int]) -> None:
    """Assign each free partition to the reader with the lowest load."""
    if not pool.free:
        return
    least = [(loads[reader], reader) for reader in pool.readers]
    heapify(least)
    for partition in pool.free:
        load, reader = least[0]
        pool.assigned(reader).append(partition)
        loads[reader] = load + 1
        heapreplace(least, (load + 1, reader))


def _balance(pool: _Pool, loads: list[int]) -> int:
    """Move partitions from the highest to the lowest loads; returns the number of moves.

    A source stays at or above every destination, so stale heap entries do not matter.
    """
    of_readers = [loads[reader] for reader in pool.readers]
    if max(of_readers) - min(of_readers) < 2:
        return 0
    least = list(zip(of_readers, pool.readers, strict=True))
    most = [(-load, -reader) for load, reader in least]
    heapify(least)
    heapify(most)
    reconciled = 0
    while most:
        source = -heappop(most)[1]
        assigned = pool.assigned(source)
        if not assigned:
            continue
        load, destination = least[0]
        if loads[source] - load < 2:
            break
        pool.assigned(destination).append(assigned.pop())
        loads[source] -= 1
        loads[destination] += 1
        reconciled += 1
        heapreplace(least, (loads[destination], destination))
        heappush(most, (-loads[source], -source))
    return reconciled


def _collect(members: list[Subscriber], kept: list[Partitions], pools: list[_Pool]) -> dict[str, Partitions]:
    found = list(kept)
    for pool in pools:
        topics = frozenset(pool.topics)
        for reader, assigned in pool.drafts.items():
            drafted: dict[bytes, set[int]] = {}
            for topic_id, partition in assigned:
                drafted.setdefault(topic_id, set()).add(partition)
            others = {topic_id: has for topic_id, has in found[reader].items() if topic_id not in topics}
            found[reader] = others | {topic_id: frozenset(has) for topic_id, has in drafted.items()}
    return {member.member_id: partitions for member, partitions in zip(members, found, strict=True)}


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
