"""Cleaning a commit log: dead files, runs, crashes, damage, a full disk."""

from __future__ import annotations

import gc
import os
import shutil
from pathlib import Path
from random import Random

import pytest

from storage.commitlog.catalog import CATALOG
from storage.commitlog.cleaner import Cleaner
from storage.commitlog.files_ahead import FILES_AHEAD
from storage.commitlog.live_bytes import LiveBytes
from storage.commitlog.log_file import is_run, parse_log_name
from storage.commitlog.run_file import run_queue
from storage.commitlog.slot_reader import SlotReader
from storage.commitlog.slots import SlotId
from storage.io.deferred_file_ops import FileOp
from storage.io.disk import Disk, File, StorageError
from storage.io.disk_lookup import DiskLookup, read_waiting, wait_for_disk
from storage.io.file_handle_cache import FileHandleCache
from tests.support.crashing_disk import CrashingDisk
from tests.support.faulty_disk import FaultyDisk
from tests.support.model_time_disk import ModelTimeDisk
from tests.support.segments import NOW_MS, append, batch, region_bytes, reset_engine, truncate_engine
from tests.unit.storage.commitlog.test_commit_log import (
    FILE_BYTES,
    Process,
    append_to,
    bytes_of,
    change_at_random,
    damage,
    state_of,
    sync,
)

SMALL_DISK_FILE_BYTES = 16 * 1024
WEEK_MS = 7 * 24 * 3600 * 1000


def clean(process: Process, wall_ms: int = NOW_MS, *, is_full: bool = False) -> Cleaner:
    cleaner = Cleaner(process.disk, process.log)
    cleaner.begin_pass(wall_ms)
    for _ in cleaner.clean(wall_ms, is_full=is_full):
        pass
    return cleaner


def spaces(process: Process) -> list[tuple[int, int]]:
    """Live and dead bytes of each sealed file, measured again."""
    found = LiveBytes(process.disk).update(process.log.sealed_files, process.log.extents(), NOW_MS)
    return [(space.live, space.dead) for space in found]


def live_by_reading(process: Process) -> dict[str, int]:
    """The sizes of the batches that readers find, by file."""
    found = {file.path: 0 for file in process.log.sealed_files}
    for slot in process.log._numbered.values():
        reader = SlotReader(slot, process.log.files, read_waiting)
        for file, entry in reader.entries_from(slot.start_offset):
            if file.path in found:
                found[file.path] += entry.size
    return found


def fill(process: Process, partitions: int, batches: int, size: int = 300) -> dict[int, bytes]:
    """Append in turn to several partitions, larger batches to the odd ones; returns the contents of the even ones."""
    contents = dict.fromkeys(range(0, partitions, 2), b"")
    for number in [number for _ in range(batches) for number in range(partitions)]:
        data = append_to(process[number], size * (1 + number % 2))
        if number in contents:
            contents[number] += data
    return contents


def drop(process: Process, partition: int) -> None:
    """Delete a partition."""
    process[partition].delete()
    process.log.drop(process.log.slot(SlotId(b"t" * 16, partition)))


def delete_odd(process: Process, partitions: int) -> None:
    for number in range(1, partitions, 2):
        drop(process, number)


def fill_and_delete_odd(process: Process, partitions: int, batches: int) -> dict[int, bytes]:
    """Fill partitions durably and delete the odd ones; returns the contents of the even ones."""
    contents = fill(process, partitions, batches)
    sync(process[0])
    delete_odd(process, partitions)
    return contents


def cleaned(root: Path, partitions: int, batches: int) -> tuple[Process, dict[int, bytes]]:
    """A closed commit log whose even partitions are in runs, and their contents."""
    process = Process(root)
    contents = fill_and_delete_odd(process, partitions, batches)
    clean(process)
    process.log.close()
    return process, contents


def place_of(process: Process, partition: int, offset: int) -> tuple[Path, int]:
    """The file with a batch, and its position there."""
    file, entry = next(process[partition].view().entries_from(offset))
    return Path(file.path), entry.position


def names(process: Process, suffix: str = ".clog") -> list[str]:
    return [path.name for path in process.paths(suffix)]


def runs(process: Process) -> list[Path]:
    return [path for path in process.paths(".clog") if is_run(str(path))]


class TestLiveBytes:
    @pytest.mark.parametrize("seed", range(8))
    def test_they_are_the_sizes_of_the_batches_that_readers_find(self, tmp_path: Path, seed: int) -> None:
        process = Process(tmp_path)
        measured = LiveBytes(process.disk)
        dice = Random(seed)
        for _ in range(8):
            change_at_random(process, dice, 50) if _ == 0 else _change_more(process, dice)
            files = process.log.sealed_files
            found = measured.update(files, process.log.extents(), NOW_MS)
            assert {file.path: space.live for file, space in zip(files, found, strict=True)} == live_by_reading(process)
            assert [(space.live, space.dead) for space in found] == spaces(process)

    def test_a_file_is_not_measured_again_without_a_change_of_its_partitions(self, tmp_path: Path) -> None:
        disk = FaultyDisk()
        process = Process(tmp_path, disk)
        fill(process, 4, 30)
        process[9].open(None)
        measured = LiveBytes(disk)
        files = process.log.sealed_files
        measured.update(files, process.log.extents(), NOW_MS)
        disk.reset_counters()
        measured.update(files, process.log.extents(), NOW_MS)
        assert not disk.reads
        process[1].trim(process[1].segments()[1].base_offset)
        measured.update(files, process.log.extents(), NOW_MS)
        assert len({path for path, _, _ in disk.reads if path.endswith(".queue")}) < len(files) / 2


def _change_more(process: Process, dice: Random) -> None:
    for _ in range(20):
        engine = process[dice.randrange(6)]
        what = dice.random()
        if what < 0.6:
            append_to(engine, dice.randrange(150, 600))
        elif what < 0.75:
            engine.trim(dice.randrange(engine.start_offset, engine.end_offset + 1))
        elif what < 0.95:
            truncate_engine(engine, dice.randrange(engine.start_offset, engine.end_offset + 1))
        else:
            reset_engine(engine, engine.end_offset)


class TestDeadFiles:
    def test_files_without_live_batches_are_removed_and_cost_no_copying(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        contents = fill(process, 2, 60)
        process[0].trim(40)
        process[1].trim(40)
        start = process[0].start_offset
        assert start > 30
        before = sum(path.stat().st_size for path in process.paths(".clog"))
        metrics = clean(process).metrics
        assert sum(path.stat().st_size for path in process.paths(".clog")) < before / 2
        assert metrics.copied_bytes < metrics.removed_bytes / 8
        kept = contents[0][len(contents[0]) * start // 60 :]
        assert bytes_of(process[0]) == kept
        again = Process(tmp_path)
        assert (again[0].start_offset, bytes_of(again[0])) == (start, kept)
        assert state_of(again[1]) == state_of(process[1])

    def test_the_state_of_a_partition_outlives_all_files_with_its_frames(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        for _ in range(30):
            append_to(process[0], 300)
        truncate_engine(process[0], 25)
        process[0].roll(NOW_MS)
        append_to(process[0], 300)
        process[0].trim(25)
        reset_engine(process[0], 77)
        fill(process, 2, 0)
        for _ in range(40):
            append_to(process[2], 300)
        clean(process)
        for _ in range(2):
            process = Process(tmp_path)
            assert (process[0].start_offset, process[0].end_offset) == (77, 77)
            process.log.open()
            clean(process)
        data = append_to(process[0])
        assert bytes_of(Process(tmp_path)[0]) == data

    def test_a_deleted_partition_does_not_return_and_its_bytes_are_removed(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        for _ in range(60):
            append_to(process[1], 300)
        drop(process, 1)
        for _ in range(14):
            append_to(process[0], 300)
        clean(process)
        assert sum(path.stat().st_size for path in process.paths(".clog")) < 5 * FILE_BYTES
        assert Process(tmp_path)[1].end_offset == 0

    def test_an_idle_log_gets_rid_of_dead_batches_within_the_limit(self, tmp_path: Path) -> None:
        disk = ModelTimeDisk(NOW_MS)
        process = Process(tmp_path, disk, file_bytes=1 << 16)
        kept = [append_to(process[number % 2], 300) for number in range(100)]
        sync(process[0])
        drop(process, 1)
        cleaner = Cleaner(process.disk, process.log)
        step_ms = WEEK_MS // 20
        for wall_ms in range(NOW_MS, NOW_MS + WEEK_MS + 3 * step_ms, step_ms):
            disk.now_ms = wall_ms
            cleaner.begin_pass(wall_ms)
            for _ in cleaner.clean(wall_ms):
                pass
        assert cleaner.metrics.dead_bytes == 0
        assert sum(path.stat().st_size for path in process.paths(".clog")) < 50 * 300 + 2000
        assert bytes_of(process[0]) == b"".join(kept[::2])
        assert append_to(process[0]) == bytes_of(Process(tmp_path)[0], 50)


class TestRuns:
    @pytest.mark.parametrize("seed", range(6))
    def test_all_partitions_are_the_same_afterwards_and_in_the_next_processes(self, tmp_path: Path, seed: int) -> None:
        process = Process(tmp_path)
        dice = Random(seed)
        change_at_random(process, dice, 300)
        cleaner = Cleaner(process.disk, process.log)
        for round_number in range(6):
            _change_more(process, dice)
            before = {number: state_of(process[number]) for number in range(6)}
            for _ in cleaner.clean(NOW_MS + round_number * WEEK_MS):
                pass
            assert {number: state_of(process[number]) for number in range(6)} == before
            if dice.random() < 0.5:
                process.log.close()
                process = Process(tmp_path)
                cleaner = Cleaner(process.disk, process.log)
                assert {number: state_of(process[number]) for number in range(6)} == before
        assert runs(process)

    def test_few_live_batches_are_copied_and_lie_together_by_partition(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        for _ in range(10):
            append_to(process[0])
            append_to(process[2])
            for _ in range(8):
                append_to(process[1], 300)
        expected = {0: bytes_of(process[0]), 2: bytes_of(process[2])}
        files = names(process)
        drop(process, 1)
        cleaner = clean(process)
        assert {number: bytes_of(process[number]) for number in expected} == expected
        assert len(runs(process)) <= 2 < len(files)
        assert cleaner.metrics.copied_bytes < cleaner.metrics.removed_bytes
        for number in expected:
            found = wait_for_disk(process[number].locate, 0, 1 << 20, 8, min_one_batch=True)
            assert len(found.regions) <= 2

    def test_the_queue_of_a_run_is_made_again_byte_for_byte(self, tmp_path: Path) -> None:
        process, expected = cleaned(tmp_path, 6, 30)
        queues = {path: path.read_bytes() for path in process.paths(".queue")}
        assert runs(process)
        for path in queues:
            path.unlink()
        again = Process(tmp_path)
        assert {number: bytes_of(again[number]) for number in expected} == expected
        for path in runs(again):
            assert path.with_suffix(".queue").read_bytes() == queues[path.with_suffix(".queue")]

    def test_readers_of_replaced_files_go_on(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        expected = fill(process, 4, 30)
        regions = wait_for_disk(process[0].locate, 0, 1 << 30, 30, min_one_batch=True).regions
        view, closed_view = process[0].view(), process[2].view()
        for file in process.log.sealed_files:
            file.log.close()
        delete_odd(process, 4)
        clean(process)
        assert runs(process)
        assert region_bytes(regions) == expected[0]
        assert bytes(view.read_batches(0, 1 << 30)) == expected[0]
        assert bytes(closed_view.read_batches(0, 1 << 30)) == expected[2]
        before = process.disk.open_files
        del regions, view, closed_view
        assert process.disk.open_files < before

    def test_a_file_that_is_replaced_as_soon_as_it_is_sealed_is_read_from_the_run(self, tmp_path: Path) -> None:
        """Its entries are still in memory: only the thread of the appends removes them."""
        expected = b""
        for _ in range(30):
            process = Process(tmp_path, file_bytes=1 << 20)
            expected += append_to(process[0])
            process.log.close()
        process = Process(tmp_path, file_bytes=1 << 20)
        expected += append_to(process[0])
        held: list[FileOp] = []
        process.log.submit = held.append
        process.log.finish_active()
        for run in held:
            run()
        clean(process)
        assert runs(process)
        assert bytes_of(process[0]) == expected

    def test_partitions_without_appends_do_not_keep_replaced_files_open(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        process.log._cache = FileHandleCache(process.disk)
        expected = fill(process, 3, 12)[0]
        drop(process, 1)
        process.log.finish_active()
        before = {file.path for file in process.log.files}
        clean(process)
        process.log.release_replaced()
        replaced = before - {file.path for file in process.log.files}
        gc.collect()
        opened = [file.path for file in gc.get_objects() if type(file) is File and file.fileno() >= 0]
        assert replaced
        assert not replaced & set(opened)
        assert bytes_of(process[0]) == expected

    def test_truncations_and_resets_after_a_cleaning_apply_to_the_run(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        expected = fill_and_delete_odd(process, 6, 30)
        clean(process)
        truncate_engine(process[0], 9)
        reset_engine(process[2], 5)
        more = append_to(process[0], 333)
        again = Process(tmp_path)
        for found in (process, again):
            assert bytes_of(found[0]) == expected[0][: 9 * len(expected[0]) // 30] + more
            assert (found[2].start_offset, found[2].end_offset) == (5, 5)
            assert bytes_of(found[4]) == expected[4]

    def test_small_files_of_many_restarts_become_few(self, tmp_path: Path) -> None:
        expected = b""
        for _ in range(30):
            process = Process(tmp_path, file_bytes=1 << 20)
            expected += append_to(process[0])
            process.log.close()
            clean(process)
        assert len(process.paths(".clog")) <= 6
        assert bytes_of(Process(tmp_path, file_bytes=1 << 20)[0]) == expected


class TestCrashes:
    @pytest.mark.long
    def test_a_kill_at_any_call_leaves_the_files_or_the_run(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        calls = 0
        while True:
            root = tmp_path / str(calls)
            root.mkdir()
            disk = _DyingDisk()
            process = Process(root, disk)
            expected = fill_and_delete_odd(process, 4, 12)
            disk.calls_left = calls
            try:
                clean(process)
            except _Killed:
                pass
            else:
                break
            shutil.copytree(root, without_catalog := tmp_path / "copy")
            (without_catalog / "commitlog" / CATALOG).unlink()
            again = Process(root)
            assert _slots(again) == _slots(Process(without_catalog))
            shutil.rmtree(without_catalog)
            assert {number: bytes_of(again[number]) for number in expected} == expected
            assert again[1].end_offset == 0
            more = append_to(again[0])
            clean(again)
            last = Process(root)
            assert bytes_of(last[0]) == expected[0] + more
            assert bytes_of(last[2]) == expected[2]
            assert set(names(last, ".queue")) <= {name.replace(".clog", ".queue") for name in names(last)}
            assert not process.paths(".tmp")
            calls += 1
        assert calls > 20
        assert "is missing" not in caplog.text

    @pytest.mark.parametrize("seed", range(20))
    def test_a_loss_of_power_amid_cleaning_loses_nothing_durable(self, tmp_path: Path, seed: int) -> None:
        dice, disk = Random(seed), CrashingDisk()
        process = Process(tmp_path, disk)
        expected = fill(process, 4, 12)
        sync(process[0])
        process[1].trim(process[1].end_offset)
        drop(process, 3)
        steps = Cleaner(disk, process.log).clean(NOW_MS)
        for _ in range(dice.randrange(12)):
            if next(steps, None) is None:
                break
        disk.crash(dice)
        again = Process(tmp_path, disk)
        assert {number: bytes_of(again[number]) for number in expected} == expected
        state = state_of(again[1])
        clean(again)
        assert state_of(again[1]) == state
        assert {number: bytes_of(again[number]) for number in expected} == expected


def _slots(process: Process) -> list[list[object]]:
    process.log.open()
    return [slot.state() for slot in process.log.slots]


class _Killed(BaseException):
    """The process ended."""


class _DyingDisk(Disk):
    """A disk whose process ends at a changing call."""

    calls_left: int | None = None

    def _step(self) -> None:
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left < 0:
                raise _Killed

    def open(self, path: str, *, write: bool, create: bool = False) -> File:
        if create:
            self._step()
        return super().open(path, write=write, create=create)

    def rename(self, source: str, target: str) -> None:
        self._step()
        super().rename(source, target)

    def unlink(self, path: str, *, missing_ok: bool = False) -> None:
        self._step()
        super().unlink(path, missing_ok=missing_ok)

    def sync_dir(self, path: str) -> None:
        self._step()
        super().sync_dir(path)

    def set_modified_ms(self, path: str, wall_ms: int) -> None:
        self._step()
        super().set_modified_ms(path, wall_ms)


class TestDamage:
    def test_a_damaged_file_stays_and_the_others_are_cleaned(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        process = Process(tmp_path)
        expected = fill_and_delete_odd(process, 4, 30)
        damaged, at = place_of(process, 0, 9)
        damage(damaged, at + 80)
        cleaner = clean(process)
        assert damaged.exists()
        assert cleaner.metrics.damaged_files == 1
        assert cleaner.metrics.dead_bytes < 3 * FILE_BYTES
        assert len(runs(process)) > 0
        assert f"{damaged} is damaged at byte" in caplog.text
        assert bytes_of(process[2]) == expected[2]
        drop(process, 0)
        for _ in cleaner.clean(NOW_MS):
            pass
        assert not damaged.exists()
        assert bytes_of(Process(tmp_path)[2]) == expected[2]

    def test_damage_of_a_run_and_its_queue_costs_only_the_damaged_batches(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        process, expected = cleaned(tmp_path, 6, 20)
        run, at = place_of(process, 2, 9)
        name = parse_log_name(run.name)
        assert name is not None
        assert name.generation
        assert not run_queue(process.disk, str(run), name.start).lost
        damage(run, at + 90)
        damage(run.with_suffix(".queue"), 60)
        again = Process(tmp_path)
        assert bytes_of(again[0]) == expected[0]
        assert bytes_of(again[4]) == expected[4]
        assert bytes_of(again[2]) != expected[2]
        assert "is damaged from byte" in caplog.text

    def test_a_run_that_lost_its_end_costs_only_what_was_there(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        process, expected = cleaned(tmp_path, 6, 20)
        run, at = place_of(process, 4, 9)
        os.truncate(run, at + 90)
        again = Process(tmp_path)
        assert bytes_of(again[0]) == expected[0], "batches of a run are in the order of the slots"
        assert bytes_of(again[4]) != expected[4]
        assert f"{run} is damaged from byte" in caplog.text


class TestFullDisk:
    def test_cleaning_frees_space_when_there_is_none_but_that_of_files_made_ahead(self, tmp_path: Path) -> None:
        disk = _SmallDisk()
        process = Process(tmp_path, disk, file_bytes=SMALL_DISK_FILE_BYTES)
        expected = fill_and_delete_odd(process, 4, 100)
        disk.limit = disk.used(tmp_path)
        used = disk.limit
        cleaner = clean(process, is_full=True)
        assert cleaner.metrics.dead_bytes < SMALL_DISK_FILE_BYTES
        assert disk.used(tmp_path) < used * 0.7
        assert {number: bytes_of(process[number]) for number in expected} == expected
        disk.limit = None
        assert {number: bytes_of(Process(tmp_path)[number]) for number in expected} == expected

    def test_a_run_without_space_changes_nothing(self, tmp_path: Path) -> None:
        disk = _SmallDisk()
        process = Process(tmp_path, disk, file_bytes=SMALL_DISK_FILE_BYTES)
        expected = fill_and_delete_odd(process, 4, 100)
        while process.log.release_ballast():
            pass
        before = names(process)
        disk.limit = disk.used(tmp_path)
        clean(process, is_full=True)
        assert names(process) == before
        assert disk.used(tmp_path) <= disk.limit
        assert {number: bytes_of(process[number]) for number in expected} == expected

    def test_a_file_made_ahead_is_removed_if_the_disk_has_become_full_meanwhile(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else appends would count on the space of a file that has none."""
        process = Process(tmp_path)
        append_to(process[0])
        assert len(names(process)) == 1 + FILES_AHEAD
        monkeypatch.setattr(File, "allocate", lambda *_: False)
        while len(process.log.files) == 1:
            append_to(process[0])
        assert len(names(process)) == 2 + FILES_AHEAD - 1

    def test_an_error_of_the_disk_is_reported_and_nothing_is_lost(self, tmp_path: Path) -> None:
        disk = FaultyDisk()
        process = Process(tmp_path, disk)
        expected = fill_and_delete_odd(process, 4, 30)
        disk.fail_syncs = 5
        with pytest.raises(StorageError):
            clean(process)
        disk.fail_syncs = 0
        assert {number: bytes_of(Process(tmp_path)[number]) for number in expected} == expected


class _SmallDisk(FaultyDisk):
    """A disk with a limit in bytes; files made ahead have all their space."""

    limit: int | None = None

    def used(self, root: Path) -> int:
        found = 0
        for path in (root / "commitlog").iterdir():
            size = path.stat().st_size
            found += SMALL_DISK_FILE_BYTES if size == 40 else size
        return found

    def space(self, path: str) -> tuple[int, int]:
        left = 1 << 30 if self.limit is None else max(self.limit - self.used(Path(path).parent), 0)
        return 1 << 30, left

    def open(self, path: str, *, write: bool, create: bool = False) -> File:
        if self.limit is not None:
            self.space_left = self.space(os.path.dirname(path))[1]
        return super().open(path, write=write, create=create)


def test_the_age_of_records_without_timestamps_is_known_after_their_file_was_replaced(tmp_path: Path) -> None:
    """A lookup that fails takes the log directory offline."""
    process = Process(tmp_path)
    append(process[0], batch(0, size=300, timestamp_ms=-1))
    for _ in range(4):
        append_to(process[1], 900)
    process[1].roll(NOW_MS)
    process[1].trim(4)
    process.log.close()
    lookup = process[0].timestamp_bound(0, NOW_MS)
    assert isinstance(lookup, DiskLookup)
    last = Path(process.log.files[-1].path)
    clean(process, is_full=True)
    assert not last.exists()
    lookup.run()
    lookup.finish()
    found = process[0].timestamp_bound(0, NOW_MS)
    assert isinstance(found, int)
    assert found > NOW_MS
