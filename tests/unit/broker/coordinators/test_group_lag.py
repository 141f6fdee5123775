"""The lag of groups: ends of other leaders, timestamps of the log, time to catch up (broker/coordinators/group_lag.py)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.coordinators import group_lag
from broker.coordinators.classic.group_records import NO_EXPIRY, OffsetAndMetadata
from broker.coordinators.group_lag import GroupLag
from broker.coordinators.runtime.coordinator_runtime import ShardState
from protocol.batch_builder import BatchBuilder
from protocol.errors import ErrorCode
from protocol.messages.common import Topic
from protocol.messages.produce_fetch import ListOffsetsPartitionResponse, ListOffsetsResponse
from protocol.primitives import ZERO_UUID
from protocol.schema import Message
from replication.completion import Completion
from replication.io_executor import InlineIoExecutor, IoResult, Run
from tests.support.replica_harness import NOW_MS, ReplicaHarness


class CountedReads(InlineIoExecutor):
    """Counts reads from the disk."""

    reads = 0

    def read(self, directory: str, run: Run) -> IoResult:
        self.reads += 1
        return super().read(directory, run)


class LagHarness(ReplicaHarness):
    """A broker with one coordinator; other brokers answer what a test says."""

    def __init__(self, path: Path) -> None:
        self.disk = CountedReads()
        super().__init__(path, worker=self.disk)
        self.by_group: dict[str, dict[str, dict[int, Any]]] = {}
        coordinator = SimpleNamespace(offsets=self, groups={}, consumer_groups={})
        loading = SimpleNamespace(state=ShardState.LOADING, coordinator=None)
        shards = {0: SimpleNamespace(state=ShardState.ACTIVE, coordinator=coordinator), 1: loading}
        self.asked: list[tuple[int, Message]] = []
        self.answer: Completion[Message | None] = Completion()
        clock: Any = SimpleNamespace(wall_ms=lambda: self.wall_ms, mono_ms=lambda: self.mono_ms)
        runtime: Any = SimpleNamespace(shards=shards)
        self.lag = GroupLag(runtime, self.replicas, self.ask, clock)

    def ask(self, broker_id: int, request: Message) -> Completion[Message | None]:
        self.asked.append((broker_id, request))
        return self.answer

    def commit(self, offset: int, topic: str = "t", index: int = 0, group: str = "g") -> None:
        value = OffsetAndMetadata(offset, -1, "", NOW_MS, NO_EXPIRY, ZERO_UUID)
        self.by_group.setdefault(group, {}).setdefault(topic, {})[index] = value

    def write(self, count: int, first_ms: int) -> None:
        """Records a second apart, five to a batch."""
        for first in range(0, count, 5):
            made = BatchBuilder()
            for number in range(first, first + 5):
                made.append(first_ms + 1000 * number, b"key", b"value")
            self.append(records=made.build())

    def scrape(self) -> list[tuple[int, int, float | None]]:
        """Committed offset, lag and lag in seconds of each position."""
        for _ in self.lag.prepare():
            pass
        return [(one.committed, one.lag, one.behind_s) for one in self.lag.positions]


@pytest.fixture
def harness(tmp_path: Path) -> LagHarness:
    return LagHarness(tmp_path)


def test_the_lag_in_seconds_is_the_age_of_the_first_record_that_is_not_committed(harness: LagHarness) -> None:
    harness.create()
    harness.write(10, NOW_MS - 60_000)
    harness.commit(4)
    assert harness.scrape() == [(4, 6, 56.0)]
    harness.commit(9)
    assert harness.scrape() == [(9, 1, 51.0)]
    harness.commit(10)
    assert harness.scrape() == [(10, 0, 0.0)]


def test_records_below_the_log_start_are_not_waited_for(harness: LagHarness) -> None:
    harness.create()
    harness.write(10, NOW_MS - 60_000)
    harness.partition().delete_records(5, NOW_MS)
    harness.commit(2)
    assert harness.scrape() == [(2, 8, 55.0)]


def test_a_timestamp_is_read_once(harness: LagHarness) -> None:
    harness.create()
    harness.write(10, NOW_MS - 60_000)
    harness.commit(4)
    harness.scrape()
    before = harness.disk.reads
    assert before > 0
    harness.wall_ms += 1000
    assert harness.scrape() == [(4, 6, 57.0)]
    assert harness.disk.reads == before


def test_the_end_of_a_partition_elsewhere_is_its_leaders(harness: LagHarness) -> None:
    harness.create("t", partitions=2, replicas=(2,), leader=2)
    harness.commit(4)
    harness.commit(7, index=1)
    found = [
        ListOffsetsPartitionResponse(partition_index=0, offset=20, error_code=ErrorCode.NONE),
        ListOffsetsPartitionResponse(partition_index=1, offset=-1, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ]
    harness.answer.complete(ListOffsetsResponse(topics=[Topic(name="t", partitions=found)]))
    assert harness.scrape() == [(4, 16, None), (7, -1, None)]
    ((broker_id, _),) = harness.asked
    assert broker_id == 2


@pytest.mark.parametrize("has_answer", [False, True])
def test_without_an_answer_the_own_replica_counts(harness: LagHarness, has_answer: bool) -> None:
    harness.create(replicas=(1, 2), isr=(1,))
    harness.write(10, NOW_MS - 60_000)
    harness.change(leader=2)
    harness.commit(4)
    if has_answer:
        harness.answer.complete(None)
    assert harness.scrape() == [(4, 6, 56.0)]


def test_a_deleted_topic_has_no_lag(harness: LagHarness) -> None:
    harness.create()
    harness.commit(0)
    harness.delete()
    assert harness.scrape() == []


def test_positions_above_the_limit_are_counted(harness: LagHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_lag, "MAX_POSITIONS", 3)
    harness.create(partitions=5)
    for index in range(5):
        harness.commit(0, index=index)
    assert len(harness.scrape()) == 3
    assert harness.lag.omitted == 2


def test_the_time_to_catch_up_follows_from_the_rates_of_both_sides(harness: LagHarness) -> None:
    harness.create()
    harness.write(100, NOW_MS)
    harness.commit(10)
    harness.scrape()
    assert list(harness.lag.catch_up_s()) == []  # one scrape has no rate
    harness.mono_ms += 10_000
    harness.write(10, NOW_MS)
    harness.commit(40)
    harness.scrape()
    assert list(harness.lag.catch_up_s()) == [("g", "t", 35.0)]  # 70 records, and 2 a second gained
    harness.mono_ms += 1000
    harness.write(100, NOW_MS)
    harness.scrape()
    assert list(harness.lag.catch_up_s()) == [("g", "t", float("inf"))]
    harness.commit(210)
    harness.scrape()
    assert list(harness.lag.catch_up_s()) == [("g", "t", 0.0)]
