"""The rules of `Compactor`, on real logs."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from protocol.batch_builder import BatchBuilder
from protocol.primitives import Buffer
from protocol.records import headers
from replication.completion import Completion
from replication.partition.compactor import Compactor, Outcome, Replace
from replication.partition.log_dir_moves import CLEANING_CHECK_MS
from storage.compaction.cleaner import clean
from storage.compaction.cleaner_job import CleanerJob, CleanerResources, CleaningFailed, CleaningResult, Replacement
from storage.io.disk import Disk, StorageError
from storage.io.disk_lookup import wait_for_disk
from storage.segments.directory_recovery import CLEANED, SWAP
from tests.support.compaction import InlineCleaner
from tests.support.logs import retained, write_checkpoint
from tests.support.replica_harness import HeldIoExecutor, ReplicaHarness, fetched, produced
from tests.support.segments import close_idle_files

COMPACT: dict[str, Any] = {"cleanup_policy": "compact", "internal_segment_bytes": 600, "min_cleanable_dirty_ratio": 0.3}


@pytest.fixture(autouse=True)
def log_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="barnabas.compaction")


class HeldCleaner:
    """Runs a job when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[CleanerJob, Replace, Completion[Outcome]]] = []
        self.idle_calls = 0

    def start(self, job: CleanerJob, replace: Replace) -> Completion[Outcome]:
        ended: Completion[Outcome] = Completion()
        self.jobs.append((job, replace, ended))
        return ended

    def on_idle(self) -> None:
        self.idle_calls += 1

    def fail(self, failure: CleaningFailed) -> None:
        """End the newest job."""
        self.jobs.pop()[2].complete(failure)

    def work(self, before_each: Callable[[], object] = lambda: None) -> list[bool]:
        """Run the oldest job; returns what `replace` answered for each new segment."""
        job, replace, ended = self.jobs.pop(0)
        answers: list[bool] = []
        for step in clean(Disk(), job):
            if isinstance(step, Replacement):
                before_each()
                replace(step).then(lambda replaced: answers.append(replaced.value))
                if not answers[-1]:
                    ended.complete(None)
                    return answers
            elif isinstance(step, CleaningResult):
                ended.complete(step)
        return answers


@pytest.fixture
def harness(tmp_path: Path) -> ReplicaHarness:
    return ReplicaHarness(tmp_path)


@pytest.fixture
def cleaner() -> HeldCleaner:
    return HeldCleaner()


def compactor(harness: ReplicaHarness, *cleaners: InlineCleaner | HeldCleaner) -> Compactor:
    """A compactor with these cleaners, or with an inline one."""
    return Compactor(harness.replicas, cleaners or [InlineCleaner(Disk())], CleanerResources(), lambda: harness.wall_ms)


def start(harness: ReplicaHarness, *cleaners: InlineCleaner | HeldCleaner) -> Compactor:
    """A compactor that has checked a compacted topic `t` with 20 batches."""
    fill(harness)
    compaction = compactor(harness, *cleaners)
    compaction.check()
    return compaction


def write(harness: ReplicaHarness, name: str = "t", count: int = 20, keys: int = 3, index: int = 0) -> None:
    """Append batches of one record."""
    for number in range(count):
        batch = BatchBuilder()
        batch.append(harness.wall_ms, b"k%d" % (number % keys), b"v" * 100)
        answer = harness.produce(name, index, records=batch.build(), acks=1)
        if isinstance(harness.worker, HeldIoExecutor):
            harness.worker.let_write()
        assert produced(answer).error_code == 0
    harness.drain_purgatory()


def fill(harness: ReplicaHarness, *names: str, keys: int = 3) -> None:
    """Create compacted topics with 20 batches; the default is `t`."""
    for name in names or ("t",):
        harness.create(name, **COMPACT)
        write(harness, name, keys=keys)


def offsets(harness: ReplicaHarness, name: str = "t") -> list[int]:
    """Base offsets of all batches with records."""
    data = harness.partition(name).log
    found, at = [], data.log_start_offset
    while at < data.log_end_offset:
        buffer = cast("Buffer", wait_for_disk(data.open().reader.read_records, at, 1 << 20))
        for _, header in headers(buffer):
            if header.record_count:
                found.append(header.base_offset)
            at = header.next_offset
        assert buffer
    return found


def size(harness: ReplicaHarness, name: str = "t") -> int:
    """Bytes of a log."""
    return harness.partition(name).log.open().engine.size_bytes


def test_a_schedule_topic_is_not_compacted_although_the_brokers_default_says_so(harness: ReplicaHarness) -> None:
    harness.create("target")
    harness.create("t", **COMPACT, barnabas_deliver_to="target")
    write(harness)
    compactor(harness).check()
    assert offsets(harness) == list(range(20))


def test_a_due_log_is_compacted_once(harness: ReplicaHarness) -> None:
    fill(harness)
    before = size(harness)
    compaction = compactor(harness)
    compaction.check()
    log = harness.partition().log
    assert size(harness) < before / 2
    assert log.offsets.first_dirty_offset == log.open().engine.segments()[-1].base_offset
    after = size(harness)
    compaction.check()
    assert size(harness) == after
    assert fetched(harness.fetch(offset=0)).error_code == 0


def test_unflushed_records_are_flushed_before_compaction(tmp_path: Path, cleaner: HeldCleaner) -> None:
    """Otherwise a power failure could remove a record after its predecessor was compacted away."""
    worker = HeldIoExecutor()
    harness = ReplicaHarness(tmp_path, worker=worker)
    fill(harness)
    compaction = compactor(harness, cleaner)
    compaction.check()
    assert (cleaner.jobs, len(worker.syncs)) == ([], 1)
    worker.let_sync()
    compaction.check()
    assert (len(cleaner.jobs), worker.syncs) == (1, [])


def test_a_topic_without_the_compact_policy_is_not_compacted(harness: ReplicaHarness) -> None:
    harness.create(**{**COMPACT, "cleanup_policy": "delete"})
    write(harness)
    before = offsets(harness)
    compactor(harness).check()
    assert offsets(harness) == before


def test_the_log_with_the_highest_dirty_ratio_is_compacted_first(harness: ReplicaHarness, cleaner: HeldCleaner) -> None:
    fill(harness, "half", "full")
    log = harness.partition("half").log
    log.offsets.first_dirty_offset = 8
    compaction = compactor(harness, cleaner)
    compaction.check()
    assert [job.name for job, _, _ in cleaner.jobs] == ["full-0"]
    compaction.check()
    assert len(cleaner.jobs) == 1, "the only cleaner is at work"
    cleaner.work()
    assert [job.name for job, _, _ in cleaner.jobs] == ["half-0"], "and then the next"
    assert cleaner.jobs[0][0].first_dirty_offset == 8
    cleaner.work()
    assert (cleaner.jobs, cleaner.idle_calls > 0) == ([], True)


def test_two_cleaners_clean_different_logs(harness: ReplicaHarness) -> None:
    """log.cleaner.threads"""
    cleaners = HeldCleaner(), HeldCleaner()
    fill(harness, "a", "b", "c")
    compaction = compactor(harness, *cleaners)
    compaction.check()
    assert {cleaner.jobs[0][0].name for cleaner in cleaners} < {"a-0", "b-0", "c-0"}
    assert cleaners[0].jobs[0][0].name != cleaners[1].jobs[0][0].name


def test_an_unused_log_is_measured_once_and_closed_again(harness: ReplicaHarness) -> None:
    compaction = start(harness)
    log = harness.partition().log
    log.close()
    harness.partition().log.offsets.first_dirty_offset = log.offsets.first_dirty_offset
    compaction.check()
    assert (log.is_open, log.nothing_to_clean) == (False, True)
    compaction.check()
    assert not log.is_open
    write(harness, count=10)
    assert (log.is_open, log.nothing_to_clean) == (True, False)


def test_logs_that_are_empty_clean_or_need_recovery_are_not_opened(harness: ReplicaHarness) -> None:
    harness.create(partitions=3, **COMPACT)
    for index in range(3):
        write(harness, count=20 * index, index=index)
    compactor(harness).check()
    logs = [harness.partition("t", index).log for index in range(3)]
    for log in logs:
        log.open()
        log.close()
    logs[1].offsets.first_dirty_offset = 20
    logs[2]._is_clean = False  # as after a crash
    compactor(harness).check()
    assert [log.is_open for log in logs] == [False] * 3
    logs[2]._is_clean = True
    compactor(harness).check()
    assert [log.nothing_to_clean for log in logs] == [False, False, True], "opened and closed again"


def test_reads_work_before_during_and_after_the_renames(tmp_path: Path) -> None:
    worker = HeldIoExecutor()
    harness = ReplicaHarness(tmp_path, worker=worker)
    fill(harness, keys=1)
    log = harness.partition().log
    compaction = compactor(harness)
    compaction.check()
    worker.let_sync()
    changes: list[Callable[[], None]] = []
    log.files.submit = changes.append
    compaction.check()
    assert [name for name in os.listdir(log.path) if name.endswith(CLEANED)]
    expected = offsets(harness)
    close_idle_files(log.open().engine)
    assert offsets(harness) == expected
    while changes:
        changes.pop(0)()
    assert not [name for name in os.listdir(log.path) if name.endswith((CLEANED, SWAP))]
    close_idle_files(log.open().engine)
    assert offsets(harness) == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda harness: harness.delete(),
        lambda harness: harness.partition().log.open().truncate(5),
        lambda harness: harness.partition().log.open().trim(15, 0),
        lambda harness: harness.replicas.directory_failed(
            harness.partition().log.directory, StorageError("write", "x")
        ),
        lambda harness: setattr(harness.partition().log, "config", harness.replicas.config_of("other")),
    ],
    ids=["deleted", "cut", "trimmed", "offline", "not compacted any more"],
)
def test_a_change_of_the_log_discards_the_run(
    harness: ReplicaHarness, cleaner: HeldCleaner, change: Callable[[ReplicaHarness], object]
) -> None:
    compaction = start(harness, cleaner)
    assert cleaner.work(lambda: change(harness)) == [False]
    compaction.check()
    harness.create("u", **COMPACT)
    if harness.log_manager.directories:
        write(harness, "u")
        cleaner.jobs.clear()
        compaction.check()


def test_a_log_that_cannot_be_compacted_is_logged_once_and_skipped(
    harness: ReplicaHarness, caplog: pytest.LogCaptureFixture
) -> None:
    fill(harness, "broken", "good")
    log = harness.partition("broken").log
    path = Path(log.path) / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[80] ^= 1
    path.write_bytes(data)
    before = size(harness, "good")
    compaction = compactor(harness)
    compaction.check()
    compaction.check()
    assert log.is_uncleanable
    assert [line.message for line in caplog.records].count(
        f"broken-0 cannot be compacted and is skipped until the broker restarts: {path} is damaged at position 0"
    ) == 1  # fmt: skip
    assert size(harness, "good") < before
    assert path.read_bytes() == data
    assert harness.log_manager.directories, "the disk has not failed"


def test_a_failed_disk_takes_its_directory_offline(harness: ReplicaHarness, cleaner: HeldCleaner) -> None:
    fill(harness)
    directory = harness.partition().log.directory
    compactor(harness, cleaner).check()
    cleaner.fail(CleaningFailed(is_damage=False, text="Cannot read", path=f"{directory}/t-0/x", errno=errno.EIO))
    assert not harness.log_manager.directories


def test_a_log_with_pending_file_operations_is_not_compacted(harness: ReplicaHarness, cleaner: HeldCleaner) -> None:
    """One may be the swap of the last compaction; a new one would delete its files."""
    fill(harness)
    changes: list[Callable[[], None]] = []
    harness.partition().log.files.submit_op(lambda: None, changes.append)
    compaction = compactor(harness, cleaner)
    compaction.check()
    assert cleaner.jobs == []
    changes.pop()()
    compaction.check()
    assert len(cleaner.jobs) == 1


FULL = CleaningFailed(is_damage=False, text="Cannot write x", path="x", errno=errno.ENOSPC)
KILLED = CleaningFailed(is_damage=False, text="the compaction process was killed by SIGKILL")


@pytest.mark.parametrize("failure", [FULL, KILLED])
def test_a_full_disk_or_a_killed_cleaner_delays_the_next_run(
    failure: CleaningFailed, harness: ReplicaHarness, cleaner: HeldCleaner, caplog: pytest.LogCaptureFixture
) -> None:
    compaction = start(harness, cleaner)
    delays = [15, 30, 60, 120, 240, 480, 600, 600]
    for seconds in delays:
        cleaner.fail(failure)
        harness.pass_time(seconds * 1000 - 1)
        compaction.check()
        assert cleaner.jobs == []
        harness.pass_time(1)
        compaction.check()
        assert len(cleaner.jobs) == 1
    assert harness.log_manager.directories
    assert [line.message for line in caplog.records if line.name == "barnabas.compaction"] == [
        f"t-0 is not compacted for the next {seconds} s: {failure.text}. Free disk space or memory."
        for seconds in delays
    ]
    assert all(cleaner.work())
    write(harness)
    compaction.check()
    cleaner.fail(failure)
    assert "for the next 15 s" in caplog.records[-1].message


def test_the_back_off_ends_when_the_clock_is_set_back(harness: ReplicaHarness, cleaner: HeldCleaner) -> None:
    compaction = start(harness, cleaner)
    cleaner.fail(KILLED)
    harness.wall_ms -= 3_600_000
    compaction.check()
    assert len(cleaner.jobs) == 1


def test_a_recreated_topic_is_not_cleaned_while_a_cleaner_works_in_its_directory(harness: ReplicaHarness) -> None:
    cleaners = HeldCleaner(), HeldCleaner()
    compaction = start(harness, *cleaners)
    harness.delete()
    fill(harness)
    compaction.check()
    busy = [cleaner for cleaner in cleaners if cleaner.jobs]
    assert len(busy) == 1
    assert busy[0].work() == [False]
    compaction.check()
    assert sum(len(cleaner.jobs) for cleaner in cleaners) == 1


def test_a_file_missing_after_a_trim_is_no_failure(harness: ReplicaHarness, cleaner: HeldCleaner) -> None:
    fill(harness)
    log = harness.partition().log
    compactor(harness, cleaner).check()
    log.open().trim(15, 0)
    cleaner.fail(CleaningFailed(is_damage=False, text="Cannot open", path=f"{log.path}/x", errno=errno.ENOENT))
    assert harness.log_manager.directories
    assert (log.is_being_cleaned, cleaner.jobs) == (False, []), "not repeated at once"


def test_retention_waits_for_the_cleaner(harness: ReplicaHarness, cleaner: HeldCleaner) -> None:
    harness.create(**{**COMPACT, "cleanup_policy": "compact,delete", "retention_ms": 1000})
    write(harness)
    compactor(harness, cleaner).check()
    harness.pass_time(100_000)
    log = harness.partition().log
    list(retained(harness.log_manager, harness.wall_ms))
    assert log.log_start_offset == 0
    assert all(cleaner.work())
    list(retained(harness.log_manager, harness.wall_ms))
    assert log.log_start_offset == log.log_end_offset == 20


def test_a_new_cleaner_repeats_the_job_of_a_replaced_one(harness: ReplicaHarness) -> None:
    old, new = HeldCleaner(), HeldCleaner()
    compaction = start(harness, old)
    job, _, ended = old.jobs[0]
    compaction.set_cleaners([new], CleanerResources(buffer_bytes=4096))
    compaction.check()
    assert not new.jobs, "two must not clean one log"
    ended.complete(None)
    ((again, _, _),) = new.jobs
    assert (again.path, again.resources) == (job.path, CleanerResources(buffer_bytes=4096))
    assert len(old.jobs) == 1


def test_a_stopped_compactor_swaps_in_no_segment(harness: ReplicaHarness, cleaner: HeldCleaner) -> None:
    compaction = start(harness, cleaner)
    compaction.stop()
    assert cleaner.work() == [False]
    compaction.check()
    assert cleaner.jobs == []


def test_the_first_dirty_offset_is_checkpointed_and_lowered_by_truncation(harness: ReplicaHarness) -> None:
    """cleaner-offset-checkpoint, as in Apache Kafka."""
    start(harness)
    log = harness.partition().log
    write_checkpoint(harness.log_manager)
    text = (Path(log.directory) / "cleaner-offset-checkpoint").read_text()
    assert text == f"0\n1\nt 0 {log.offsets.first_dirty_offset}\n"
    log.open().truncate(7)
    assert log.offsets.first_dirty_offset == log.log_end_offset <= 7


def test_no_compaction_begins_of_a_log_that_a_move_is_about_to_replace(tmp_path: Path) -> None:
    harness, cleaner = ReplicaHarness(tmp_path, directories=2), HeldCleaner()
    compaction = start(harness, cleaner)
    log = harness.partition().log
    target = next(path for path in harness.log_manager.directories if path != log.directory)
    assert harness.moves.alter("t", 0, target) == 0
    write(harness)
    cleaner.work()
    compaction.check()
    assert (harness.partition().log, cleaner.jobs) == (log, [])
    harness.pass_time(CLEANING_CHECK_MS)
    assert harness.partition().log.directory == target
    compaction.check()
    assert len(cleaner.jobs) == 1
