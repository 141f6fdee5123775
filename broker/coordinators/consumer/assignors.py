"""Who of a consumer group reads which partitions: the assignors `uniform` and `range`.

RULES    1. Every partition of a topic that somebody subscribes to has exactly one owner, who subscribes to it.
         2. The result depends on nothing but the arguments; ties go by instance id and member id.
         3. uniform moves as little as it can: a member keeps what it has unless somebody else has two partitions less
            and subscribes to it too. Members with the same subscription end at most one partition apart.
         4. range gives out runs of consecutive partitions, the same of every topic: what has the same key is read by
            one member where topics have as many partitions and members the same subscription.
NOT HERE When an assignment is made and how members come to it (`consumer_group_heartbeat.py`, `reconciliation.py`).
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

    def __init__(self, readers: list[int], kept: Sequence[Partitions]) -> None:
        self.readers = readers
        self.topics: list[bytes] = []
        self.count = 0
        self.free: list[TopicPartition] = []
        self.drafts: dict[int, list[TopicPartition]] = {}
        """What readers have of it now, of those who were looked at; what is given up first stands last."""
        self._kept = kept

    def held(self, reader: int) -> list[TopicPartition]:
        """What a reader has of it, to be changed."""
        draft = self.drafts.get(reader)
        if draft is None:
            kept = self._kept[reader]
            draft = [(topic_id, one) for topic_id in self.topics for one in sorted(kept.get(topic_id, ()))]
            self.drafts[reader] = draft
        return draft


def assign_uniform(subscribers: Sequence[Subscriber], counts: Mapping[bytes, int]) -> dict[str, Partitions]:
    """As evenly as subscriptions allow, with as few moves as that takes.

    Whose partitions stay the same keeps the very mapping: the cost is that of what changes, and little for each member.
    """
    members = _in_order(subscribers)
    kept, free = _kept(members, counts)
    pools = _pools(members, kept, free, counts)
    loads = [sum(map(len, partitions.values())) for partitions in kept]
    for pool in pools:
        _give_out(pool, loads)
    for _ in range(MAX_PASSES):
        if not sum(_level(pool, loads) for pool in pools):
            break
    return _collect(members, kept, pools)


def _kept(members: list[Subscriber], counts: Mapping[bytes, int]) -> tuple[list[Partitions], dict[bytes, list[int]]]:
    """What each member had that there is for it, and what nobody had of each topic that somebody reads."""
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
        if len(taken) < sum(map(len, shares)):  # some of it is another's too, or is not there
            _share_out(kept, owners[topic_id], topic_id, left)
        free[topic_id] = sorted(left - taken)
    return kept, free


def _share_out(kept: list[Partitions], owners: Iterable[int], topic_id: bytes, left: frozenset[int]) -> None:
    """Leave each partition of a topic to the first who has it."""
    for index in owners:
        mine = kept[index][topic_id] & left
        left -= mine
        others = {one: has for one, has in kept[index].items() if one != topic_id}
        kept[index] = {**others, topic_id: mine} if mine else others


def _pools(
    members: list[Subscriber], kept: list[Partitions], free: Mapping[bytes, list[int]], counts: Mapping[bytes, int]
) -> list[_Pool]:
    """The pools, those with the most partitions for each reader first."""
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


def _give_out(pool: _Pool, loads: list[int]) -> None:
    """Partitions that nobody has go to whoever has the least."""
    if not pool.free:
        return
    least = [(loads[reader], reader) for reader in pool.readers]
    heapify(least)
    for partition in pool.free:
        load, reader = least[0]
        pool.held(reader).append(partition)
        loads[reader] = load + 1
        heapreplace(least, (load + 1, reader))


def _level(pool: _Pool, loads: list[int]) -> int:
    """Move partitions from those who have the most to those who have the least; how many.

    Who gives stays at or above all who take, so that its old place in `least` does not matter, nor theirs in `most`.
    """
    of_readers = [loads[reader] for reader in pool.readers]
    if max(of_readers) - min(of_readers) < 2:
        return 0
    least = list(zip(of_readers, pool.readers, strict=True))
    most = [(-load, -reader) for load, reader in least]
    heapify(least)
    heapify(most)
    moved = 0
    while most:
        giver = -heappop(most)[1]
        held = pool.held(giver)
        if not held:
            continue
        load, taker = least[0]
        if loads[giver] - load < 2:
            break
        pool.held(taker).append(held.pop())
        loads[giver] -= 1
        loads[taker] += 1
        moved += 1
        heapreplace(least, (loads[taker], taker))
        heappush(most, (-loads[giver], -giver))
    return moved


def _collect(members: list[Subscriber], kept: list[Partitions], pools: list[_Pool]) -> dict[str, Partitions]:
    found = list(kept)
    for pool in pools:
        topics = frozenset(pool.topics)
        for reader, held in pool.drafts.items():
            drafted: dict[bytes, set[int]] = {}
            for topic_id, partition in held:
                drafted.setdefault(topic_id, set()).add(partition)
            others = {topic_id: has for topic_id, has in found[reader].items() if topic_id not in topics}
            found[reader] = others | {topic_id: frozenset(has) for topic_id, has in drafted.items()}
    return {member.member_id: partitions for member, partitions in zip(members, found, strict=True)}


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
