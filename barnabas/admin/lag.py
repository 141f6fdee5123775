"""The lag of a group: how many records it has not committed yet, by partition.

RULES    1. The lag is the high watermark minus the committed offset; None without one of them.
         2. Partitions that a member has but no offset was committed for are rows too.
"""

from __future__ import annotations

from typing import NamedTuple

from barnabas.admin.client import Client
from barnabas.admin.errors import Refused, check
from barnabas.admin.groups import GroupDescription, Member, committed_offsets
from barnabas.admin.offsets import LATEST, list_offsets
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
    members = {tp: member for member in group.members for tp in member.assignment}
    partitions = sorted({*committed, *members})
    ends = _ends(client, partitions)
    return [
        _row(tp, committed[tp].offset if tp in committed else None, ends.get(tp), members.get(tp)) for tp in partitions
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


def _ends(client: Client, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    """The high watermarks; without partitions of topics that were deleted, and those that have no leader."""
    found: dict[TopicPartition, int] = {}
    for topic in client.metadata({tp.topic for tp in partitions}).topics:
        led = {TopicPartition(topic.name, part.partition_index) for part in topic.partitions if part.leader_id >= 0}
        try:
            check(topic.error_code, None, f"find topic {topic.name}", f"Describe on topic {topic.name}")
            offsets = list_offsets(client, dict.fromkeys(sorted(led.intersection(partitions)), LATEST))
        except Refused as failure:
            if failure.name != "UNKNOWN_TOPIC_OR_PARTITION":
                raise
            continue
        found |= {tp: listed.offset for tp, listed in offsets.items()}
    return found
