"""Partitions in the commit log of their directory: one write for a request, one flush for a round."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

from protocol.errors import ErrorCode
from replication.completion import Completion
from replication.io_executor import Begin, InlineIoExecutor, IoResult
from replication.partition.partition import Append
from storage.io.disk import StorageError
from storage.io.flush_task import FlushTask
from tests.support.faulty_disk import FaultyDisk
from tests.support.partition_rig import code_of
from tests.support.replica_harness import ReplicaHarness, batch

PARTITIONS = 600
"""More than the limit of a round for segment files."""


class RoundExecutor(InlineIoExecutor):
    """Flushes begin when a round begins, and end when it ends."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Begin, IoResult]] = []
        self.joined = 0

    def sync(self, directory: str, begin: Begin) -> IoResult:
        result: IoResult = Completion()
        self.waiting.append((begin, result))
        return result

    def join_sync(self, directory: str) -> None:
        self.joined += 1

    def begin_round(self) -> list[tuple[Any, IoResult]]:
        """Begin the flushes that wait."""
        waiting, self.waiting = self.waiting, []
        return [(begin(), result) for begin, result in waiting]

    def end_round(self, begun: list[tuple[Any, IoResult]], error: StorageError | None = None) -> None:
        """Run them and report their results."""
        for run, _ in begun:
            run()
        for _, result in begun:
            result.complete(error)

    def run_rounds(self) -> None:
        """Rounds until no flush waits."""
        while self.waiting:
            self.end_round(self.begin_round())


class Harness(ReplicaHarness):
    """Broker 1 with partitions in its commit log that have been used."""

    def __init__(self, path: Path, *, partitions: int = PARTITIONS) -> None:
        self.faulty, self.rounds = FaultyDisk(), RoundExecutor()
        super().__init__(path, worker=self.rounds, disk=self.faulty)
        self.create(partitions=partitions, barnabas_storage_engine="commitlog", flush_messages=1)
        self.rounds.run_rounds()
        self.append_to(range(partitions))
        self.rounds.run_rounds()
        self.rounds.joined = 0
        self.faulty.reset_counters()

    def append_to(self, indexes: range) -> list[Append]:
        records = [("t", index, batch()) for index in indexes]
        return self.replicas.appender.append_all(records, acks=-1, wall_ms=self.wall_ms)


def test_a_request_for_many_partitions_is_one_write(tmp_path: Path) -> None:
    harness = Harness(tmp_path, partitions=100)
    appends = harness.append_to(range(100))
    assert [Path(path).suffix for path, _, _ in harness.faulty.writes] == [".clog"]
    harness.rounds.run_rounds()
    assert [append.value.base_offset for append in appends] == [1] * 100


def test_a_request_after_a_sync_needs_no_further_write(tmp_path: Path) -> None:
    """A system call takes 1,024 buffers: two for each append, and those of the frames before them."""
    harness = Harness(tmp_path)
    harness.append_to(range(PARTITIONS))
    assert len(harness.faulty.writes) == 2


def test_a_round_syncs_one_file_for_any_number_of_partitions(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    appends = harness.append_to(range(PARTITIONS))
    (flush,) = harness.rounds.begin_round()
    assert isinstance(flush[0], FlushTask)
    assert flush[0].only_syncs
    assert [Path(file.path).suffix for file in flush[0].files] == [".clog"]
    assert harness.rounds.joined == PARTITIONS - 1
    assert not any(append.is_done for append in appends)
    harness.rounds.end_round([flush])
    assert [code_of(append) for append in appends] == [ErrorCode.NONE] * PARTITIONS
    assert len(harness.faulty.syncs) == 1


def test_first_flushes_of_new_partitions_are_one_sync_too(tmp_path: Path) -> None:
    rounds = RoundExecutor()
    harness = ReplicaHarness(tmp_path, worker=rounds)
    harness.create(partitions=100, barnabas_storage_engine="commitlog", flush_messages=1)
    rounds.run_rounds()
    records = [("t", index, batch()) for index in range(100)]
    appends = harness.replicas.appender.append_all(records, acks=-1, wall_ms=harness.wall_ms)
    begun = rounds.begin_round()
    assert [run.only_syncs for run, _ in begun] == [True]
    rounds.end_round(begun)
    assert all(append.is_done for append in appends)


def test_a_round_that_begins_before_the_last_one_is_reported_acknowledges_its_own_appends_only(tmp_path: Path) -> None:
    harness = Harness(tmp_path, partitions=4)
    first = harness.append_to(range(2))
    begun = harness.rounds.begin_round()
    second = harness.append_to(range(2, 4))
    next_begun = harness.rounds.begin_round()  # as rounds do while results are reported
    harness.rounds.end_round(begun)
    assert [append.is_done for append in (*first, *second)] == [True, True, False, False]
    harness.rounds.end_round(next_begun)
    assert all(append.is_done for append in second)


def test_appends_after_the_begin_of_a_round_wait_for_the_next_one(tmp_path: Path) -> None:
    harness = Harness(tmp_path, partitions=2)
    (early,) = harness.append_to(range(1))
    begun = harness.rounds.begin_round()
    (late,) = harness.append_to(range(1))
    harness.rounds.end_round(begun)
    assert (early.is_done, late.is_done) == (True, False)
    harness.rounds.run_rounds()
    assert late.value.base_offset == 2


def test_a_round_does_not_count_for_what_follows_a_truncation_during_it(tmp_path: Path) -> None:
    harness = Harness(tmp_path, partitions=1)
    opened = harness.partition("t", 0).log.open()
    harness.append_to(range(1))
    begun = harness.rounds.begin_round()
    opened.truncate(1)
    harness.append_to(range(1))
    harness.rounds.end_round(begun)
    assert (opened.engine.flushed_end_offset, opened.engine.end_offset) == (1, 2)
    harness.rounds.run_rounds()
    assert opened.engine.flushed_end_offset == 2


def test_an_append_that_waits_for_a_sync_keeps_no_records(tmp_path: Path) -> None:
    harness = Harness(tmp_path, partitions=1)
    records = batch()
    batches = [("t", 0, memoryview(records))]
    (append,) = harness.replicas.appender.append_all(batches, acks=-1, wall_ms=harness.wall_ms)
    batches.clear()
    assert not append.is_done
    records.append(0)  # a view of it would raise BufferError


def test_a_failed_sync_fails_all_appends_of_its_round(tmp_path: Path) -> None:
    harness = Harness(tmp_path, partitions=5)
    appends = harness.append_to(range(5))
    begun = harness.rounds.begin_round()
    harness.rounds.end_round(begun, StorageError("sync", "file", OSError(errno.EIO, "error")))
    assert [code_of(append) for append in appends] == [ErrorCode.KAFKA_STORAGE_ERROR] * 5


def test_a_deleted_partition_leaves_the_round_to_the_others(tmp_path: Path) -> None:
    harness = Harness(tmp_path, partitions=2)
    harness.create("other", barnabas_storage_engine="commitlog", flush_messages=1)
    harness.rounds.run_rounds()
    appends = harness.append_to(range(2))
    deleted = harness.append("other")
    harness.delete("other")
    harness.rounds.run_rounds()
    assert code_of(deleted) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [code_of(append) for append in appends] == [ErrorCode.NONE] * 2


def test_a_partition_with_a_new_leader_epoch_is_flushed_with_the_others(tmp_path: Path) -> None:
    """Its epochs are those of its batches."""
    harness = Harness(tmp_path, partitions=3)
    appends = harness.append_to(range(3))
    harness.partition("t", 1).log.assign_epoch(7)
    begun = harness.rounds.begin_round()
    assert [run.only_syncs for run, _ in begun] == [True]
    harness.rounds.end_round(begun)
    assert [append.is_done for append in appends] == [True, True, True]
