"""Settling a commit log: old files become runs in which the batches of a partition touch, each byte once."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from storage.commitlog.catalog import CATALOG
from storage.commitlog.cleaner import Cleaner
from storage.commitlog.live_bytes import LiveBytes
from storage.commitlog.run_choice import (
    SETTLED_BYTES,
    SETTLED_ENTRIES,
    SETTLED_FILES,
    Candidate,
    Window,
    choose,
    choose_unsettled,
)
from storage.commitlog.run_file import is_settled_run
from storage.inspection.commit_log_check import CommitLogCheck
from storage.io.disk import TEMPORARY, Disk, StorageError
from storage.io.disk_lookup import wait_for_disk
from tests.support.crashing_disk import CrashingDisk
from tests.support.faulty_disk import FaultyDisk
from tests.support.segments import NOW_MS
from tests.unit.storage.commitlog.test_cleaning import (
    _DyingDisk,
    _Killed,
    clean,
    delete_odd,
    fill,
    place_of,
    runs,
    spaces,
)
from tests.unit.storage.commitlog.test_commit_log import (
    FILE_BYTES,
    Process,
    bytes_of,
    change_at_random,
    damage,
    state_of,
    sync,
)

ALL = 1 << 40
MEDIUM, LARGE = 800, 1800
"""Sizes of batches: files are few batches."""


def settle(process: Process) -> Cleaner:
    cleaner = Cleaner(process.disk, process.log)
    for _ in process.log.files:
        for _ in cleaner.settle(NOW_MS):
            pass
    return cleaner


def settled(process: Process) -> list[Path]:
    return [path for path in runs(process) if is_settled_run(process.disk, str(path))]


def regions_of(process: Process, partition: int, max_bytes: int = 1 << 30) -> int:
    engine = process[partition]
    found = wait_for_disk(engine.locate, engine.start_offset, max_bytes, engine.end_offset, min_one_batch=True)
    return sum([len(region.spans) for region in found.regions])


class TestChoice:
    def test_the_oldest_full_window_is_chosen(self) -> None:
        one = Candidate(10, 5, 0, is_overdue=False)
        assert choose_unsettled([one] * SETTLED_FILES, ALL) is None
        assert choose_unsettled([one] * (2 * SETTLED_FILES + 1), ALL) == Window(
            range(SETTLED_FILES), 10 * SETTLED_FILES
        )
        assert choose_unsettled([one] * (SETTLED_FILES + 1), 159) is None

    def test_settled_and_damaged_files_are_not_in_a_window(self) -> None:
        one = Candidate(10, 5, 0, is_overdue=False)
        for other in (one._replace(is_settled=True), None):
            files = [one, one, other, *[one] * (SETTLED_FILES + 1)]
            assert choose_unsettled(files, ALL) == Window(range(3, 3 + SETTLED_FILES), 10 * SETTLED_FILES)

    def test_large_files_and_files_with_many_batches_make_smaller_windows(self) -> None:
        large = Candidate(SETTLED_BYTES // 3, 0, 0, is_overdue=False)
        assert choose_unsettled([large] * 5, ALL) == Window(range(3), SETTLED_BYTES // 3 * 3)
        many = Candidate(10, 0, 0, is_overdue=False, entries=SETTLED_ENTRIES)
        assert choose_unsettled([many] * 5, ALL) == Window(range(1), 10)

    def test_cleaning_rewrites_a_large_run_alone_and_only_into_free_space(self) -> None:
        large = Candidate(300, 400, 0, is_overdue=False)
        assert choose([large, large], 100, max_live=1000) == Window(range(1), 300)
        assert choose([large, large], 100, max_live=299) is None


class TestSettledRuns:
    @pytest.mark.parametrize("seed", range(4))
    def test_all_partitions_are_the_same_afterwards_and_in_the_next_process(self, tmp_path: Path, seed: int) -> None:
        process = Process(tmp_path)
        change_at_random(process, Random(seed), 500)
        before = {number: state_of(process[number]) for number in range(6)}
        settle(process)
        assert settled(process)
        assert {number: state_of(process[number]) for number in range(6)} == before
        process.log.close()
        again = Process(tmp_path)
        assert {number: state_of(again[number]) for number in range(6)} == before

    def test_a_read_of_settled_files_is_one_range_for_each(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        contents = fill(process, 4, 60, MEDIUM)
        before = regions_of(process, 0)
        files = len(process.log.files)
        settle(process)
        assert len(settled(process)) == (files - 1) // SETTLED_FILES
        unsettled = len(process.log.files) - len(settled(process))
        assert before == 60
        assert regions_of(process, 0) <= len(settled(process)) + 3 * unsettled
        assert bytes_of(process[0]) == contents[0]

    def test_no_byte_is_settled_twice(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        cleaner = Cleaner(process.disk, process.log)
        for _ in range(6):
            fill(process, 4, 16, MEDIUM)
            while list(cleaner.settle(NOW_MS)):
                pass
        appended = sum([process[number].size_bytes for number in range(4)])
        assert len(settled(process)) > 3
        assert appended / 2 < cleaner.metrics.settled_bytes < appended * 1.1
        assert cleaner.metrics.copied_bytes == 0

    def test_cleaning_keeps_a_settled_run_settled(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        contents = fill(process, 4, 60, MEDIUM)
        settle(process)
        count = len(settled(process))
        delete_odd(process, 4)
        for _ in range(3):
            process.log.close()
            process = Process(tmp_path)
            clean(process)
            settle(process)
        assert 1 <= len(settled(process)) <= count
        assert all(dead == 0 or dead < live for live, dead in spaces(process))
        assert {number: bytes_of(process[number]) for number in contents} == contents
        assert regions_of(process, 0) < 60 // 2

    def test_a_file_that_is_settled_during_the_check_of_the_queues_is_not_damaged(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        process = Process(tmp_path)
        fill(process, 4, 60, MEDIUM)
        process.log.close()
        monkeypatch.setattr("storage.commitlog.recovery._CHECKED_BYTES", -1)
        again = Process(tmp_path)
        again.log.open()
        sealed = len(again.log.sealed_files)
        checks = again.log.check_queues()
        next(checks)
        settle(again)
        assert len(again.log.sealed_files) < sealed
        for _ in checks:
            pass
        assert "is damaged" not in caplog.text
        assert (tmp_path / "commitlog" / CATALOG).exists()

    def test_files_are_cleaned_while_others_are_settled(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        contents = fill(process, 4, 60, MEDIUM)
        sync(process[0])
        cleaner = Cleaner(process.disk, process.log)
        steps = cleaner.settle(NOW_MS)
        next(steps)
        delete_odd(process, 4)
        for _ in cleaner.clean(NOW_MS):
            next(steps, None)
        for _ in steps:
            pass
        assert cleaner.metrics.runs > 1
        assert settled(process)
        again = Process(tmp_path)
        assert {number: bytes_of(again[number]) for number in contents} == contents

    def test_the_check_of_a_log_directory_finds_no_issue(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        fill(process, 2, 80, MEDIUM)
        settle(process)
        process.log.close()
        assert settled(process)
        check = CommitLogCheck(Disk(), str(tmp_path), {(b"t" * 16, 0): "t-0", (b"t" * 16, 1): "t-1"})
        check.run()
        assert check.issues == []

    def test_entries_in_memory_are_not_read_instead_of_a_run(self, tmp_path: Path) -> None:
        """The run begins before the file whose entries they are."""
        process = Process(tmp_path)
        jobs: list[Callable[[], None]] = []
        first = fill(process, 4, 3, LARGE)
        process.log.submit = jobs.append
        last = fill(process, 4, 4, LARGE)
        for job in jobs:
            job()
        assert process.log.slots[0].slices[0].file.is_sealed
        settle(process)
        assert settled(process)
        assert {number: bytes_of(process[number]) for number in first} == {n: first[n] + last[n] for n in first}

    def test_live_bytes_are_those_before(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        fill(process, 4, 60, MEDIUM)
        process[0].trim(30)
        live = sum([found[0] for found in spaces(process)])
        settle(process)
        assert settled(process)
        measured = LiveBytes(process.disk).update(process.log.sealed_files, process.log.extents(), NOW_MS)
        assert sum([space.live for space in measured]) == live


class TestCrashes:
    @pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.long)])
    def test_a_kill_at_any_call_leaves_the_files_or_the_run(self, tmp_path: Path, step: int) -> None:
        calls = 0
        while True:
            root = tmp_path / str(calls)
            root.mkdir()
            disk = _DyingDisk()
            process = Process(root, disk)
            expected = fill(process, 4, 7, LARGE)
            sync(process[0])
            disk.calls_left = calls
            try:
                settle(process)
            except _Killed:
                pass
            else:
                break
            again = Process(root)
            assert {number: bytes_of(again[number]) for number in expected} == expected
            settle(again)
            assert settled(again)
            assert {number: bytes_of(Process(root)[number]) for number in expected} == expected
            calls += step
        assert calls > 20

    @pytest.mark.parametrize("seed", range(10))
    def test_a_loss_of_power_amid_settling_loses_nothing_durable(self, tmp_path: Path, seed: int) -> None:
        print(f"seed {seed}")
        dice, disk = Random(seed), CrashingDisk()
        process = Process(tmp_path, disk)
        expected = fill(process, 4, 7, LARGE)
        sync(process[0])
        steps = Cleaner(disk, process.log).settle(NOW_MS)
        for _ in range(dice.randrange(6)):
            next(steps, None)
        disk.crash(dice)
        again = Process(tmp_path, disk)
        assert {number: bytes_of(again[number]) for number in expected} == expected
        settle(again)
        assert settled(again)
        assert {number: bytes_of(again[number]) for number in expected} == expected


class _FillingDisk(FaultyDisk):
    """A disk whose free space falls at each query."""

    left = 1 << 30
    falls_by = 0

    def space(self, path: str) -> tuple[int, int]:
        self.left -= self.falls_by
        return 1 << 30, max(self.left, 0)


class _FailingDirectoryDisk(FaultyDisk):
    """A disk on which the first sync of a directory after a rename fails, if it is armed."""

    is_armed = False

    def commit_temporary(self, path: str, suffix: str = TEMPORARY) -> None:
        super().commit_temporary(path, suffix)
        self.fail_syncs = errno.EIO if self.is_armed else 0

    def sync_dir(self, path: str) -> None:
        if self.fail_syncs:
            self.is_armed, self.fail_syncs = False, 0
            raise StorageError("sync", path, OSError(errno.EIO, os.strerror(errno.EIO)))
        super().sync_dir(path)


class TestDisks:
    def test_a_run_whose_directory_cannot_be_synced_leaves_no_queue_file(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A queue file without its log file would be a lost file at the next start."""
        disk = _FailingDirectoryDisk()
        process = Process(tmp_path, disk)
        expected = fill(process, 4, 60, MEDIUM)
        sync(process[0])
        disk.is_armed = True
        with pytest.raises(StorageError):
            settle(process)
        assert {path.with_suffix("") for path in process.paths(".queue")} <= {
            path.with_suffix("") for path in process.paths(".clog")
        }
        again = Process(tmp_path)
        assert {number: bytes_of(again[number]) for number in expected} == expected
        assert "are lost" not in caplog.text

    def test_nothing_is_settled_without_twice_the_space(self, tmp_path: Path) -> None:
        disk = _FillingDisk()
        process = Process(tmp_path, disk)
        fill(process, 4, 7, LARGE)
        disk.left = SETTLED_FILES * FILE_BYTES
        settle(process)
        assert not runs(process)
        disk.left = 3 * SETTLED_FILES * FILE_BYTES
        settle(process)
        assert settled(process)

    def test_settling_ends_when_the_disk_is_nearly_full_and_changes_nothing(self, tmp_path: Path) -> None:
        disk = _FillingDisk()
        process = Process(tmp_path, disk)
        expected = fill(process, 4, 7, LARGE)
        before = process.paths("")
        disk.left, disk.falls_by = 4 * SETTLED_FILES * FILE_BYTES, 2 * SETTLED_FILES * FILE_BYTES
        cleaner = Cleaner(disk, process.log)
        assert len(list(cleaner.settle(NOW_MS))) < 2
        assert process.paths("") == before
        assert {number: bytes_of(process[number]) for number in expected} == expected
        disk.falls_by, disk.left = 0, 1 << 30
        while list(cleaner.settle(NOW_MS)):
            pass
        assert settled(process)

    def test_a_disk_that_becomes_full_ends_it(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        fill(process, 4, 7, LARGE)
        assert len(list(Cleaner(process.disk, process.log).settle(NOW_MS, lambda: True))) == 0
        assert not runs(process)

    def test_a_damaged_file_stays_and_the_others_are_settled(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        expected = fill(process, 4, 60, MEDIUM)
        damaged, at = place_of(process, 0, 9)
        damage(damaged, at + 80)
        cleaner = settle(process)
        assert damaged.exists()
        assert cleaner.metrics.damaged_files == 1
        assert settled(process)
        assert bytes_of(process[2]) == expected[2]

    def test_a_failed_disk_is_reported(self, tmp_path: Path) -> None:
        disk = FaultyDisk()
        process = Process(tmp_path, disk)
        expected = fill(process, 4, 7, LARGE)
        sync(process[0])
        disk.fail_syncs = 5
        with pytest.raises(StorageError):
            settle(process)
        disk.fail_syncs = 0
        assert {number: bytes_of(Process(tmp_path)[number]) for number in expected} == expected
