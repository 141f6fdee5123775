"""The public metrics of Redpanda, for boards that were made for it (`/metrics?names=redpanda`).

RULES    1. Names and labels are Redpanda's, the values those of the other metrics. A partition is shown by its leader, a
            group by its coordinator. Limits on series are the same.
NOT HERE All other names (`broker/telemetry/`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from typing import Final

from broker.coordinators.group_lag import POSITIONS_PER_STEP, GroupLag
from broker.coordinators.group_metrics import MAX_GROUPS
from broker.node.log_dir_metrics import LogDirMetrics
from broker.process.histograms import Distribution
from broker.telemetry.families import PAUSE, Families, counters, gauge, gauges, histogram, label_text
from broker.telemetry.replica_metrics import MAX_PARTITIONS, PARTITIONS_PER_STEP
from broker.telemetry.request_metrics import RequestMetrics
from broker.telemetry.topic_metrics import MAX_TOPICS
from replication.metadata.image import NO_LEADER
from replication.partition.partition import Partition
from replication.partition.replica_manager import ReplicaManager
from replication.partition.topic_counts import TopicCounts

_KAFKA: Final = ("redpanda_namespace", "kafka")
_REQUESTS: Final = {"Produce": "produce", "Fetch": "consume"}


class RedpandaMetrics:
    """Redpanda's families."""

    def __init__(
        self, replicas: ReplicaManager, requests: RequestMetrics, lag: GroupLag, log_dirs: LogDirMetrics
    ) -> None:
        self._replicas = replicas
        self._log_dirs = log_dirs
        self._requests = requests
        self._lag = lag

    def families(self) -> Families:
        """Of topics, requests, partitions, groups, the cluster and the disk."""
        yield from self._of_topics()
        yield histogram(
            "redpanda_kafka_request_latency_seconds", "Seconds that requests take.", list(self._latencies())
        )
        yield from self._of_partitions()
        yield from self._of_groups()
        yield from self._of_cluster()
        for space in islice(self._log_dirs.spaces.values(), 1):
            yield gauge("redpanda_storage_disk_free_bytes", "Free bytes of the disk.", space.free_bytes)
            yield gauge("redpanda_storage_disk_total_bytes", "Bytes of the disk.", space.total_bytes)

    def _of_topics(self) -> Families:
        counted = list(islice(self._replicas.counts.topics.items(), MAX_TOPICS))
        yield counters("redpanda_kafka_request_bytes", "Bytes of records by request.", _bytes(counted))
        yield counters(
            "redpanda_kafka_records_produced",
            "Records appended.",
            [(label_text(_KAFKA, ("redpanda_topic", topic)), counts.messages_in) for topic, counts in counted],
        )
        yield PAUSE

    def _latencies(self) -> Iterator[tuple[tuple[tuple[str, str], ...], Distribution]]:
        for name, request in _REQUESTS.items():
            found = [metrics.total for metrics in self._requests.apis.values() if metrics.name == name]
            yield (("redpanda_request", request),), Distribution(found)

    def _of_partitions(self) -> Families:
        led: list[tuple[str, Partition]] = []
        replicas: dict[str, int] = {}
        for number, partition in enumerate(list(self._replicas.partitions.values()), 1):
            if partition.is_leader and len(led) < MAX_PARTITIONS:
                topic = ("redpanda_topic", partition.topic)
                led.append((label_text(_KAFKA, topic, ("redpanda_partition", str(partition.index))), partition))
                replicas.setdefault(label_text(_KAFKA, topic), len(partition.replicas))
            if number % PARTITIONS_PER_STEP == 0:
                yield PAUSE
        yield gauges(
            "redpanda_kafka_max_offset", "High watermark.", ((labels, one.high_watermark) for labels, one in led)
        )
        yield gauges(
            "redpanda_kafka_under_replicated_replicas",
            "Replicas that are out of sync.",
            ((labels, len(one.replicas) - len(one.isr)) for labels, one in led),
        )
        yield gauges("redpanda_kafka_replicas", "Replicas of the partitions of a topic.", replicas.items())
        topics = self._replicas.image.topics_by_name
        shown = {partition.topic for _, partition in led}
        yield gauges(
            "redpanda_kafka_partitions",
            "Partitions of a topic.",
            [
                (label_text(_KAFKA, ("redpanda_topic", topic)), len(topics[topic].partitions))
                for topic in sorted(shown)
                if topic in topics
            ],
        )

    def _of_groups(self) -> Families:
        lags: dict[str, list[int]] = defaultdict(list)
        topics: dict[str, set[str]] = defaultdict(set)
        offsets: list[tuple[str, int]] = []
        for number, one in enumerate(self._lag.positions, 1):
            lags[one.group_id].append(max(one.lag, 0))
            topics[one.group_id].add(one.topic)
            place = ("redpanda_topic", one.topic), ("redpanda_partition", str(one.partition))
            offsets.append((label_text(("redpanda_group", one.group_id), *place), one.committed))
            if number % POSITIONS_PER_STEP == 0:
                yield PAUSE
        counted = (
            (group_id, len(group.members))
            for coordinator in self._lag.coordinators()
            for groups in (coordinator.classic_groups, coordinator.consumer_groups)
            for group_id, group in groups.items()
        )
        members = dict(islice(counted, MAX_GROUPS))
        name = "redpanda_kafka_consumer_group"
        yield gauges(f"{name}_committed_offset", "Committed offset.", offsets)
        for suffix, explanation, values in (
            ("consumers", "Members of a group.", members),
            ("topics", "Topics with committed offsets.", {group_id: len(found) for group_id, found in topics.items()}),
            ("lag_sum", "Sum of the lags.", {group_id: sum(found) for group_id, found in lags.items()}),
            ("lag_max", "Largest lag.", {group_id: max(found) for group_id, found in lags.items()}),
        ):
            by_group = [(label_text(("redpanda_group", group_id)), value) for group_id, value in values.items()]
            yield gauges(f"{name}_{suffix}", explanation, by_group)

    def _of_cluster(self) -> Families:
        image = self._replicas.image
        total = without_leader = 0
        for topic in image.topics_by_id.values():
            total += len(topic.partitions)
            without_leader += sum(state.leader == NO_LEADER for state in topic.partitions.values())
            yield PAUSE
        for name, explanation, value in (
            ("brokers", "Brokers of the cluster.", len(image.brokers)),
            ("topics", "Topics of the cluster.", len(image.topics_by_id)),
            ("partitions", "Partitions of the cluster.", total),
            ("unavailable_partitions", "Partitions without a leader.", without_leader),
        ):
            yield gauge(f"redpanda_cluster_{name}", explanation, value)


def _bytes(counted: list[tuple[str, TopicCounts]]) -> Iterator[tuple[str, int]]:
    for topic, counts in counted:
        for request, value in (("produce", counts.bytes_in), ("consume", counts.bytes_out)):
            yield label_text(_KAFKA, ("redpanda_topic", topic), ("redpanda_request", request)), value
