"""What a cluster does now: samples of offsets, sizes and groups, and the rates between two of them.

RULES    1. Records per second are the growth of the partitions' high watermarks; markers of transactions count too.
         2. The size of a topic is that of all its replicas. Without the right to see log directories it is unknown.
         3. The lag of a group is the sum over its partitions with a committed offset; the time to catch up is the lag divided
            by how fast it shrinks, and unknown if it does not.
NOT HERE The metrics page of a node (`metrics_page.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from barnabas.admin.client import Client
from barnabas.admin.errors import Refused
from barnabas.admin.groups import committed_offsets, list_groups
from barnabas.admin.many_groups import committed_offsets_of
from barnabas.admin.nodes import describe_cluster, list_log_dirs
from barnabas.admin.offsets import high_watermarks
from barnabas.client.error_codes import is_denial
from barnabas.client.topic_partition import TopicPartition


class TopicSample(NamedTuple):
    """A topic: the ends of the partitions that have a leader, by number, and bytes of all replicas (None: unknown)."""

    partitions: int
    under_replicated: int
    offline: int
    ends: dict[int, int]
    bytes: int | None


class GroupSample(NamedTuple):
    """A group: the sum of its committed offsets, and its lag."""

    type: str
    state: str
    committed: int
    lag: int


class NodeSample(NamedTuple):
    """A broker: partitions that it leads, replicas that it has."""

    address: str
    fenced: bool | None
    leaders: int
    replicas: int


class Sample(NamedTuple):
    """A cluster at one time, in seconds of a monotonic clock."""

    at_s: float
    cluster: str
    controller: int
    topics: dict[str, TopicSample]
    groups: dict[str, GroupSample]
    nodes: dict[int, NodeSample]


class TopicRate(NamedTuple):
    """A topic with its rates per second. None: unknown."""

    topic: str
    partitions: int
    records_per_s: float
    bytes: int | None
    bytes_per_s: float | None
    under_replicated: int
    offline: int


class GroupRate(NamedTuple):
    """A group with its rates per second, and the seconds until it has caught up. None: never, at this rate."""

    group: str
    type: str
    state: str
    lag: int
    lag_per_s: float
    committed_per_s: float
    catch_up_s: float | None


def take_sample(client: Client, at_s: float, *, internal: bool = False) -> Sample:
    """Asks the cluster. Raises Refused."""
    info = describe_cluster(client)
    metadata = [topic for topic in client.metadata().topics if internal or not topic.is_internal]
    ends = _ends(client, metadata)
    sizes = _sizes(client)
    topics = {topic.name: _topic(topic, ends, sizes) for topic in metadata}
    parts = [part for topic in metadata for part in topic.partitions]
    nodes = {
        broker.id: NodeSample(
            f"{broker.host}:{broker.port}",
            broker.fenced,
            sum(part.leader_id == broker.id for part in parts),
            sum(broker.id in part.replica_nodes for part in parts),
        )
        for broker in info.brokers
    }
    return Sample(at_s, info.id, info.controller, topics, _groups(client, ends), nodes)


def _ends(client: Client, metadata: list[Any]) -> dict[TopicPartition, int]:
    """The high watermarks of the partitions that have a leader."""
    wanted = [
        TopicPartition(topic.name, part.partition_index)
        for topic in metadata
        for part in topic.partitions
        if part.leader_id >= 0
    ]
    return high_watermarks(client, wanted)


def _sizes(client: Client) -> dict[str, int] | None:
    """Bytes of each topic; None without the right (rule 2)."""
    try:
        found = list_log_dirs(client)
    except Refused as failure:
        if not is_denial(failure.name):
            raise
        return None
    sizes: dict[str, int] = {}
    for directory in found:
        for row in directory.replicas:
            sizes[row.topic] = sizes.get(row.topic, 0) + row.bytes
    return sizes


def _topic(topic: Any, ends: dict[TopicPartition, int], sizes: dict[str, int] | None) -> TopicSample:
    parts = topic.partitions
    return TopicSample(
        len(parts),
        sum(len(part.isr_nodes) < len(part.replica_nodes) for part in parts),
        sum(part.leader_id < 0 for part in parts),
        {
            part.partition_index: ends[tp]
            for part in parts
            if (tp := TopicPartition(topic.name, part.partition_index)) in ends
        },
        None if sizes is None else sizes.get(topic.name, 0),
    )


def _groups(client: Client, ends: dict[TopicPartition, int]) -> dict[str, GroupSample]:
    found = {}
    rows = [row for row in list_groups(client) if row.type in {"", "classic", "consumer"}]  # others commit no offsets
    by_group = committed_offsets_of(client, [row.name for row in rows])
    for row in rows:
        positions = by_group[row.name] if row.name in by_group else committed_offsets(client, row.name)
        committed = {tp: position.offset for tp, position in positions.items()}
        lag = sum(max(0, ends[tp] - offset) for tp, offset in committed.items() if tp in ends)
        found[row.name] = GroupSample(row.type, row.state, sum(committed.values()), lag)
    return found


def topic_rates(before: Sample, after: Sample) -> list[TopicRate]:
    """Returns the topics of the second sample, the busiest first; a new one has no rate yet."""
    seconds = after.at_s - before.at_s
    rates = []
    for name, now in after.topics.items():
        then = before.topics.get(name, now)
        growth = None if now.bytes is None or then.bytes is None else (now.bytes - then.bytes) / seconds
        records = max(0, sum(_growth(then, now))) / seconds
        rates.append(TopicRate(name, now.partitions, records, now.bytes, growth, now.under_replicated, now.offline))
    return sorted(rates, key=lambda rate: (-rate.records_per_s, rate.topic))


def _growth(then: TopicSample, now: TopicSample) -> Iterator[int]:
    """The growth of each partition; one that had no leader is left out, one that is new began at 0."""
    for partition, end in now.ends.items():
        if partition in then.ends:
            yield end - then.ends[partition]
        elif partition >= then.partitions:
            yield end


def group_rates(before: Sample, after: Sample) -> list[GroupRate]:
    """Returns the groups of the second sample, the greatest lag first."""
    seconds = after.at_s - before.at_s
    rates = []
    for name, now in after.groups.items():
        then = before.groups.get(name, now)
        change = (now.lag - then.lag) / seconds
        committed = max(0, now.committed - then.committed) / seconds
        catch_up = 0.0 if now.lag == 0 else now.lag / -change if change < 0 else None
        rates.append(GroupRate(name, now.type, now.state, now.lag, change, committed, catch_up))
    return sorted(rates, key=lambda rate: (-rate.lag, rate.group))
