"""New logs with flush.messages are opened and flushed before the first append."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.io.disk import StorageError
from storage.io.flush_task import FlushTask
from tests.support.replica_harness import AppendResults, HeldIoExecutor, ReplicaHarness


def open_partitions(harness: ReplicaHarness, name: str = "t") -> list[int]:
    return [
        index for (topic, index), found in harness.replicas.partitions.items() if topic == name and found.log.is_open
    ]


@pytest.fixture
def worker() -> HeldIoExecutor:
    worker = HeldIoExecutor()
    worker.holds_reads = True
    return worker


def test_the_first_append_waits_only_for_the_flush_of_the_log_file(tmp_path: Path) -> None:
    worker = HeldIoExecutor()
    harness = ReplicaHarness(tmp_path, worker=worker)
    harness.create("t", flush_messages=1)
    worker.let_sync()
    harness.append()
    worker.let_write()
    sync = worker.syncs[0].run
    assert isinstance(sync, FlushTask)
    assert sync.only_syncs
    assert [file.path for file in sync.files] == [f"{harness.partition('t').log.path}/00000000000000000000.log"]


def test_logs_without_flush_messages_are_not_opened(tmp_path: Path) -> None:
    harness = ReplicaHarness(tmp_path)
    harness.create("t", partitions=3)
    assert open_partitions(harness) == []


def test_new_logs_are_opened_one_at_a_time_and_flushed_together(tmp_path: Path, worker: HeldIoExecutor) -> None:
    harness = ReplicaHarness(tmp_path, worker=worker)
    harness.create("t", partitions=3, flush_messages=1)
    for count in range(3):
        assert open_partitions(harness) == list(range(count))
        assert len(worker.reads) == 1
        assert worker.syncs == []  # flushed together
        worker.let_read()
    assert open_partitions(harness) == [0, 1, 2]
    assert worker.reads == []
    assert len(worker.syncs) == 3


def test_deleted_and_failed_logs_are_skipped(tmp_path: Path, worker: HeldIoExecutor) -> None:
    harness = ReplicaHarness(tmp_path, worker=worker, directories=2)
    harness.create("t", partitions=2, flush_messages=1)
    harness.create("u", partitions=4, flush_messages=1)
    directories = [harness.partition("u", index).log.directory for index in range(4)]
    harness.delete("t")
    worker.let_read()
    worker.let_read(StorageError("open", "x"))
    while worker.reads:
        worker.let_read()
    online = [index for index in range(4) if directories[index] != directories[0]]
    assert open_partitions(harness, "u") == online
    assert harness.partition("u", 0).is_offline


def test_an_append_opens_its_log_without_waiting_for_the_others(tmp_path: Path, worker: HeldIoExecutor) -> None:
    harness = ReplicaHarness(tmp_path, worker=worker)
    harness.create("t", partitions=3, flush_messages=1)
    results = AppendResults()
    results.add(harness.append(index=2))
    assert len(worker.reads) == 2
    worker.reads.reverse()
    worker.let_read()
    worker.let_write()
    worker.let_sync()
    assert results == [(0, 0)]
    while worker.reads:
        worker.let_read()
    assert open_partitions(harness) == [0, 1, 2]
