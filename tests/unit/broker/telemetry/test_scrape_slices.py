"""A scrape of many partitions works in small steps: what it reads between two pauses does not grow with the broker."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections import deque
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from broker.telemetry.closed_logs import ClosedLogs
from broker.telemetry.exposition import LINES_PER_SLICE, Format
from broker.telemetry.families import Dialect
from broker.telemetry.page import MetricsPage
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
            "replication_factor": 1, "min_isr": 1, "leader_id": 1, "high_watermark": 1, "waiting_acks": 0,
            "leader_high_watermark": -1,
        }  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        CountedPartition.reads += 1
        return self._values[name]


def metrics_of(count: int) -> ReplicaMetrics:
    """The metrics of a broker with this many partitions."""
    replicas: Any = SimpleNamespace(
        partitions={("t", index): CountedPartition(index) for index in range(count)},
        image=MetadataImage("cluster"),
        counts=BrokerCounts(),
        offline_partitions=[],
        log_manager=SimpleNamespace(offline={}),
    )
    purgatory: Any = []
    return ReplicaMetrics(replicas, purgatory, ClosedLogs(replicas, InlineIoExecutor()))


@pytest.mark.parametrize("count", [5_000, 10_000])
def test_the_work_between_two_pauses_is_bounded(count: int) -> None:
    CountedPartition.reads = longest = lines = 0
    before = 0
    for piece in Format("").slices([metrics_of(count)]):
        longest, before = max(longest, CountedPartition.reads - before), CountedPartition.reads
        lines = max(lines, piece.count("\n"))
    assert CountedPartition.reads > 20 * count
    assert longest <= PARTITIONS_PER_STEP * ATTRIBUTES_OF_ONE
    assert lines <= LINES_PER_SLICE + 2


async def test_no_turn_of_the_event_loop_computes_a_twentieth_of_a_scrape_of_5_000_partitions() -> None:
    """CPU time of this thread, in the best of three scrapes: a busy machine makes single turns longer, too."""
    page = MetricsPage(("127.0.0.1", 0))
    page.sources = {Dialect.JMX: [metrics_of(5_000)]}
    page.start(asyncio.get_running_loop())
    shares = [await share_of_longest_turn(page) for _ in range(3)]
    page.close()
    assert min(shares) < 0.05


async def share_of_longest_turn(page: MetricsPage) -> float:
    """The CPU time of the longest turn of the event loop while the page is read, as a share of all turns."""
    loop = asyncio.get_running_loop()
    ends_s = [time.thread_time()]

    def turn() -> None:
        ends_s.append(time.thread_time())
        ending.append(loop.call_soon(turn))

    ending = deque([loop.call_soon(turn)], maxlen=1)
    text = await loop.run_in_executor(None, read, page.address)
    ending.pop().cancel()
    assert text.count("\n") > 5_000 * 16
    return max(after - before for before, after in pairwise(ends_s)) / (ends_s[-1] - ends_s[0])


def read(address: tuple[str, int]) -> str:
    with urllib.request.urlopen(f"http://{address[0]}:{address[1]}/metrics", timeout=60) as answer:
        found: bytes = answer.read()
    return found.decode()
