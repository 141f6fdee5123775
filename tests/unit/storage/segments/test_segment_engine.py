"""A partition as a directory of segments (storage/segments/segment_engine.py)."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.file_region import file_regions
from storage.config.log_config import LogConfig
from storage.engine import AbortedTransaction, SegmentInfo
from storage.io.deferred_file_ops import FileOp, run_now
from storage.io.disk import Disk, StorageError
from storage.io.disk_lookup import DiskLookup, wait_for_disk
from storage.segments.sealed_segment import SealedSegment
from storage.segments.segment_engine import SegmentEngine
from tests.support.faulty_disk import FaultyDisk
from tests.support.segments import NOW_MS, append, bases, batch, close_idle_files, contents, filled, infos, opened, read

SMALL = LogConfig(segment_bytes=10_000, index_interval_bytes=2000)


# ---- names and rolling -----------------------------------------------------------------------------------


def test_a_new_partition_has_kafkas_files(tmp_path: Path) -> None:
    opened(tmp_path / "t-0")
    assert sorted(contents(tmp_path / "t-0")) == [f"{0:020d}{suffix}" for suffix in (".index", ".log", ".timeindex")]


def test_a_segment_is_rolled_before_it_exceeds_segment_bytes(tmp_path: Path) -> None:
    engine = filled(tmp_path, 25, records=2, config=SMALL)
    assert engine.segments() == [SegmentInfo(0, 20, 10_000), SegmentInfo(20, 40, 10_000), SegmentInfo(40, 50, 5000)]
    assert sorted(contents(tmp_path))[3:6] == [f"{20:020d}{suffix}" for suffix in (".index", ".log", ".timeindex")]


def test_a_preallocated_segment_has_its_disk_space_at_once(tmp_path: Path) -> None:
    size = 1 << 20
    engine = opened(tmp_path, replace(SMALL, preallocate=True, segment_bytes=size))
    for number in range(4):
        append(engine, batch(number, size=300_000))
    engine.update_config(replace(SMALL, preallocate=False, segment_bytes=size))
    for number in range(4, 8):
        append(engine, batch(number, size=300_000))
    first, second, third = (path.stat() for path in sorted(tmp_path.glob("*.log")))
    assert (first.st_size, second.st_size, third.st_size) == (900_000, 900_000, 600_000)
    assert first.st_blocks * 512 < size
    assert second.st_blocks * 512 >= size
    assert third.st_blocks * 512 < size


def test_the_first_batch_of_a_segment_never_rolls_by_size(tmp_path: Path) -> None:
    engine = opened(tmp_path, replace(SMALL, segment_bytes=500))
    append(engine, batch(0, size=900))
    append(engine, batch(1, size=900))
    assert bases(engine) == [0, 1]


def test_a_segment_is_rolled_by_the_time_between_batches(tmp_path: Path) -> None:
    config = replace(SMALL, segment_ms=1000)
    engine = opened(tmp_path, config)
    append(engine, batch(0, timestamp_ms=NOW_MS), wall_ms=NOW_MS + 10**9)
    append(engine, batch(1, timestamp_ms=NOW_MS + 1000), wall_ms=NOW_MS + 2 * 10**9)
    assert bases(engine) == [0]
    engine.close()
    engine = opened(tmp_path, config)
    append(engine, batch(2, timestamp_ms=NOW_MS - 9999))
    assert bases(engine) == [0]
    append(engine, batch(3, timestamp_ms=NOW_MS + 1001))
    assert bases(engine) == [0, 3]


def test_without_timestamps_a_segment_is_rolled_by_its_age(tmp_path: Path) -> None:
    config = replace(SMALL, segment_ms=1000)
    engine = opened(tmp_path, config)
    for offset, wall_ms in ((0, 5000), (1, 6000), (2, 6001), (3, 7001), (4, 7002)):
        append(engine, batch(offset, timestamp_ms=-1), wall_ms=wall_ms)
    assert bases(engine) == [0, 2, 4]


def test_the_jitter_shortens_segment_ms(tmp_path: Path) -> None:
    bounds: list[int] = []

    def rng(limit: int) -> int:
        bounds.append(limit)
        return 600

    engine = SegmentEngine(Disk(), str(tmp_path), replace(SMALL, segment_ms=1000, segment_jitter_ms=5000), rng)
    engine.open(None)
    append(engine, batch(0, timestamp_ms=NOW_MS))
    append(engine, batch(1, timestamp_ms=NOW_MS + 400))
    append(engine, batch(2, timestamp_ms=NOW_MS + 401))
    assert bases(engine) == [0, 2]
    assert set(bounds) == {1000}


@pytest.mark.parametrize(("policy", "expected"), [("compact", [0, 2]), ("compact,delete", [0, 2]), ("delete", [0])])
def test_a_compacted_segment_is_rolled_in_time_for_the_compaction_lag(
    tmp_path: Path, policy: str, expected: list[int]
) -> None:
    config = replace(SMALL, cleanup_policy=frozenset(policy.split(",")), max_compaction_lag_ms=1000)
    engine = opened(tmp_path, config)
    for number, age_ms in enumerate((0, 1000, 1001)):
        append(engine, batch(number, timestamp_ms=NOW_MS + age_ms))
    assert bases(engine) == expected


@pytest.mark.parametrize(("index_bytes", "expected"), [(36, [0, 3, 6]), (24, [0, 2, 4, 6, 8])])
def test_a_segment_is_rolled_when_an_index_is_full(tmp_path: Path, index_bytes: int, expected: list[int]) -> None:
    engine = filled(tmp_path, 9, config=LogConfig(segment_index_bytes=index_bytes, index_interval_bytes=0))
    assert bases(engine)[: len(expected)] == expected
    engine.close()
    assert max(path.stat().st_size for path in tmp_path.glob("*index")) <= index_bytes


def test_a_segment_is_rolled_when_a_relative_offset_would_overflow(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    append(engine, batch(0))
    append(engine, batch(2**31 - 1))
    append(engine, batch(2**31))
    append(engine, batch(2**33))
    assert bases(engine) == [0, 2**31, 2**33]
    assert engine.end_offset == 2**33 + 1
    other = opened(tmp_path / "empty")
    append(other, batch(2**33))
    assert bases(other) == [0, 2**33]
    assert read(other, 5) == batch(2**33)


# ---- reserve, write, publish -----------------------------------------------------------------------------


def test_a_segment_is_finished_with_its_last_publication(tmp_path: Path) -> None:
    engine = filled(tmp_path, 10, config=replace(SMALL, segment_bytes=11_000))
    parts = [batch(10 + i, timestamp_ms=NOW_MS + 10 + i, size=1000) for i in range(2)]
    reserved = [engine.reserve(len(part), infos(part), NOW_MS) for part in parts]
    assert [r.rolled for r in reserved] == [False, True]
    assert contents(tmp_path)[f"{0:020d}.timeindex"] == b""
    engine.write(reserved[0], parts[0])
    engine.publish(reserved[0])
    # Entries at 3000, 6000, 9000 and the end.
    assert len(contents(tmp_path)[f"{0:020d}.timeindex"]) == 48


def test_a_roll_by_time_does_not_read_unwritten_bytes(tmp_path: Path) -> None:
    engine = opened(tmp_path, replace(SMALL, segment_ms=1000))
    parts = [batch(i, timestamp_ms=NOW_MS + time) for i, time in enumerate((0, 1000, 1001))]
    reserved = [engine.reserve(len(part), infos(part), NOW_MS) for part in parts]
    assert [r.rolled for r in reserved] == [False, False, True]


def test_a_reserve_that_fails_to_roll_reserves_nothing(tmp_path: Path) -> None:
    disk = FaultyDisk()
    engine = filled(tmp_path, 10, config=SMALL, disk=disk)
    part = batch(10, size=1000)
    disk.fail_writes = errno.ENOSPC
    with pytest.raises(StorageError):
        engine.reserve(len(part), infos(part), NOW_MS)
    disk.fail_writes = 0
    assert engine.end_offset == 10
    append(engine, part)
    assert bases(engine) == [0, 10]
    assert read(engine, 10) == part


# ---- sealing -------------------------------------------------------------------------------------------------


def sealed_bases(engine: SegmentEngine) -> list[int]:
    return [segment.base_offset for segment in engine._segments.items if isinstance(segment, SealedSegment)]


def test_a_rolled_segment_is_sealed_by_a_later_roll_when_its_files_are_written(tmp_path: Path) -> None:
    engine = filled(tmp_path, 25, config=SMALL)
    assert (bases(engine), sealed_bases(engine)) == ([0, 10, 20], [0])
    held: list[FileOp] = []

    def hold_index_writes(op: FileOp) -> None:
        (held.append if "take_write" in (getattr(op, "__qualname__", "") or type(op).__name__) else run_now)(op)

    for number in range(25, 45):
        append(engine, batch(number, size=1000))
        engine.submit = hold_index_writes if number >= 32 else run_now
    assert (bases(engine), sealed_bases(engine)) == ([0, 10, 20, 30, 40], [0, 10, 20])
    close_idle_files(engine)
    assert sealed_bases(engine) == [0, 10, 20]
    for op in held:
        op()
    close_idle_files(engine)
    assert sealed_bases(engine) == [0, 10, 20, 30]
    assert [read(engine, number, 1000) for number in (3, 12, 29, 33, 44)] == [
        batch(number, timestamp_ms=NOW_MS + number if number < 25 else NOW_MS, size=1000)
        for number in (3, 12, 29, 33, 44)
    ]


def test_a_rebuild_that_finds_an_invalid_batch_shortens_the_segment(tmp_path: Path) -> None:
    filled(tmp_path, 25, config=SMALL).close()
    (tmp_path / f"{10:020d}.index").write_bytes(b"torn")
    with (tmp_path / f"{10:020d}.log").open("r+b") as log:
        log.seek(7500)
        log.write(b"x")
    engine = opened(tmp_path, SMALL)
    assert read(engine, 12, 1000) == batch(12, timestamp_ms=NOW_MS + 12, size=1000)
    assert [segment.size for segment in engine.segments()] == [10_000, 7000, 5000]
    assert read(engine, 18, 1000) == batch(20, timestamp_ms=NOW_MS + 20, size=1000)


def test_a_lookup_from_before_a_change_of_the_segments_has_no_result(tmp_path: Path) -> None:
    engine = filled(tmp_path, 35, config=SMALL)
    asked = [engine.lookup(name, lambda view: view.read_batches(0, 1000)) for name in ("read", "vanished")]
    lookups = [lookup for lookup in asked if isinstance(lookup, DiskLookup)]
    lookups[0].run()
    for path in engine.trim(20):
        Path(path).unlink()
    lookups[1].run()  # its file does not exist: that is no error now
    for lookup in lookups:
        lookup.finish()
    assert isinstance(engine.lookup("read", lambda view: view.read_batches(20, 1000)), DiskLookup)
    assert all(segment.files is None for segment in engine._segments.items if isinstance(segment, SealedSegment))


def test_a_deleted_log_keeps_no_trimmed_segment_open(tmp_path: Path) -> None:
    disk = Disk()
    engine = SegmentEngine(disk, str(tmp_path), SMALL)
    engine.open(None)
    for number in range(35):
        append(engine, batch(number, size=1000))
    engine.trim(20)
    engine.delete()
    assert disk.open_files == 0


def test_segments_are_trimmed_oldest_first_whichever_operation_runs_first(tmp_path: Path) -> None:
    """On a full disk a later one is not queued behind writes; a crash between both left a hole and lost what follows."""
    engine = filled(tmp_path, 35, config=SMALL)
    queue: list[FileOp] = []
    overtaking: list[FileOp] = []
    engine.submit = queue.append
    earlier = engine.trim(10)
    later = engine.trim(20, overtaking.append)
    assert (earlier, later) == ([], [])
    overtaking.pop()()
    assert [name[:20] for path in (earlier, later) for name in map(os.path.basename, path[:1])] == [
        f"{0:020d}",
        f"{10:020d}",
    ]
    queue.pop()()
    assert len(earlier) == len(later) == 3
    assert bases(opened(tmp_path, SMALL)) == [20, 30]


def test_a_trim_does_not_overtake_one_of_a_segment_that_is_not_written(tmp_path: Path) -> None:
    engine = filled(tmp_path, 35, config=SMALL)
    queue: list[FileOp] = []
    engine.submit = queue.append
    oldest = engine._segments.items[0]
    oldest.is_created = False
    engine.trim(10)
    assert engine.trim(20, run_now) == []
    assert bases(engine) == [10, 20, 30]
    oldest.is_created = True
    assert len(engine.trim(20, run_now)) == 3
    assert bases(opened(tmp_path, SMALL)) == [20, 30]


def test_a_trim_that_overtakes_the_creation_of_the_last_segment_keeps_the_end_of_the_log(tmp_path: Path) -> None:
    """With a full disk the creation waits behind writes; a crash before it left no segment, and offsets were used again."""
    engine = filled(tmp_path, 25, config=SMALL)
    queue: list[FileOp] = []
    engine.submit = queue.append
    engine.roll(NOW_MS)
    finish, (create, *rest) = queue[:-2], queue[-2:]
    for op in finish:
        op()
    assert not engine._segments.items[-1].is_created
    engine.trim(25, run_now)
    assert opened(tmp_path, SMALL).end_offset == 25
    for op in (create, *rest):
        op()
    append(engine, batch(25))
    assert read(engine, 25) == batch(25)


# ---- locate ----------------------------------------------------------------------------------------------


def test_locate_returns_one_region_of_one_segment(tmp_path: Path) -> None:
    engine = filled(tmp_path, 25, config=SMALL)
    located = wait_for_disk(engine.locate, 3, 10**6, 25, min_one_batch=True)
    assert [(r.position, r.length) for r in file_regions(located.regions)] == [(3000, 7000)]
    assert located.size == 7000
    assert located.end_offset == 10
    located = wait_for_disk(engine.locate, 20, 10**6, 25, min_one_batch=True)
    assert (located.size, located.end_offset) == (5000, 25)


def test_locate_returns_at_most_max_bytes_and_may_truncate_a_batch(tmp_path: Path) -> None:
    engine = filled(tmp_path, 8)
    for max_bytes in (0, 1, 999, 1000, 1001, 2500, 6000, 7000):
        whole = min(max_bytes, 6000)
        assert wait_for_disk(engine.locate, 2, max_bytes, 8, min_one_batch=True).size == max(whole, 1000)
        assert wait_for_disk(engine.locate, 2, max_bytes, 8, min_one_batch=False).size == (
            whole if whole >= 1000 else 0
        )


def test_the_end_offset_of_a_truncated_result_is_slightly_above_it(tmp_path: Path) -> None:
    """Kafka's upper bound for aborted transactions: the next index entry, or max_offset."""
    engine = filled(tmp_path, 40, config=LogConfig(index_interval_bytes=4096))
    assert wait_for_disk(engine.locate, 3, 4000, 40, min_one_batch=True).end_offset == 40
    engine.add_aborted(AbortedTransaction(1, 0, 1, 2))
    located = wait_for_disk(engine.locate, 3, 4000, 40, min_one_batch=True)
    assert 7 <= located.end_offset <= 11
    located = wait_for_disk(engine.locate, 3, 4000, 8, min_one_batch=True)
    assert located.end_offset == 8
    assert wait_for_disk(engine.locate, 30, 9000, 40, min_one_batch=True).end_offset == 40


def test_locate_at_the_end_is_empty(tmp_path: Path) -> None:
    engine = filled(tmp_path, 12, config=SMALL)
    located = wait_for_disk(engine.locate, 12, 10**6, 12, min_one_batch=True)
    assert (located.regions, located.size) == ((), 0)


def test_a_read_at_the_end_makes_no_system_call(tmp_path: Path) -> None:
    disk = FaultyDisk()
    engine = filled(tmp_path, 200, disk=disk)
    disk.reset_counters()
    for offset in range(140, 201):
        wait_for_disk(engine.locate, offset, 10**6, 200, min_one_batch=True)
        wait_for_disk(engine.locate, offset, 10**6, max(offset, 190), min_one_batch=True)
        wait_for_disk(engine.locate, offset, 1500, 200, min_one_batch=True)
    assert disk.reads == []


def test_a_segment_without_timestamps_has_its_files_age(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    append(engine, batch(0, timestamp_ms=-1))
    assert engine.view().segment_max_timestamp(0) == (tmp_path / f"{0:020d}.log").stat().st_mtime_ns // 10**6
