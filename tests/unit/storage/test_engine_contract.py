"""Both engines implement storage/engine.py: segments, and the scattered engine of the tests."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from protocol.file_region import file_regions
from protocol.primitives import Buffer
from protocol.records import BatchHeader, headers
from storage.commitlog.commit_log_engine import CommitLogEngine
from storage.config.log_config import LogConfig
from storage.engine import AbortedTransaction, Engine, SegmentInfo
from storage.io.disk import Disk, StorageError
from storage.io.disk_lookup import wait_for_disk
from storage.stored_state import StoresState
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import EVERYTHING, SMALL, Engines
from tests.support.segments import NOW_MS, append, batch, infos, region_bytes, reset_engine, sync_files, truncate_engine

MakeEngine = Callable[..., Engine]


@pytest.fixture
def unopened(tmp_path: Path, engines: Engines) -> MakeEngine:
    """Creates the engine of a partition, as a new process does."""

    def made(config: LogConfig = SMALL, *, disk: Disk | None = None) -> Engine:
        (tmp_path / "t-0").mkdir(exist_ok=True)
        return engines(disk or Disk(), tmp_path)(str(tmp_path / "t-0"), config)

    return made


@pytest.fixture
def make(unopened: MakeEngine) -> MakeEngine:
    """Creates and opens the engine after a clean close, as a new process does."""

    def made(config: LogConfig = SMALL, *, disk: Disk | None = None) -> Engine:
        engine = unopened(config, disk=disk)
        assert engine.open(None) is None
        return engine

    return made


def all_of(engine: Engine, offset: int | None = None) -> bytes:
    """Everything from an offset on, over several reads."""
    at = engine.start_offset if offset is None else offset
    found = b""
    while at < engine.end_offset:
        located = wait_for_disk(engine.locate, at, EVERYTHING, engine.end_offset, min_one_batch=True)
        if not located.regions:
            break
        piece = region_bytes(located.regions)
        assert located.size == len(piece) == sum(region.length for region in located.regions)
        found += piece
        at = headers(piece)[-1][1].next_offset
        assert at <= located.end_offset <= engine.end_offset
    return found


def fill(engine: Engine, count: int, records: int = 1, *, size: int, step_ms: int = 0) -> list[bytes]:
    """Append consecutive batches, `step_ms` apart; returns them."""
    batches = [batch(records * n, records, size=size, timestamp_ms=NOW_MS + step_ms * n) for n in range(count)]
    for data in batches:
        append(engine, data)
    return batches


def sync(engine: Engine) -> None:
    work = engine.collect_sync()
    sync_files(work)
    engine.mark_flushed(work.end_offset)


def recovered(engine: Engine, recovery_point: int) -> list[int]:
    """Open after an unclean stop; returns the base offsets of the checked batches."""
    seen: list[int] = []

    def visit(buffer: Buffer, position: int, header: BatchHeader) -> None:
        assert bytes(buffer[position : position + 8]) == header.base_offset.to_bytes(8, "big")
        assert len(buffer) >= position + header.size
        assert engine.end_offset == header.next_offset, "a visited batch counts as published"
        seen.append(header.base_offset)

    start_offset = engine.open(recovery_point)
    if start_offset is not None:
        assert start_offset <= recovery_point
        engine.bytes_to_recover(start_offset)
        engine.recover(start_offset, visit)
    return seen


class TestBothEngines:
    # ---- append and read ---------------------------------------------------------------------------------

    def test_a_new_engine_is_empty_at_zero(self, make: MakeEngine) -> None:
        engine = make()
        assert (engine.start_offset, engine.end_offset, engine.size_bytes, engine.flushed_end_offset) == (0, 0, 0, 0)
        assert engine.segments() == [SegmentInfo(0, 0, 0)]
        assert engine.view().max_timestamp() is None
        assert engine.view().find_timestamp(0, 0) is None
        assert engine.view().read_batches(0, 100) == b""
        assert not engine.roll(NOW_MS)

    def test_appended_batches_are_read_from_every_offset(self, make: MakeEngine) -> None:
        engine = make()
        batches = [batch(10 * number, 10, size=240 + number) for number in range(20)]
        for data in batches:
            append(engine, data)
        assert engine.end_offset == 200
        assert engine.size_bytes == sum(map(len, batches))
        for offset in range(200):
            assert all_of(engine, offset) == b"".join(batches[offset // 10 :])

    def test_an_append_may_contain_several_batches(self, make: MakeEngine) -> None:
        engine = make()
        first, second, third = batch(0, 2, size=100), batch(2, 3, size=200), batch(5, 1, size=150)
        append(engine, first + second)
        append(engine, third)
        assert all_of(engine, 1) == first + second + third
        assert all_of(engine, 3) == second + third

    def test_offsets_may_have_gaps(self, make: MakeEngine) -> None:
        engine = make()
        first, second, third = batch(5, 2, size=900), batch(20, 2, size=900), batch(40, 2, size=900)
        for data in (first, second, third):
            append(engine, data)
        assert all_of(engine, 0) == first + second + third
        assert all_of(engine, 7) == all_of(engine, 20) == second + third
        assert all_of(engine, 22) == third
        assert wait_for_disk(engine.locate, 25, EVERYTHING, 38, min_one_batch=True).regions == ()
        assert engine.end_offset == 42

    def test_a_batch_is_not_readable_before_it_is_published(self, make: MakeEngine) -> None:
        engine = make()
        data = batch(0, 3)
        reservation = engine.reserve(len(data), infos(data), NOW_MS)
        engine.write(reservation, data)
        assert engine.end_offset == 0
        assert engine.size_bytes == 0
        assert wait_for_disk(engine.locate, 0, EVERYTHING, 0, min_one_batch=True).regions == ()
        engine.publish(reservation)
        assert engine.end_offset == 3
        assert all_of(engine) == data

    def test_several_appends_may_be_pending(self, make: MakeEngine) -> None:
        engine = make()
        batches = [batch(number, 1, size=400) for number in range(4)]
        reservations = [engine.reserve(len(data), infos(data), NOW_MS) for data in batches]
        for number in (2, 0, 3, 1):
            engine.write(reservations[number], batches[number])
        for number, reservation in enumerate(reservations):
            engine.publish(reservation)
            assert all_of(engine) == b"".join(batches[: number + 1])

    def test_partitions_are_independent(self, tmp_path: Path, engines: Engines) -> None:
        factory = engines(Disk(), tmp_path)
        both: list[Engine] = []
        for name in ("a-0", "a-1"):
            (tmp_path / name).mkdir()
            both.append(factory(str(tmp_path / name), SMALL))
            both[-1].open(None)
        contents = [b"", b""]
        for number in range(12):
            for which, engine in enumerate(both):
                data = batch(number, 1, size=200 + which, epoch=which)
                append(engine, data)
                contents[which] += data
        truncate_engine(both[0], 7)
        assert all_of(both[1]) == contents[1]
        assert all_of(both[0]) == contents[0][: 7 * 200]

    # ---- failed writes -----------------------------------------------------------------------------------

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
    def test_a_failed_write_keeps_published_batches(self, make: MakeEngine, unopened: MakeEngine, code: int) -> None:
        disk = FaultyDisk()
        engine = make(disk=disk)
        append(engine, first := batch(0, 2, size=300))
        data = batch(2, 2, size=300)
        reservation = engine.reserve(len(data), infos(data), NOW_MS)
        disk.space_left, disk.fail_writes = 100, code
        with pytest.raises(StorageError):
            engine.write(reservation, data)
        disk.space_left, disk.fail_writes = None, 0
        assert all_of(engine) == first
        again = unopened()
        assert recovered(again, 0) == [0]
        append(again, second := batch(2, 1, size=200))
        assert all_of(again) == first + second

    # ---- locate ------------------------------------------------------------------------------------------

    def test_only_batches_below_max_offset_are_located(self, make: MakeEngine) -> None:
        engine = make(LogConfig())
        batches = fill(engine, 5, 10, size=300)
        for max_offset in range(51):
            whole = b"".join(batches[: max_offset // 10])
            for offset in (0, max_offset // 2, max_offset):
                located = wait_for_disk(engine.locate, offset, EVERYTHING, max_offset, min_one_batch=True)
                assert region_bytes(located.regions) == whole[offset // 10 * len(batches[0]) :]
                assert located.end_offset <= max(max_offset, offset)

    def test_max_bytes_limits_all_but_the_first_batch(self, make: MakeEngine) -> None:
        engine = make(LogConfig())
        batches = fill(engine, 4, size=200)
        everything = b"".join(batches)
        for max_bytes in (0, 1, 199):
            assert region_bytes(wait_for_disk(engine.locate, 1, max_bytes, 4, min_one_batch=True).regions) == batches[1]
            assert wait_for_disk(engine.locate, 1, max_bytes, 4, min_one_batch=False).regions == ()
            assert wait_for_disk(engine.locate, 1, max_bytes, 4, min_one_batch=False).size == 0
        for max_bytes in (200, 399, 400, 599):
            for min_one in (True, False):
                found = wait_for_disk(engine.locate, 1, max_bytes, 4, min_one_batch=min_one)
                data = region_bytes(found.regions)
                assert everything[200:].startswith(data)
                assert max_bytes - 200 < len(data) <= max_bytes
                assert found.end_offset > headers(data)[-1][1].last_offset

    def test_a_read_at_the_end_is_empty(self, make: MakeEngine) -> None:
        engine = make()
        append(engine, batch(0, 5))
        located = wait_for_disk(engine.locate, 5, EVERYTHING, 5, min_one_batch=True)
        assert (located.regions, located.size) == ((), 0)

    def test_read_batches_returns_whole_batches(self, make: MakeEngine) -> None:
        engine = make(LogConfig())
        batches = fill(engine, 4, size=200)
        for max_bytes, count in ((0, 1), (200, 1), (399, 1), (400, 2), (460, 2), (10_000, 3)):
            assert bytes(engine.view().read_batches(1, max_bytes)) == b"".join(batches[1 : 1 + count])
        assert bytes(engine.view().read_batches(4, 1000)) == b""

    def test_a_region_stays_readable_after_deletion(self, make: MakeEngine, tmp_path: Path) -> None:
        engine = make()
        fill(engine, 8, size=400)
        located = wait_for_disk(engine.locate, 0, 400, 8, min_one_batch=True)
        for path in engine.trim(6):
            os.unlink(path)
        assert engine.start_offset == 6
        assert region_bytes(located.regions) == batch(0, 1, size=400)

    # ---- times -------------------------------------------------------------------------------------------

    def test_timestamps_are_found_from_every_offset(self, make: MakeEngine) -> None:
        rng = Random(7)
        stamps = [NOW_MS + rng.randrange(0, 60) for _ in range(40)]
        engine = make()
        for number, stamp in enumerate(stamps):
            append(engine, batch(5 * number, 5, size=200, timestamp_ms=stamp))
        for offset in range(0, 205, 3):
            for target in range(NOW_MS - 1, NOW_MS + 62, 4):
                expected = [5 * n for n, stamp in enumerate(stamps) if stamp >= target and 5 * n + 4 >= offset]
                assert engine.view().find_timestamp(target, offset) == (expected[0] if expected else None), (
                    offset,
                    target,
                )
        latest = max(stamps)
        assert engine.view().max_timestamp() == (latest, 5 * stamps.index(latest) + 4)
        engine.close()
        assert make().view().max_timestamp() == (latest, 5 * stamps.index(latest) + 4)

    # ---- segments ----------------------------------------------------------------------------------------

    def test_an_append_that_starts_a_segment_reports_it(self, make: MakeEngine) -> None:
        engine = make()
        rolled = [append(engine, batch(number, 1, size=400)).rolled for number in range(5)]
        assert rolled == [False, False, True, False, True]
        assert engine.segments() == [SegmentInfo(0, 2, 800), SegmentInfo(2, 4, 800), SegmentInfo(4, 5, 400)]

    def test_segments_are_rolled_by_time(self, make: MakeEngine) -> None:
        engine = make(replace(SMALL, segment_ms=100))
        assert not append(engine, batch(0)).rolled
        assert not append(engine, batch(1, timestamp_ms=NOW_MS + 100)).rolled
        assert append(engine, batch(2, timestamp_ms=NOW_MS + 101)).rolled

    def test_roll_starts_a_segment_unless_the_active_one_is_empty(self, make: MakeEngine) -> None:
        engine = make()
        append(engine, batch(0, 3, size=200))
        assert engine.roll(NOW_MS)
        assert not engine.roll(NOW_MS)
        assert engine.segments() == [SegmentInfo(0, 3, 200), SegmentInfo(3, 3, 0)]
        assert not append(engine, batch(3, size=100)).rolled
        assert engine.segments() == [SegmentInfo(0, 3, 200), SegmentInfo(3, 4, 100)]

    def test_a_segment_reports_its_max_timestamp(self, make: MakeEngine) -> None:
        engine = make()
        append(engine, batch(0, size=200, timestamp_ms=NOW_MS + 7))
        append(engine, batch(1, size=200, timestamp_ms=NOW_MS + 3))
        engine.roll(NOW_MS)
        append(engine, batch(2, size=200, timestamp_ms=-1))
        assert engine.view().segment_max_timestamp(0) == NOW_MS + 7
        assert engine.view().segment_max_timestamp(2) > NOW_MS + 10**10

    def test_new_settings_apply_to_the_next_append(self, make: MakeEngine) -> None:
        engine = make()
        append(engine, batch(0, size=400))
        engine.update_config(replace(SMALL, segment_bytes=500))
        assert append(engine, batch(1, size=400)).rolled

    def test_trim_deletes_whole_segments_but_never_the_active_one(self, make: MakeEngine) -> None:
        engine = make()
        fill(engine, 9, size=400)
        for offset, start in ((1, 0), (3, 2), (4, 4), (100, 8)):
            for path in engine.trim(offset):
                os.unlink(path)
            assert engine.start_offset == start
            assert engine.segments()[0].base_offset == start
            assert all_of(engine) == b"".join(batch(number, 1, size=400) for number in range(start, 9))
        engine.close()
        again = make()
        assert (again.start_offset, again.end_offset, again.size_bytes) == (8, 9, 400)

    # ---- cutting -----------------------------------------------------------------------------------------

    @pytest.mark.parametrize("offset", range(0, 41, 3))
    def test_truncate_deletes_every_batch_that_reaches_the_offset(self, make: MakeEngine, offset: int) -> None:
        engine = make()
        batches = fill(engine, 10, 4, size=250, step_ms=1)
        truncate_engine(engine, offset)
        kept = b"".join(batches[: offset // 4])
        end_offset = offset // 4 * 4
        assert engine.end_offset == end_offset
        assert engine.size_bytes == len(kept)
        assert all_of(engine) == kept
        assert engine.view().max_timestamp() == ((NOW_MS + offset // 4 - 1, end_offset - 1) if kept else None)
        append(engine, more := batch(end_offset, 2, size=150, timestamp_ms=NOW_MS + 50))
        assert all_of(engine) == kept + more
        assert engine.view().find_timestamp(NOW_MS + 20, 0) == end_offset
        engine.close()
        again = make()
        assert all_of(again) == kept + more
        assert again.view().find_timestamp(NOW_MS + 20, 0) == end_offset
        assert sum(segment.size for segment in again.segments()) == again.size_bytes == len(kept + more)

    def test_reset_restarts_the_log_at_any_offset(self, make: MakeEngine) -> None:
        engine = make()
        for offset in (1000, 1002, 3, 500):
            for number in range(3):
                append(engine, batch(engine.end_offset, 1, size=400, timestamp_ms=NOW_MS + number))
            reset_engine(engine, offset)
            assert (engine.start_offset, engine.end_offset, engine.size_bytes) == (offset, offset, 0)
            assert engine.segments() == [SegmentInfo(offset, offset, 0)]
            assert engine.view().max_timestamp() is None
        append(engine, data := batch(500, 2))
        engine.close()
        again = make()
        assert (again.start_offset, again.end_offset) == (500, 502)
        assert all_of(again) == data

    # ---- aborted transactions ----------------------------------------------------------------------------

    def test_aborted_transactions_are_found_by_overlap(self, make: MakeEngine) -> None:
        engine = make()
        aborted = [AbortedTransaction(n, 10 * n, 10 * n + 9, 10 * n + 10) for n in range(5)]
        for number in range(25):
            append(engine, batch(2 * number, 2, size=150))
            if number % 5 == 4:
                engine.add_aborted(aborted[number // 5])
        for _ in range(2):
            assert wait_for_disk(engine.aborted, 0, 50) == aborted
            assert wait_for_disk(engine.aborted, 10, 20) == aborted[1:2]
            assert wait_for_disk(engine.aborted, 19, 21) == aborted[1:3]
            assert wait_for_disk(engine.aborted, 45, 46) == aborted[4:]
            engine.close()
            engine = make()
        truncate_engine(engine, 39)
        assert wait_for_disk(engine.aborted, 0, 100) == aborted[:3]
        reset_engine(engine, 10)
        assert wait_for_disk(engine.aborted, 0, 100) == []

    # ---- durability --------------------------------------------------------------------------------------

    def test_the_flushed_end_advances_after_a_sync(self, make: MakeEngine) -> None:
        disk = FaultyDisk()
        engine = make(disk=disk)
        append(engine, batch(0, 3))
        work = engine.collect_sync()
        append(engine, batch(3, 3))
        disk.reset_counters()
        sync_files(work)
        assert disk.syncs
        assert (work.end_offset, engine.flushed_end_offset) == (3, 0)
        engine.mark_flushed(work.end_offset)
        assert engine.flushed_end_offset == 3
        sync(engine)
        assert engine.flushed_end_offset == 6

    def test_a_sync_does_not_cover_appends_after_a_truncation(self, make: MakeEngine) -> None:
        engine = make()
        append(engine, batch(0, 3))
        append(engine, batch(3, 3))
        work = engine.collect_sync()
        truncate_engine(engine, 3)
        append(engine, batch(3, 3))
        later = engine.collect_sync()
        for sync, flushed in ((work, 3), (later, 6)):
            sync_files(sync)
            engine.mark_flushed(sync.end_offset)
            assert engine.flushed_end_offset == flushed

    def test_truncate_lowers_the_flushed_end(self, make: MakeEngine) -> None:
        engine = make()
        append(engine, batch(0, 3))
        append(engine, batch(3, 3))
        sync(engine)
        truncate_engine(engine, 3)
        assert engine.flushed_end_offset == 3
        reset_engine(engine, 1)
        assert engine.flushed_end_offset <= 1

    # ---- end ---------------------------------------------------------------------------------------------

    def test_deleted_data_do_not_reappear(self, make: MakeEngine, tmp_path: Path) -> None:
        engine = make()
        append(engine, batch(0, 5, size=300))
        engine.delete()
        if isinstance(engine, CommitLogEngine):
            engine._log.drop(engine._slot)  # by the log manager, after the rename
        (tmp_path / "t-0").rename(tmp_path / "t-0.0-delete")
        again = make()
        assert (again.start_offset, again.end_offset, again.size_bytes) == (0, 0, 0)

    # ---- recovery ----------------------------------------------------------------------------------------

    @pytest.mark.parametrize("point", [0, 3, 4, 11, 20])
    def test_recovery_checks_all_from_the_segment_of_the_recovery_point(
        self, make: MakeEngine, unopened: MakeEngine, point: int
    ) -> None:
        engine = make()
        batches = fill(engine, 10, 2, size=300)
        again = unopened()
        seen = recovered(again, point)
        assert seen == list(range(seen[0], 20, 2))
        assert seen[0] <= point
        assert all_of(again) == b"".join(batches)
        flushed = 20 if isinstance(again, CommitLogEngine) else point  # a recovered commit log is synced
        assert (again.end_offset, again.flushed_end_offset) == (20, flushed)
        append(again, more := batch(20, 2))
        assert all_of(again) == b"".join(batches) + more

    def test_batches_below_the_recovery_are_readable_before_it(self, make: MakeEngine, unopened: MakeEngine) -> None:
        engine = make()
        batches = fill(engine, 10, 2, size=300)
        if isinstance(engine, StoresState):
            for segment in engine.segments()[1:-1]:
                engine.store_snapshot(segment.base_offset, b"")
        again = unopened()
        start = again.open(15)
        assert start is not None
        assert 6 <= start < 18
        found, at = b"", 0
        while at < start:
            found += bytes(again.view().read_batches(at, 700))
            at = headers(found)[-1][1].next_offset
        assert found.startswith(b"".join(batches[: start // 2]))
        assert again.bytes_to_recover(start) == 300 * (10 - start // 2)

    @pytest.mark.parametrize("damaged", range(8))
    def test_recovery_truncates_at_the_first_corrupt_batch(
        self, make: MakeEngine, unopened: MakeEngine, damaged: int
    ) -> None:
        engine = make()
        batches = fill(engine, 8, 2, size=300)
        (region,) = file_regions(wait_for_disk(engine.locate, 2 * damaged, 300, 16, min_one_batch=True).regions)
        os.pwrite(region.file.fileno(), b"!!", region.position + 290)
        again = unopened()
        assert recovered(again, 0) == [2 * number for number in range(damaged)]
        assert all_of(again) == b"".join(batches[:damaged])
        assert again.end_offset == 2 * damaged
        append(again, more := batch(2 * damaged, 1, size=300))
        last = unopened()
        recovered(last, 0)
        assert all_of(last) == b"".join(batches[:damaged]) + more

    def test_recovery_rebuilds_the_aborted_transactions(self, make: MakeEngine, unopened: MakeEngine) -> None:
        engine = make()
        for number in range(6):
            append(engine, batch(2 * number, 2, size=400))
            if number % 2:
                engine.add_aborted(AbortedTransaction(number, 2 * number - 1, 2 * number + 1, 2 * number + 2))
        before = wait_for_disk(engine.aborted, 0, 100)
        again = unopened()
        start = again.open(5)
        assert start is not None

        def visit(buffer: Buffer, position: int, header: BatchHeader) -> None:
            number = header.base_offset // 2
            if number % 2:
                again.add_aborted(AbortedTransaction(number, 2 * number - 1, 2 * number + 1, 2 * number + 2))

        again.recover(start, visit)
        assert wait_for_disk(again.aborted, 0, 100) == before
