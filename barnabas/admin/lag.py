"""The lag of a group: how many records it has not committed yet, by partition.

RULES    1. The lag is the high watermark minus the committed offset; None without one of them.
         2. Partitions that a member has but no offset was committed for are rows too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from barnabas.admin.client import Client
from barnabas.admin.errors import Refused, check
from barnabas.admin.groups import Committed, GroupDescription, Member, committed_offsets
from barnabas.admin.many_groups import committed_offsets_of
from barnabas.admin.offsets import UNKNOWN_TOPIC, high_watermarks
from barnabas.client.topic_partition import TopicPartition


class LagRow(NamedTuple):
    """A partition of a group. None: no committed offset, no such partition any more, no member."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    lag: int | None
    member: str | None
    client_id: str | None
    host: str | None


def lag_of(client: Client, group: GroupDescription) -> list[LagRow]:
    """Returns a group's rows by partition. Raises Refused."""
    committed = committed_offsets(client, group.name)
    return _rows(group, committed, _ends(client, _partitions(group, committed)))


def lags_of(client: Client, groups: Iterable[GroupDescription]) -> dict[str, list[LagRow]]:
    """Returns the rows of groups by name, with few requests; some groups may be missing (`many_groups.py`, rule 2)."""
    by_name = {group.name: group for group in groups}
    committed = committed_offsets_of(client, by_name)
    partitions = {tp for name, offsets in committed.items() for tp in _partitions(by_name[name], offsets)}
    try:
        ends = _ends(client, partitions)
    except Refused:
        return {}
    return {name: _rows(by_name[name], offsets, ends) for name, offsets in committed.items()}


def _partitions(group: GroupDescription, committed: Mapping[TopicPartition, Committed]) -> set[TopicPartition]:
    return {*committed, *(tp for member in group.members for tp in member.assignment)}


def _rows(
    group: GroupDescription, committed: Mapping[TopicPartition, Committed], ends: Mapping[TopicPartition, int]
) -> list[LagRow]:
    members = {tp: member for member in group.members for tp in member.assignment}
    return [
        _row(tp, committed[tp].offset if tp in committed else None, ends.get(tp), members.get(tp))
        for tp in sorted(_partitions(group, committed))
    ]


def total_lag(rows: list[LagRow]) -> int:
    """Returns the sum of the known lags."""
    return sum(row.lag or 0 for row in rows)


def max_lag(rows: list[LagRow]) -> int:
    """Returns the greatest known lag of a partition."""
    return max((row.lag or 0 for row in rows), default=0)


def _row(tp: TopicPartition, committed: int | None, end: int | None, member: Member | None) -> LagRow:
    lag = None if committed is None or end is None else max(0, end - committed)
    owner = (None, None, None) if member is None else (member.id, member.client_id, member.host)
    return LagRow(*tp, committed, end, lag, *owner)


def _ends(client: Client, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """The high watermarks; without partitions of topics that were deleted, and those that have no leader."""
    if not partitions:
        return {}
    led = set()
    for topic in client.metadata(sorted({tp.topic for tp in partitions})).topics:
        if topic.error_code != UNKNOWN_TOPIC:
            check(topic.error_code, None, f"find topic {topic.name}", f"Describe on topic {topic.name}")
            led |= {
                TopicPartition(topic.name, part.partition_index) for part in topic.partitions if part.leader_id >= 0
            }
    return high_watermarks(client, sorted(led.intersection(partitions)))
