"""The commit log of several partitions: sealing, rebuilt queues, torn and damaged files."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from protocol.primitives import Buffer, uuid_text
from storage.commitlog.commit_log import CommitLog
from storage.commitlog.commit_log_engine import CommitLogEngine
from storage.commitlog.frames import FILE_HEADER, HEAD_SIZE
from storage.commitlog.slots import SlotId
from storage.config.log_config import LogConfig
from storage.engine import AbortedTransaction
from storage.io.deferred_file_ops import FileOp, Submit, run_now
from storage.io.disk import Disk, File
from storage.io.disk_lookup import wait_for_disk
from tests.support.crashing_disk import CrashingDisk
from tests.support.faulty_disk import FaultyDisk
from tests.support.segments import NOW_MS, append, batch, infos, region_bytes, reset_engine, sync_files, truncate_engine
from tests.support.waiting import until

FILE_BYTES = 4096
CONFIG = LogConfig(segment_bytes=2000)


class Process:
    """The log of one process, and its partitions."""

    def __init__(
        self,
        root: Path,
        disk: Disk | None = None,
        file_bytes: int = FILE_BYTES,
        new_lock: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.disk = disk or Disk()
        self.root = root
        self.log = CommitLog(self.disk, str(root), random_bytes=os.urandom, new_lock=new_lock, file_bytes=file_bytes)
        self._engines: dict[int, CommitLogEngine] = {}

    def __getitem__(self, partition: int) -> CommitLogEngine:
        if partition not in self._engines:
            engine = self._engines[partition] = CommitLogEngine(self.log, SlotId(b"t" * 16, partition), "", CONFIG)
            assert engine.open(None) is None
        return self._engines[partition]

    def paths(self, suffix: str) -> list[Path]:
        return sorted((self.root / "commitlog").glob("*" + suffix))


def append_to(engine: CommitLogEngine, size: int = 200, count: int = 1) -> bytes:
    data = batch(engine.end_offset, count, size=size, timestamp_ms=NOW_MS + engine.end_offset)
    append(engine, data)
    return data


def bytes_of(engine: CommitLogEngine, offset: int | None = None) -> bytes:
    at = engine.start_offset if offset is None else offset
    return region_bytes(wait_for_disk(engine.locate, at, 1 << 30, engine.end_offset, min_one_batch=True).regions)


def sync(engine: CommitLogEngine) -> None:
    work = engine.collect_sync()
    sync_files(work)
    engine.mark_flushed(work.end_offset)


def damage(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        old = file.read(1)
        file.seek(position)
        file.write(bytes([old[0] ^ 0x40]))


def change_at_random(process: Process, dice: Random, steps: int) -> dict[int, bytes]:
    """Appends to several partitions, truncations, resets, rolls, trims; returns the expected contents."""
    contents: dict[int, list[bytes]] = {number: [] for number in range(6)}
    for _ in range(steps):
        number = dice.randrange(6)
        engine, batches = process[number], contents[number]
        what = dice.random()
        if what < 0.85:
            batches.append(append_to(engine, dice.randrange(150, 600)))
        elif what < 0.90 and batches:
            truncate_engine(engine, dice.randrange(engine.start_offset, engine.end_offset + 1))
            del batches[engine.end_offset - engine.start_offset :]
        elif what < 0.93:
            engine.roll(NOW_MS)
        elif what < 0.96:
            start = engine.start_offset
            engine.trim(dice.randrange(start, engine.end_offset + 1))
            del batches[: engine.start_offset - start]
        elif what < 0.98 and engine.end_offset > engine.start_offset:
            engine.add_aborted(AbortedTransaction(number, engine.end_offset - 1, engine.end_offset - 1, 0))
        else:
            reset_engine(engine, engine.end_offset + dice.randrange(3))
            batches.clear()
    return {number: b"".join(batches) for number, batches in contents.items()}


def state_of(engine: CommitLogEngine) -> tuple[object, ...]:
    view = engine.view()
    return (
        engine.start_offset, engine.end_offset, engine.size_bytes, engine.segments(), bytes_of(engine),
        view.max_timestamp(), wait_for_disk(engine.aborted, 0, 1 << 40),
        [view.find_timestamp(NOW_MS + offset, engine.start_offset) for offset in range(0, engine.end_offset, 7)],
    )  # fmt: skip


class _WaitingFile(File):
    _disk: _WaitingDisk

    def _write_some_of(self, buffers: Sequence[Buffer], position: int) -> int:
        self._disk.calls += 1
        self._disk.may_write.wait(60)
        if self._disk.calls == self._disk.failing_call:
            raise OSError(errno.EIO, "")
        return super()._write_some_of(buffers, position)


class _WaitingDisk(Disk):
    """Its writes of several buffers wait for an event, and one fails."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.failing_call = 0
        self.may_write = threading.Event()
        self.may_write.set()

    def open(self, path: str, *, write: bool, create: bool = False) -> File:
        """Open such a file."""
        flags = (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0)
        return _WaitingFile(self, path, os.open(path, flags, 0o644))


class TestQueueFiles:
    @pytest.mark.parametrize("seed", range(6))
    @pytest.mark.parametrize("submit", [run_now, lambda op: op()], ids=["now", "submitted"])
    def test_rebuilt_queues_are_those_that_were_written(self, tmp_path: Path, seed: int, submit: Submit) -> None:
        process = Process(tmp_path)
        for number in range(6):
            process[number].submit = submit
        expected = change_at_random(process, Random(seed), 400)
        before = {number: state_of(process[number]) for number in range(6)}
        process.log.close()
        queues = {path: path.read_bytes() for path in process.paths(".queue")}
        assert len(queues) > 10
        assert {number: state[4] for number, state in before.items()} == expected
        opened = Process(tmp_path)
        assert {number: state_of(opened[number]) for number in range(6)} == before
        for path in queues:
            path.unlink()
        rebuilt = Process(tmp_path)
        assert {number: state_of(rebuilt[number]) for number in range(6)} == before
        assert {path: path.read_bytes() for path in rebuilt.paths(".queue")} == queues

    def test_a_clean_close_leaves_nothing_to_scan(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        expected = append_to(process[0])
        process.log.close()
        disk = FaultyDisk()
        again = Process(tmp_path, disk)
        assert again[0].end_offset == 1
        log_reads = [length for path, _, length in disk.reads if path.endswith(".clog")]
        assert max(log_reads) == FILE_HEADER.size
        assert bytes_of(again[0]) == expected

    def test_a_partition_without_frames_is_empty_beside_sealed_files(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        for _ in range(10):
            append_to(process[0], 1500)
            append_to(process[0], 300)
            truncate_engine(process[0], process[0].end_offset - 1)
        view = process[1].view()
        assert (view.max_timestamp(), view.find_timestamp(0, 0), bytes_of(process[1])) == (None, None, b"")

    def test_sealing_may_wait_while_appends_and_reads_go_on(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        waiting: list[FileOp] = []
        process.log.submit = waiting.append
        expected = b"".join([append_to(process[0], 700) for _ in range(40)])
        assert not process.paths(".queue")
        assert bytes_of(process[0]) == expected
        view = process[0].view()
        while waiting:
            waiting.pop(0)()
            assert bytes_of(process[0]) == expected
        expected += append_to(process[0])
        assert len(process.paths(".queue")) > 5
        assert bytes_of(process[0]) == expected
        assert expected.startswith(bytes(view.read_batches(0, 1 << 30)))
        assert view.end_offset == 40

    def test_files_that_do_not_fit_a_large_append_are_removed(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        process[0].update_config(LogConfig())
        expected = append_to(process[0], 300) + append_to(process[0], 3 * FILE_BYTES) + append_to(process[0], 300)
        assert bytes_of(process[0]) == expected
        starts = [int(path.stem) for path in process.paths(".clog")]
        assert starts == [0, FILE_BYTES, 5 * FILE_BYTES, 6 * FILE_BYTES, 7 * FILE_BYTES]
        assert bytes_of(Process(tmp_path)[0]) == expected

    @pytest.mark.parametrize("file_bytes", [FILE_BYTES // 4, FILE_BYTES * 4])
    def test_a_log_continues_in_files_of_another_size(self, tmp_path: Path, file_bytes: int) -> None:
        process = Process(tmp_path)
        expected = append_to(process[0], 500)
        process.log.close()
        again = Process(tmp_path, file_bytes=file_bytes)
        for _ in range(10):
            expected += append_to(again[0], 500)
            *_, active, first, second = [int(path.stem) for path in again.paths(".clog")]
            assert (first, second) == (active + file_bytes, active + 2 * file_bytes)
        assert bytes_of(again[0]) == bytes_of(Process(tmp_path)[0]) == expected

    def test_files_of_a_log_with_many_partitions_and_few_open_files(self, tmp_path: Path) -> None:
        process = Process(tmp_path, file_bytes=64 * 1024)
        expected = {number: append_to(process[number]) for number in range(500)}
        assert process.disk.open_files <= 5
        again = Process(tmp_path)
        assert {number: bytes_of(again[number]) for number in range(500)} == expected


class TestRecovery:
    @pytest.mark.parametrize("seed", range(12))
    def test_a_loss_of_power_keeps_a_prefix_with_all_synced_batches(self, tmp_path: Path, seed: int) -> None:
        dice, disk = Random(seed), CrashingDisk()
        process = Process(tmp_path, disk)
        written = dict.fromkeys(range(4), b"")
        synced = dict.fromkeys(range(4), 0)
        for _ in range(150):
            number = dice.randrange(4)
            written[number] += append_to(process[number], dice.randrange(150, 900))
            if dice.random() < 0.08:
                sync(process[number])
                synced = {number: len(data) for number, data in written.items()}
        disk.crash(dice)
        again = Process(tmp_path, disk)
        for number, data in written.items():
            found = bytes_of(again[number])
            assert data.startswith(found)
            assert len(found) >= synced[number]
            written[number] = found + append_to(again[number])
        last = Process(tmp_path)
        assert {number: bytes_of(last[number]) for number in written} == written

    def test_a_cut_within_a_write_loses_only_that_write(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        kept = append_to(process[0]) + append_to(process[0])
        (path, *_) = process.paths(".clog")
        size = path.stat().st_size
        lost = append_to(process[1], 300)
        whole = path.read_bytes()
        for end in range(size, len(whole), 7):
            path.write_bytes(whole[:end] + b"\xff" * (end % 2 * 40))
            for queue in process.paths(".queue"):
                queue.unlink()
            again = Process(tmp_path)
            assert (bytes_of(again[0]), again[1].end_offset) == (kept, 0)
            assert lost not in path.read_bytes()

    def test_lost_bytes_do_not_return_when_others_take_their_place(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        kept = append_to(process[0])
        (path, *_) = process.paths(".clog")
        at = path.stat().st_size
        append_to(process[0])
        append_to(process[0])
        damage(path, at + HEAD_SIZE + 100)
        again = Process(tmp_path)
        assert bytes_of(again[0]) == kept
        more = append_to(again[0], 250)
        assert bytes_of(Process(tmp_path)[0]) == kept + more

    def test_the_partitions_of_a_lost_end_of_a_sealed_file_are_named(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        process = Process(tmp_path)
        while len(process.paths(".queue")) < 1:
            append_to(process[0], 300)
            append_to(process[1], 300)
        path = process.paths(".clog")[0]
        os.truncate(path, path.stat().st_size // 2)
        caplog.clear()
        again = Process(tmp_path)
        found = bytes_of(again[0], 0)
        assert found
        for number in (0, 1):
            assert f"{uuid_text(b't' * 16)}-{number} lost its records from offset " in caplog.text
        assert f"they were in the lost end of {path}" in caplog.text

    def test_the_lost_end_of_a_sealed_file_costs_no_partition_of_the_next_file(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        while len(process.paths(".queue")) < 1:
            append_to(process[0], 300)
        kept = append_to(process[1], 300)  # in the second file, which has no proof that something is durable
        path = process.paths(".clog")[0]
        os.truncate(path, path.stat().st_size // 2)
        assert bytes_of(Process(tmp_path)[1]) == kept

    @pytest.mark.parametrize("removed", ["catalog", "*0.queue"])
    def test_a_missing_file_is_an_error_in_the_log(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, removed: str
    ) -> None:
        process = Process(tmp_path)
        while len(process.paths(".queue")) < 2:
            append_to(process[len(process.paths(".queue"))], 300)
        process.log.close()
        path = process.paths(".clog")[0]
        path.unlink()
        next((tmp_path / "commitlog").glob(removed)).unlink()
        caplog.clear()
        Process(tmp_path)[0]
        partitions = f"{uuid_text(b't' * 16)}-0" if removed == "catalog" else "its partitions"
        assert f"{path} is missing: the records of {partitions} in it are lost" in caplog.text

    def test_all_records_of_a_recovered_log_are_durable(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        append_to(process[0])
        append_to(process[0])
        again = Process(tmp_path)
        engine = CommitLogEngine(again.log, SlotId(b"t" * 16, 0), "", CONFIG)
        engine.open(1)
        assert (engine.flushed_end_offset, engine.end_offset) == (2, 2)

    def test_damage_before_a_proof_costs_only_its_partition(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        process = Process(tmp_path, file_bytes=1 << 20)
        kept = {0: append_to(process[0]), 1: append_to(process[1])}
        (path, *_) = process.paths(".clog")
        at = path.stat().st_size
        append_to(process[0], 300)
        kept[1] += append_to(process[1], 300)
        sync(process[0])
        append_to(process[0])
        kept[1] += append_to(process[1])
        damage(path, at + HEAD_SIZE + 150)
        again = Process(tmp_path, file_bytes=1 << 20)
        assert {number: bytes_of(again[number]) for number in kept} == kept
        assert "is damaged from byte" in caplog.text
        assert "lost its records from offset 1 on" in caplog.text
        kept[0] += append_to(again[0])
        assert bytes_of(Process(tmp_path)[0]) == kept[0]

    def test_a_sealed_file_that_lost_its_end_costs_only_what_was_there(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        process = Process(tmp_path, file_bytes=2048)
        kept = {0: append_to(process[0], 300)}
        end = process.paths(".clog")[0].stat().st_size
        append_to(process[0], 300)
        append_to(process[1], 300)
        kept[0] += append_to(process[0], 1500)
        kept[1] = append_to(process[1], 300)
        process.log.close()
        first, *_ = process.paths(".clog")
        os.truncate(first, end + 100)
        again = Process(tmp_path, file_bytes=2048)
        assert bytes_of(again[0], 0) == kept[0]
        assert bytes_of(again[1], 0) == kept[1], "its first frame is lost"
        assert f"{first} has lost its end" in caplog.text
        assert {number: bytes_of(Process(tmp_path)[number], 0) for number in kept} == kept

    def test_an_invalid_frame_behind_every_proof_ends_the_log(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        kept = append_to(process[0])
        (path, *_) = process.paths(".clog")
        at = path.stat().st_size
        append_to(process[0], 300)
        append_to(process[1], 300)
        damage(path, at + HEAD_SIZE + 150)
        again = Process(tmp_path)
        assert (bytes_of(again[0]), again[1].end_offset) == (kept, 0)
        assert path.stat().st_size == at

    def test_a_file_whose_predecessor_lost_all_frames_is_behind_the_end(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        for _ in range(3):
            append_to(process[0], 1500)
        first, second, *_ = process.paths(".clog")
        first.write_bytes(first.read_bytes()[: FILE_HEADER.size])
        assert second.stat().st_size > FILE_HEADER.size
        again = Process(tmp_path)
        assert again[0].end_offset == 0
        assert append_to(again[0]) == bytes_of(Process(tmp_path)[0])

    @pytest.mark.parametrize("field", range(0, 21, 4))
    def test_bytes_that_no_batch_crc_covers_are_checked(self, tmp_path: Path, field: int) -> None:
        process = Process(tmp_path)
        kept = append_to(process[0])
        (path, *_) = process.paths(".clog")
        at = path.stat().st_size
        append_to(process[0])
        damage(path, at + HEAD_SIZE + field)
        assert bytes_of(Process(tmp_path)[0]) == kept

    def test_a_frame_inside_of_a_record_is_not_a_frame(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        append_to(process[1])
        (path, *_) = process.paths(".clog")
        image = path.read_bytes()[FILE_HEADER.size :]
        begin = path.stat().st_size
        append_to(process[0], 1000)
        whole = path.read_bytes()
        path.write_bytes(whole[:begin] + b"\0" * 40 + image + whole[begin + 40 + len(image) :])
        again = Process(tmp_path)
        assert (again[1].end_offset, again[0].end_offset) == (1, 0)

    def test_snapshots_and_epochs_are_those_of_the_batches(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        engine = process[0]
        for epoch in (2, 2, 5):
            append(engine, batch(engine.end_offset, epoch=epoch))
            engine.roll(NOW_MS)
            engine.store_snapshot(engine.end_offset, b"%d" % engine.end_offset)
        truncate_engine(engine, 2)
        for again in (engine, Process(tmp_path)[0], Process(tmp_path)[0]):
            assert again.leader_epochs() == [(2, 0)]
            assert again.snapshots() == {1: b"1", 2: b"2"}
        process.log.close()
        sealed = Process(tmp_path)[0]
        assert (sealed.leader_epochs(), sealed.snapshots()) == ([(2, 0)], {1: b"1", 2: b"2"})
        reset_engine(sealed, 7)
        assert (Process(tmp_path)[0].leader_epochs(), Process(tmp_path)[0].snapshots()) == ([], {})

    def test_of_the_snapshots_within_a_segment_the_newest_is_kept(self, tmp_path: Path) -> None:
        engine = Process(tmp_path)[0]
        for offset in range(1, 6):
            append(engine, batch(engine.end_offset))
            if offset == 2:
                engine.roll(NOW_MS)
            engine.store_snapshot(offset, b"%d" % offset)
        for again in (engine, Process(tmp_path)[0]):
            assert again.snapshots() == {2: b"2", 5: b"5"}

    def test_a_recovery_begins_at_the_newest_snapshot(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        engine, snapshots = process[0], list[int]()
        engine.update_config(LogConfig())
        for number in range(300):
            data = batch(engine.end_offset)
            reservation = engine.reserve(len(data), infos(data), NOW_MS)
            engine.write(reservation, data)
            if reservation.takes_snapshot:
                snapshots.append(number)
                engine.store_snapshot(number, b"")
            engine.publish(reservation)
        starts = [file.start for file in process.log.files]
        assert len(snapshots) >= 3
        assert all(later - before >= 16 for before, later in pairwise([0, *snapshots]))
        assert len(snapshots) <= len(starts), "a file has at most one"
        again = Process(tmp_path)[0]
        assert again.open(0) == snapshots[-1]
        assert again.end_offset == 300

    def test_a_deleted_partition_does_not_return(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        for number in range(3):
            append_to(process[number], 1500)
        process.log.drop(process[1]._slot)
        kept = append_to(process[2], 1500)
        again = Process(tmp_path)
        assert again[1].end_offset == 0
        more = append_to(again[1])
        last = Process(tmp_path)
        assert (bytes_of(last[1]), bytes_of(last[2], 1)) == (more, kept)


class TestWrites:
    def test_an_append_is_one_system_call(self, tmp_path: Path) -> None:
        disk = FaultyDisk()
        process = Process(tmp_path, disk)
        append_to(process[0])
        sync(process[0])
        disk.reset_counters()
        append_to(process[0])
        append_to(process[1])
        assert [Path(path).suffix for path, _, _ in disk.writes] == [".clog", ".clog"]

    def test_one_sync_covers_all_partitions(self, tmp_path: Path) -> None:
        process = Process(tmp_path, file_bytes=1 << 20)
        for number in range(20):
            append_to(process[number], 100)
        works = [process[number].collect_sync() for number in range(20)]
        assert len({file for work in works for file in work.files}) == 1
        sync_files(works[0])
        for number, work in enumerate(works):
            process[number].mark_flushed(work.end_offset)
        assert not process[3].collect_sync().files

    def test_a_sync_counts_when_it_has_ended(self, tmp_path: Path) -> None:
        process = Process(tmp_path, file_bytes=1 << 20)
        append_to(process[0])
        append_to(process[1])
        first = process[0].collect_sync()
        second = process[1].collect_sync()
        assert first.files == second.files != []
        process[0].mark_flushed(first.end_offset)
        assert process[1].flushed_end_offset == 0
        assert not process[1].collect_sync().files

    @pytest.mark.parametrize("fails", [False, True])
    def test_appends_that_wait_for_a_write_are_written_together(self, tmp_path: Path, fails: bool) -> None:
        disk = _WaitingDisk()
        process = Process(tmp_path, disk, file_bytes=1 << 20, new_lock=threading.Lock)
        expected = [append_to(process[number]) for number in range(5)]
        disk.calls, disk.failing_call, disk.may_write = 0, 2 if fails else 0, threading.Event()
        appends = []
        for number in range(5):
            data = batch(1, size=300)
            expected[number] += data
            appends.append((process[number], process[number].reserve(len(data), infos(data), NOW_MS), data))
        with ThreadPoolExecutor(5) as writers:
            written = [writers.submit(engine.write, reservation, data) for engine, reservation, data in appends[:1]]
            until(lambda: disk.calls == 1 or None, "the first one writes")
            written += [writers.submit(engine.write, reservation, data) for engine, reservation, data in appends[1:]]
            until(lambda: len(process.log._waiting) == 4 or None, "the others wait")
            disk.may_write.set()
            failed = [one.exception() is not None for one in written]
        if fails:  # each of the others writes its own then
            assert (failed.count(True), disk.calls) == (1, 5)
            engine, reservation, data = appends[failed.index(True)]
            engine.write(reservation, data)
        else:
            assert (failed.count(True), disk.calls) == (0, 2)
        for engine, reservation, _ in appends:
            engine.publish(reservation)
        assert [bytes_of(process[number]) for number in range(5)] == expected
        again = Process(tmp_path)
        assert [bytes_of(again[number]) for number in range(5)] == expected

    def test_threads_write_and_seal_while_the_loop_reads_and_truncates(self, tmp_path: Path) -> None:
        dice = Random(3)
        process = Process(tmp_path, new_lock=threading.Lock)
        expected: dict[int, list[bytes]] = {number: [] for number in range(4)}
        with ThreadPoolExecutor(1) as writer, ThreadPoolExecutor(1) as sealer:
            ops: list[Future[None]] = []
            process.log.submit = lambda op: ops.append(sealer.submit(op))
            for _ in range(150):
                appends = []
                for number in dice.sample(range(4), 3):
                    engine = process[number]
                    data = batch(engine.end_offset, size=dice.randrange(150, 700))
                    reservation = engine.reserve(len(data), infos(data), NOW_MS)
                    appends.append((number, data, reservation, writer.submit(engine.write, reservation, data)))
                idle = next(number for number in range(4) if number not in {number for number, *_ in appends})
                if dice.random() < 0.3 and expected[idle]:
                    truncate_engine(process[idle], dice.randrange(process[idle].end_offset))
                    del expected[idle][process[idle].end_offset :]
                assert bytes_of(process[idle]) == b"".join(expected[idle])
                for number, data, reservation, written in appends:
                    written.result()
                    process[number].publish(reservation)
                    expected[number].append(data)
            for op in ops:
                op.result()
        assert len(process.paths(".queue")) > 20
        found = {number: bytes_of(process[number]) for number in range(4)}
        assert found == {number: b"".join(batches) for number, batches in expected.items()}
        again = Process(tmp_path)
        assert {number: bytes_of(again[number]) for number in range(4)} == found
