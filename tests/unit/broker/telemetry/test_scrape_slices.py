"""A scrape of many partitions works in small steps: what it reads between two pauses does not grow with the broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker.telemetry.closed_logs import ClosedLogs
from broker.telemetry.exposition import LINES_PER_SLICE, Format
from broker.telemetry.replica_metrics import PARTITIONS_PER_STEP, ReplicaMetrics
from replication.io_executor import InlineIoExecutor
from replication.metadata.image import MetadataImage
from replication.partition.topic_counts import BrokerCounts

ATTRIBUTES_OF_ONE = 20
"""More than the walk reads of one partition."""


class CountedPartition:
    """A led partition that counts how often it is looked at."""

    reads = 0

    def __init__(self, index: int) -> None:
        opened = SimpleNamespace(engine=SimpleNamespace(end_offset=1, size_bytes=1, segment_count=1))
        log = SimpleNamespace(opened=opened, is_open=True, offsets=SimpleNamespace(log_start_offset=0))
        self._values: dict[str, Any] = {
            "topic": "t", "index": index, "log": log, "is_leader": True, "is_offline": False, "isr": (1,), "replicas": (1,),
            "min_isr": 1, "leader_id": 1, "high_watermark": 1, "waiting_acks": 0, "leader_high_watermark": -1,
        }  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        CountedPartition.reads += 1
        return self._values[name]


@pytest.mark.parametrize("count", [5_000, 10_000])
def test_the_work_between_two_pauses_is_bounded(count: int) -> None:
    replicas: Any = SimpleNamespace(
        partitions={("t", index): CountedPartition(index) for index in range(count)},
        image=MetadataImage("cluster"),
        counts=BrokerCounts(),
        offline_partitions=[],
        log_manager=SimpleNamespace(offline={}),
    )
    purgatory: Any = []
    CountedPartition.reads = longest = lines = 0
    before = 0
    for piece in Format("").slices([ReplicaMetrics(replicas, purgatory, ClosedLogs(replicas, InlineIoExecutor()))]):
        longest, before = max(longest, CountedPartition.reads - before), CountedPartition.reads
        lines = max(lines, piece.count("\n"))
    assert CountedPartition.reads > 20 * count
    assert longest <= PARTITIONS_PER_STEP * ATTRIBUTES_OF_ONE
    assert lines <= LINES_PER_SLICE + 2
