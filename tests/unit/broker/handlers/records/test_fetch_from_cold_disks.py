"""Fetch and ListOffsets requests that wait for the disk."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from protocol.messages.produce_fetch import ListOffsetsRequest
from storage.io.disk import StorageError
from storage.io.disk_lookup import DiskLookup, wait_for_disk
from tests.support.messages import message
from tests.support.replica_harness import (
    Client,
    HeldReplicaHarness,
    batch,
    fetched,
    named,
    offsets,
)

FILES = 60
"""Each has a log file and a queue file; at most 80 are open."""


@pytest.fixture
def harness(tmp_path: Path) -> HeldReplicaHarness:
    made = HeldReplicaHarness(tmp_path)
    made.create("t", partitions=3)
    for index in range(3):
        made.produce("t", index, acks=1)
        made.worker.let_write()
    for partition in made.replicas.partitions.values():
        partition.log.close()
    made.worker.holds_reads = True
    return made


def run_disk_reads(harness: HeldReplicaHarness, error: StorageError | None = None, at_most: int = 1000) -> None:
    for _ in range(at_most):
        if harness.worker.reads:
            harness.worker.let_read(error)
    harness.drain_purgatory()


@pytest.mark.parametrize("max_wait_ms", [0, 500])
def test_a_fetch_of_blocked_partitions_waits_for_the_disk(harness: HeldReplicaHarness, max_wait_ms: int) -> None:
    answer = harness.fetch("t", 0, 0, max_wait_ms=max_wait_ms)
    assert not answer.is_done
    harness.pass_time(10_000)
    harness.drain_purgatory()
    assert not answer.is_done
    run_disk_reads(harness)
    assert offsets(fetched(answer)) == [0]


def test_the_logs_that_a_fetch_opens_are_one_job_of_a_reader(harness: HeldReplicaHarness) -> None:
    answer = harness.fetch_all({("t", index): 0 for index in range(3)}, max_wait_ms=0)
    assert len(harness.worker.reads) == 1
    run_disk_reads(harness, at_most=1)
    assert [offsets(fetched(answer, 0, index)) for index in range(3)] == [[0]] * 3


def test_an_unblocked_fetch_without_records_times_out(harness: HeldReplicaHarness) -> None:
    answer = harness.fetch("t", 0, 1, max_wait_ms=500)
    run_disk_reads(harness)
    assert not answer.is_done
    harness.pass_time(500)
    assert answer.is_done
    assert fetched(answer).error_code == 0
    late = harness.fetch("t", 1, 1, max_wait_ms=0)
    run_disk_reads(harness)
    assert late.is_done


def test_the_first_response_of_a_session_contains_all_partitions(harness: HeldReplicaHarness) -> None:
    first = harness.fetch_all({("t", index): 0 for index in range(3)}, session=(0, 0), max_wait_ms=0)
    while harness.worker.reads:
        assert not first.is_done
        harness.worker.let_read()
        harness.drain_purgatory()
    assert named(first) == [("t", 0), ("t", 1), ("t", 2)]


def test_a_failed_disk_fails_the_look_up(harness: HeldReplicaHarness) -> None:
    answer = harness.fetch("t", 0, 0)
    harness.worker.let_read(StorageError("read", "x"))
    harness.drain_purgatory()
    assert fetched(answer).error_code == 56


def test_an_incremental_fetch_does_not_wait_for_blocked_partitions(harness: HeldReplicaHarness) -> None:
    harness.worker.holds_reads = False
    client = Client(harness, max_wait_ms=0)
    assert named(client.fetch({("t", index): 0 for index in range(3)})) == [("t", 0), ("t", 1), ("t", 2)]
    harness.worker.holds_reads = True
    harness.partition("t", 1).log.close()
    second = client.fetch()
    assert named(second) == [("t", 0), ("t", 2)]
    run_disk_reads(harness)
    third = client.fetch()
    assert named(third)[0] == ("t", 1)
    assert offsets(fetched(third)) == [0]


@pytest.fixture
def scattered(tmp_path: Path) -> HeldReplicaHarness:
    """A partition with one batch in each of more files of a commit log than may be open."""
    harness = HeldReplicaHarness(tmp_path)
    harness.log_manager.commit_logs.file_bytes = 4096
    harness.create("t", partitions=2, barnabas_storage_engine="commitlog")
    for _ in range(FILES):
        for index, size in ((0, 10), (1, 3500)):
            harness.produce("t", index, batch(size=size), acks=1)
            harness.worker.let_write()
    harness.worker.holds_reads = True
    return harness


@pytest.mark.parametrize("is_written_meanwhile", [False, True])
def test_a_fetch_from_more_files_than_may_be_open_is_answered_after_one_disk_read(
    scattered: HeldReplicaHarness, *, is_written_meanwhile: bool
) -> None:
    answer = scattered.fetch("t", 0, 0, max_wait_ms=0)
    if is_written_meanwhile:
        scattered.produce("t", 0, acks=1)
        scattered.worker.let_write()
    run_disk_reads(scattered, at_most=1)
    assert offsets(fetched(answer)) == [*range(FILES)]


def test_a_read_of_committed_records_does_not_get_those_of_another_read_from_disk(
    scattered: HeldReplicaHarness,
) -> None:
    partition = scattered.partition("t", 0)
    engine = partition.log.open().engine
    uncommitted, committed = (partial(engine.locate, 0, 1 << 20, bound, min_one_batch=True) for bound in (FILES, 7))
    lookup = uncommitted()
    assert isinstance(lookup, DiskLookup)
    assert committed() is lookup
    lookup.run()
    lookup.finish()
    assert [wait_for_disk(found).end_offset for found in (uncommitted, committed)] == [FILES, 7]


def test_a_cancelled_blocked_fetch_keeps_the_session(harness: HeldReplicaHarness) -> None:
    harness.worker.holds_reads = False
    client = Client(harness, max_wait_ms=0)
    assert named(client.fetch({("t", 0): 0})) == [("t", 0)]
    harness.worker.holds_reads = True
    harness.partition("t", 0).log.close()
    cancelled = client.fetch()
    cancelled.pending.cancel()
    run_disk_reads(harness)
    assert len(harness.purgatory) == 0
    assert named(client.fetch()) == [("t", 0)]


def test_a_blocked_follower_fetch_still_acknowledges(tmp_path: Path) -> None:
    harness = HeldReplicaHarness(tmp_path)
    harness.create("r", replicas=(1, 2), isr=(1, 2))
    harness.worker.holds_reads = True
    answer = harness.fetch("r", 0, 0, replica=2, max_wait_ms=0, version=12)
    run_disk_reads(harness)
    assert answer.is_done
    assert harness.partition("r").followers[2].end_offset == 0


def test_timestamp_look_ups_run_on_a_thread(harness: HeldReplicaHarness) -> None:
    parts = [{"partition_index": index, "timestamp": stamp} for index, stamp in enumerate((-1, 0, -3))]
    request = message(ListOffsetsRequest, replica_id=-1, topics=[{"name": "t", "partitions": parts}])
    answers = []
    for _ in range(2):
        pending = harness.offsets.list_offsets(harness.context(2, 8), request)
        pending.then(lambda late: answers.append(late.result()))
    pending.cancel()
    run_disk_reads(harness)
    assert [part.offset for part in answers[0].topics[0].partitions] == [1, 0, 0]
    assert len(answers) == 1
