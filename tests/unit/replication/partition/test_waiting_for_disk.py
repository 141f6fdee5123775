"""A look-up that would block waits for a reader thread."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode
from replication.partition.follower_progress import FetchPosition
from replication.partition.partition import Reader
from storage.io.disk import StorageError
from storage.io.disk_lookup import DiskLookup
from storage.log.log_reader import Isolation, ReadInfo
from tests.support.replica_harness import AppendResults, HeldReplicaHarness, ReplicaHarness

HIGH = Reader(-1, Isolation.HIGH_WATERMARK)


@pytest.fixture
def results() -> AppendResults:
    return AppendResults()


@pytest.fixture
def harness(tmp_path: Path) -> HeldReplicaHarness:
    made = HeldReplicaHarness(tmp_path)
    made.create("t")
    made.worker.holds_reads = True
    return made


def append(harness: HeldReplicaHarness, results: AppendResults) -> None:
    results.add(harness.append(acks=1))


def let_all_write(harness: HeldReplicaHarness) -> None:
    while harness.worker.writes:
        harness.worker.let_write()


def test_appends_keep_their_order_while_the_log_is_opened(harness: HeldReplicaHarness, results: AppendResults) -> None:
    for _ in range(3):
        append(harness, results)
    assert (len(harness.worker.reads), harness.worker.writes, results) == (1, [], [])
    harness.worker.let_read()
    append(harness, results)
    let_all_write(harness)
    assert results == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_an_append_made_in_a_callback_queues_behind_the_waiting_ones(
    harness: HeldReplicaHarness, results: AppendResults
) -> None:
    order = []

    def then(_: Any) -> None:
        order.append("refused")
        harness.append(acks=1).then(lambda _: order.append("later"))

    harness.append(records=memoryview(bytearray(5)), acks=1).then(then)
    harness.append(acks=1).then(lambda _: order.append("second"))
    harness.worker.let_read()
    let_all_write(harness)
    assert order == ["refused", "second", "later"]
    assert results == []


def test_a_failed_disk_read_fails_the_waiting_appends(harness: HeldReplicaHarness, results: AppendResults) -> None:
    append(harness, results)
    append(harness, results)
    harness.worker.let_read(StorageError("read", "x"))
    assert results == [(ErrorCode.KAFKA_STORAGE_ERROR, None)] * 2
    assert harness.partition().is_offline


def test_a_pending_look_up_is_not_run_in_a_recreated_topic(harness: HeldReplicaHarness, results: AppendResults) -> None:
    append(harness, results)
    harness.delete()
    harness.create("t")
    harness.worker.let_read()
    assert results == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, None)]
    assert os.listdir(harness.partition().log.path) == ["partition.metadata"]


def test_deleting_a_partition_fails_its_waiting_appends_and_ignores_their_disk_errors(
    harness: HeldReplicaHarness, results: AppendResults
) -> None:
    append(harness, results)
    directory = harness.partition().log.directory
    harness.delete("t")
    assert results == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, None)]
    harness.worker.let_read(StorageError("open", "x"))
    assert directory in harness.log_manager.directories


def test_a_failed_directory_fails_waiting_appends_before_the_thread_returns(
    harness: HeldReplicaHarness, results: AppendResults
) -> None:
    append(harness, results)
    harness.replicas.directory_failed(harness.partition().log.directory, StorageError("write", "x"))
    assert results == [(ErrorCode.KAFKA_STORAGE_ERROR, None)]
    harness.worker.let_read()
    assert len(results) == 1


def test_appends_that_wait_for_the_disk_fail_after_a_loss_of_leadership(
    harness: HeldReplicaHarness, results: AppendResults
) -> None:
    append(harness, results)
    harness.change("t", leader=2, isr=[2], replicas=[1, 2])
    harness.worker.let_read()
    assert results == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, None)]


def test_equal_look_ups_share_one_disk_read(harness: HeldReplicaHarness) -> None:
    completed: list[str] = []
    for name in "ab":
        lookup = harness.replicas.read(harness.partition(), FetchPosition(0), 1000, HIGH, min_one_batch=True)
        assert isinstance(lookup, DiskLookup)
        harness.replicas.await_disk(harness.partition(), lookup, partial(completed.append, name))
    assert (len(harness.worker.reads), completed) == (1, [])
    harness.worker.let_read()
    assert completed == ["a", "b"]
    found = harness.replicas.read(harness.partition(), FetchPosition(0), 1000, HIGH, min_one_batch=True)
    assert isinstance(found, ReadInfo)
    assert found.size == 0


def test_the_isr_check_opens_no_log_while_followers_are_within_the_allowed_lag(tmp_path: Path) -> None:
    harness = ReplicaHarness(tmp_path)
    harness.create("r", replicas=(1, 2), isr=(1, 2))
    harness.replicas.check_isrs(10_000)
    assert not harness.partition("r").log.is_open
    harness.replicas.check_isrs(60_000)
    assert harness.partition("r").log.is_open


def test_an_isr_check_of_a_partition_that_is_removed_meanwhile_logs_nothing(
    harness: HeldReplicaHarness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.create("r", replicas=(1, 2), isr=(1, 2))
    harness.replicas.check_isrs(60_000)
    harness.change("r", replicas=[2], isr=[2], leader=2)
    harness.worker.let_read()
    assert ("r", 0) not in harness.replicas.partitions
    assert caplog.records == []
