"""Offsets of partitions: the start, the end, and by timestamp.

RULES    1. The end is the high watermark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kafka.protocol.consumer.offsets import ListOffsetsRequest

from barnabas.admin.client import Client
from barnabas.admin.errors import Refused, check
from barnabas.admin.topic_arrays import topic_array
from barnabas.client.topic_partition import TopicPartition

LATEST, EARLIEST = -1, -2
"""ListOffsets: special timestamps."""
UNKNOWN_TOPIC = 3
NONE = -1
"""The offset of a timestamp that no record reaches."""


class Found(NamedTuple):
    """An offset, the timestamp in ms of its record (-1: none), and its leader epoch (-1: unknown)."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class Range(NamedTuple):
    """Log start offset and end of a partition; the end is exclusive."""

    start: int
    end: int


def list_offsets(client: Client, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, Found]:
    """Returns the offset of a timestamp in ms, or of LATEST or EARLIEST, for each partition. Raises Refused."""
    if not wanted:
        return {}
    kinds: Any = ListOffsetsRequest.ListOffsetsTopic

    def item(tp: TopicPartition) -> Any:
        return kinds.ListOffsetsPartition(partition_index=tp.partition, timestamp=wanted[tp])

    def request(partitions: list[TopicPartition]) -> Any:
        topics = topic_array(kinds, partitions, item)
        timeout_ms = int(client.timeout_s * 1000)
        return ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics, timeout_ms=timeout_ms)

    found = {}
    for tp, part in client.ask_leaders(wanted, request):
        check(part.error_code, None, f"list offsets of {tp}", f"Describe on topic {tp.topic}")
        found[tp] = Found(part.offset, part.timestamp, part.leader_epoch)
    return found


def high_watermarks(client: Client, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Returns the ends of these partitions, without those of topics that were deleted meanwhile. Raises Refused."""
    by_topic: dict[str, list[TopicPartition]] = {}
    for tp in partitions:
        by_topic.setdefault(tp.topic, []).append(tp)
    ends = _ends(client, [tp for found in by_topic.values() for tp in found])
    if ends is None:
        ends = {tp: end for found in by_topic.values() for tp, end in (_ends(client, found) or {}).items()}
    return ends


def _ends(client: Client, partitions: list[TopicPartition]) -> dict[TopicPartition, int] | None:
    """The high watermarks; None if a topic does not exist. Raises Refused."""
    try:
        found = list_offsets(client, dict.fromkeys(partitions, LATEST))
    except Refused as failure:
        if failure.code != UNKNOWN_TOPIC:
            raise
        return None
    return {tp: listed.offset for tp, listed in found.items()}


def ranges(client: Client, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Range]:
    """Returns start and end of these partitions (rule 1). Raises Refused."""
    order = list(partitions)
    starts = list_offsets(client, dict.fromkeys(order, EARLIEST))
    ends = list_offsets(client, dict.fromkeys(order, LATEST))
    return {tp: Range(starts[tp].offset, ends[tp].offset) for tp in order}
