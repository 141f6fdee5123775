"""Lookups of one request run in groups (disk_lookups.py)."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode
from replication.io_executor import IoResult, Run
from storage.io.disk import StorageError
from storage.io.disk_lookup import DiskLookup
from storage.log.log import Log
from tests.support.partition_rig import code_of
from tests.support.replica_harness import AppendResults, HeldReplicaHarness, HeldWork, ReplicaHarness, batch

WIDTH = 20


@pytest.fixture
def harness(tmp_path: Path) -> HeldReplicaHarness:
    made = HeldReplicaHarness(tmp_path)
    made.create("wide", partitions=WIDTH)
    made.worker.holds_reads = True
    return made


def append_to_all(harness: HeldReplicaHarness, *, times: int = 1) -> AppendResults:
    results = AppendResults()
    batches = [("wide", index, batch()) for index in range(WIDTH) for _ in range(times)]
    for append in harness.replicas.appender.append_all(batches, acks=1, wall_ms=harness.wall_ms):
        results.add(append)
    return results


def open_logs(harness: HeldReplicaHarness) -> int:
    return sum(partition.log.is_open for partition in harness.replicas.partitions.values())


def test_many_logs_are_opened_in_groups_that_share_write_jobs(harness: HeldReplicaHarness) -> None:
    results = append_to_all(harness)
    assert len(harness.worker.reads) == 2, "no more groups are in threads"
    harness.worker.let_read()
    assert (open_logs(harness), len(harness.worker.reads), len(harness.worker.writes)) == (8, 2, 1)
    harness.worker.let_write()
    assert results == [(ErrorCode.NONE, 0)] * 8
    harness.worker.let_read()
    harness.worker.let_read()
    assert (open_logs(harness), len(harness.worker.reads), len(harness.worker.writes)) == (WIDTH, 0, 2)
    harness.worker.let_write()
    harness.worker.let_write()
    assert results == [(ErrorCode.NONE, 0)] * WIDTH


def test_each_opened_log_is_reported_with_the_number_of_open_ones(harness: HeldReplicaHarness) -> None:
    opened: list[int] = []
    harness.replicas.on_log_opened = opened.append
    append_to_all(harness)
    while harness.worker.reads:
        harness.worker.let_read()
    assert opened == list(range(1, WIDTH + 1))


def test_appends_to_one_partition_keep_their_order(harness: HeldReplicaHarness) -> None:
    results = append_to_all(harness, times=2)
    later = AppendResults()
    later.add(harness.append("wide", 0, acks=1))
    while harness.worker.reads:
        harness.worker.let_read()
    while harness.worker.writes:
        harness.worker.let_write()
    assert sorted(results) == [(ErrorCode.NONE, 0)] * WIDTH + [(ErrorCode.NONE, 1)] * WIDTH
    assert later == [(ErrorCode.NONE, 2)]


def test_what_waits_for_a_lookup_of_a_group_continues_after_it(harness: HeldReplicaHarness) -> None:
    append_to_all(harness)
    partition = harness.partition("wide", 1)
    continued = []
    harness.replicas.await_disk(partition, partition.log.open_lookup(), lambda: continued.append(partition.log.is_open))
    assert len(harness.worker.reads) == 2, "the lookup is shared"
    harness.worker.let_read()
    assert continued == [True]


def test_a_lookup_that_others_wait_for_is_not_dropped(harness: HeldReplicaHarness) -> None:
    partition = harness.partition("wide", 1)
    dropped: list[str] = []
    awaited, unused = (
        DiskLookup(lambda: None, lambda _: None, None, partial(dropped.append, name)) for name in ("awaited", "unused")
    )
    harness.replicas.await_disk(partition, awaited, lambda: None)
    for lookup in (awaited, unused):
        harness.replicas.disk_lookups.drop(lookup)
    assert dropped == ["unused"]


def test_a_request_in_a_callback_queues_behind_the_appends_of_the_group(harness: HeldReplicaHarness) -> None:
    """Otherwise its batch would be committed before one that was prepared earlier."""
    order = []
    batches = [("wide", 0, memoryview(batch())), ("wide", 1, memoryview(bytearray(5)))]
    _, refused = harness.replicas.appender.append_all(batches, acks=1, wall_ms=harness.wall_ms)
    refused.then(
        lambda _: harness.append("wide", 0, acks=1).then(lambda append: order.append(append.value.base_offset))
    )
    harness.worker.let_read()
    while harness.worker.writes:
        harness.worker.let_write()
    assert order == [1]


def test_a_deleted_topic_fails_only_its_own_appends(harness: HeldReplicaHarness) -> None:
    harness.create("other")
    results = AppendResults()
    batches = [("other", 0, batch()), ("wide", 0, batch())]
    for append in harness.replicas.appender.append_all(batches, acks=1, wall_ms=harness.wall_ms):
        results.add(append)
    harness.delete("other")
    assert results == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, None)]
    harness.worker.let_read()
    harness.worker.let_write()
    assert results[1:] == [(ErrorCode.NONE, 0)]


def test_an_executor_without_threads_opens_any_number_of_logs(tmp_path: Path) -> None:
    harness = ReplicaHarness(tmp_path)
    harness.create("wide", partitions=3000)
    batches = [("wide", index, batch()) for index in range(3000)]
    appends = harness.replicas.appender.append_all(batches, acks=1, wall_ms=harness.wall_ms)
    assert {(append.is_done, code_of(append)) for append in appends} == {(True, ErrorCode.NONE)}
    for partition in harness.replicas.partitions.values():
        partition.log.delete()  # closes its files


def test_a_disk_error_fails_the_directory(harness: HeldReplicaHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    results = append_to_all(harness)
    log = harness.partition("wide", 3).log

    def fail(work: Any) -> None:
        raise StorageError("open", log.path, OSError(errno.EIO, os.strerror(errno.EIO)))

    monkeypatch.setattr(
        type(log.files), "run_guarded", lambda files, work: fail(work) if files is log.files else work()
    )
    harness.worker.let_read()
    assert not harness.log_manager.directories
    assert results == [(ErrorCode.KAFKA_STORAGE_ERROR, None)] * WIDTH


def test_a_full_disk_repeats_the_rest_of_a_group(harness: HeldReplicaHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    append_to_all(harness)
    log = harness.partition("wide", 3).log
    runs = []
    errors = [StorageError("open", log.path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))]

    def run_guarded(files: Any, work: Any) -> None:
        runs.append(files)
        if files is log.files and errors:
            raise errors.pop()
        work()

    monkeypatch.setattr(type(log.files), "run_guarded", run_guarded)
    job = harness.worker.reads[0]
    with pytest.raises(StorageError):
        job.run()
    harness.worker.let_read()
    assert len(runs) == 9, "the lookups before the failed one ran once"
    assert open_logs(harness) == 8


def full_disk(log: Log) -> StorageError:
    return StorageError("write to", log.path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


@pytest.fixture
def background(harness: HeldReplicaHarness, monkeypatch: pytest.MonkeyPatch) -> list[HeldWork]:
    """The held work of the background thread."""
    works: list[HeldWork] = []

    def hold(_: str, run: Run) -> IoResult:
        works.append(HeldWork(run))
        return works[-1].result

    monkeypatch.setattr(harness.worker, "background", hold)
    return works


def test_a_lookup_in_the_background_ends_on_a_full_disk_and_may_be_repeated(
    harness: HeldReplicaHarness, background: list[HeldWork]
) -> None:
    log = harness.partition("wide", 0).log
    results: list[object] = []
    harness.replicas.disk_lookups.run_in_background(log, log.open_lookup(), results.append)
    background.pop().finish(full_disk(log))
    assert (results, log.is_unavailable) == ([False], False)
    harness.replicas.disk_lookups.run_in_background(log, log.open_lookup(), results.append)
    background.pop().finish(None)
    assert (results, log.is_open) == ([False, True], True)


def test_a_request_that_waits_for_a_lookup_in_the_background_gets_a_reader_on_a_full_disk(
    harness: HeldReplicaHarness, background: list[HeldWork]
) -> None:
    partition = harness.partition("wide", 0)
    results: list[object] = []
    lookup = partition.log.open_lookup()
    harness.replicas.disk_lookups.run_in_background(partition.log, lookup, results.append)
    harness.replicas.await_disk(partition, lookup, lambda: results.append("request"))
    background.pop().finish(full_disk(partition.log))
    assert (results, partition.log.is_open) == ([False], False)
    harness.worker.let_read()
    assert (results, partition.log.is_open) == ([False, "request"], True)
