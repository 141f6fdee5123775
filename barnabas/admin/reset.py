"""Where the offsets of a group would be after a reset: a plan first, then its commit.

RULES    1. A target is clipped to the log: below its start it is the start, above its end the end.
         2. A timestamp that no record reaches gives the end. By-duration is a timestamp before now.
         3. A shift starts at the committed offset; a partition without one is left out, and the caller says so. `current` only
            clips; a partition without committed offset gets its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from barnabas.admin.client import Client
from barnabas.admin.groups import committed_offsets
from barnabas.admin.offsets import list_offsets, ranges
from barnabas.client.topic_partition import TopicPartition


class Target(NamedTuple):
    """Exactly one of the fields is given."""

    earliest: bool = False
    latest: bool = False
    current: bool = False
    offset: int | None = None
    shift: int | None = None
    timestamp_ms: int | None = None
    offsets: Mapping[TopicPartition, int] | None = None
    """Of a plan that was exported."""


class Move(NamedTuple):
    """A partition, its committed offset (None: none), the new one, and what is skipped (negative: read again)."""

    topic: str
    partition: int
    committed: int | None
    target: int
    skipped: int | None


def plan(client: Client, group: str, partitions: Iterable[TopicPartition], target: Target) -> list[Move]:
    """Returns the moves of these partitions, sorted; some may be left out (rule 3). Raises Refused."""
    wanted = sorted(partitions)
    committed = {tp: position.offset for tp, position in committed_offsets(client, group).items()}
    limits = ranges(client, wanted)
    by_time = _by_time(client, wanted, target)
    moves = []
    for tp in wanted:
        before, limit = committed.get(tp), limits[tp]
        goal = _goal(target, tp, before, by_time)
        if goal is None:
            continue
        after = min(max(goal, limit.start), limit.end)
        moves.append(Move(*tp, before, after, None if before is None else after - before))
    return moves


_START, _END = -1, 1 << 63
"""Below every start, above every end (rule 1)."""


def _goal(target: Target, tp: TopicPartition, before: int | None, by_time: Mapping[TopicPartition, int]) -> int | None:
    if target.earliest:
        return _START
    if target.latest:
        return _END
    if target.offset is not None:
        return target.offset
    if target.timestamp_ms is not None:
        return by_time[tp]
    if target.offsets is not None:
        return target.offsets.get(tp)
    if target.current:
        return _END if before is None else before
    return None if before is None else before + (target.shift or 0)


def _by_time(client: Client, partitions: list[TopicPartition], target: Target) -> dict[TopicPartition, int]:
    if target.timestamp_ms is None:
        return {}
    found = list_offsets(client, dict.fromkeys(partitions, target.timestamp_ms))
    return {tp: _END if position.offset < 0 else position.offset for tp, position in found.items()}
