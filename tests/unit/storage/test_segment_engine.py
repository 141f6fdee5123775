"""Kafka's engine: a partition as a directory of segments (storage/segments/segment_engine.py, layout.py)."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.records import BatchHeader
from storage.disk import Disk, File, StorageError
from storage.engine import AbortedTransaction, Buffer, Engine, OffsetPosition, SegmentInfo
from storage.log_config import LogConfig
from storage.segments.segment_engine import SegmentEngine
from tests.support.faulty_disk import FaultyDisk
from tests.support.segments import NOW_MS, append, batch, bytes_of, contents, filled, infos, opened, read

SMALL = LogConfig(segment_bytes=10_000, index_interval_bytes=2000)


def bases(engine: SegmentEngine) -> list[int]:
    return [segment.base_offset for segment in engine.segments()]


def recovered(directory: Path, recovery_point: int, config: LogConfig = SMALL) -> tuple[SegmentEngine, list[int]]:
    """An engine after an unclean stop, and the base offsets that recovery has visited."""
    engine = SegmentEngine(Disk(), str(directory), config)
    visited: list[int] = []

    def visit(buffer: Buffer, position: int, header: BatchHeader) -> None:
        visited.append(header.base_offset)
        assert engine.end_offset == header.next_offset

    start = engine.open(recovery_point)
    if start is not None:
        engine.recover(start, visit)
    return engine, visited


def test_the_engine_keeps_the_contract() -> None:
    """storage/engine.py: mypy compares the signatures, this the names."""

    def check(engine: SegmentEngine) -> Engine:
        return engine

    promised = {name for name in vars(Engine) if not name.startswith("_")}
    assert promised <= set(dir(check(SegmentEngine(Disk(), "", LogConfig()))))


# ---- names and rolling -----------------------------------------------------------------------------------


def test_a_new_partition_has_kafkas_files(tmp_path: Path) -> None:
    """M1: names by base offset, 20 digits."""
    engine = opened(tmp_path / "t-0")
    assert sorted(contents(tmp_path / "t-0")) == [f"{0:020d}{suffix}" for suffix in (".index", ".log", ".timeindex")]
    assert (engine.start_offset, engine.end_offset, engine.size_bytes, engine.flushed_end_offset) == (0, 0, 0, 0)
    assert engine.segments() == [SegmentInfo(0, 0, 0)]


def test_a_segment_is_rolled_before_it_would_grow_too_large(tmp_path: Path) -> None:
    """Rule 1: exactly full is not too large."""
    engine = filled(tmp_path, 25, records=2, config=SMALL)
    assert engine.segments() == [SegmentInfo(0, 20, 10_000), SegmentInfo(20, 40, 10_000), SegmentInfo(40, 50, 5000)]
    assert sorted(contents(tmp_path))[3:6] == [f"{20:020d}{suffix}" for suffix in (".index", ".log", ".timeindex")]


def test_the_reservation_that_began_a_segment_says_so(tmp_path: Path) -> None:
    """Log takes a producer snapshot there."""
    engine = opened(tmp_path, SMALL)
    rolled = [append(engine, batch(i, size=4000)).rolled for i in range(5)]
    assert rolled == [False, False, True, False, True]


def test_the_first_batch_of_a_segment_never_rolls_by_size(tmp_path: Path) -> None:
    """Rule 1: no row of empty segments."""
    engine = opened(tmp_path, replace(SMALL, segment_bytes=500))
    append(engine, batch(0, size=900))
    append(engine, batch(1, size=900))
    assert bases(engine) == [0, 1]


def test_a_segment_is_rolled_by_the_time_between_batches(tmp_path: Path) -> None:
    """Rule 1: the first batch's greatest time counts, not the clock; also after a restart."""
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


def test_without_times_a_segment_is_rolled_by_its_age(tmp_path: Path) -> None:
    """As Kafka: the clock counts only when the first batch has no time."""
    config = replace(SMALL, segment_ms=1000)
    engine = opened(tmp_path, config)
    for offset, wall_ms in ((0, 5000), (1, 6000), (2, 6001), (3, 7001), (4, 7002)):
        append(engine, batch(offset, timestamp_ms=-1), wall_ms=wall_ms)
    assert bases(engine) == [0, 2, 4]


def test_the_jitter_shortens_the_life_of_a_segment(tmp_path: Path) -> None:
    """segment.jitter.ms, at most segment.ms; the dice are handed in."""
    asked: list[int] = []

    def dice(limit: int) -> int:
        asked.append(limit)
        return 600

    engine = SegmentEngine(Disk(), str(tmp_path), replace(SMALL, segment_ms=1000, segment_jitter_ms=5000), dice)
    engine.open(None)
    append(engine, batch(0, timestamp_ms=NOW_MS))
    append(engine, batch(1, timestamp_ms=NOW_MS + 400))
    append(engine, batch(2, timestamp_ms=NOW_MS + 401))
    assert bases(engine) == [0, 2]
    assert set(asked) == {1000}


@pytest.mark.parametrize(("index_bytes", "expected"), [(36, [0, 3, 6]), (24, [0, 2, 4, 6, 8])])
def test_a_segment_is_rolled_when_an_index_is_full(tmp_path: Path, index_bytes: int, expected: list[int]) -> None:
    """Rule 1: the time index (12 bytes an entry, one place kept for the end) fills up first."""
    engine = filled(tmp_path, 9, config=LogConfig(segment_index_bytes=index_bytes, index_interval_bytes=0))
    assert bases(engine)[: len(expected)] == expected
    engine.close()
    assert max(path.stat().st_size for path in tmp_path.glob("*index")) <= index_bytes


def test_a_segment_is_rolled_when_an_offset_does_not_fit(tmp_path: Path) -> None:
    """Rule 1: relative offsets have 31 bits; an empty segment stays where it is, as Kafka leaves it."""
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


def test_roll_begins_a_segment_at_the_end(tmp_path: Path) -> None:
    """And does nothing while the active one is empty."""
    engine = filled(tmp_path, 3)
    assert engine.roll(NOW_MS)
    assert not engine.roll(NOW_MS)
    assert bases(engine) == [0, 3]
    append(engine, batch(3))
    assert read(engine, 2, 1000) == batch(2, timestamp_ms=NOW_MS + 2, size=1000)


def test_settings_hold_from_the_next_append_on(tmp_path: Path) -> None:
    """update_config."""
    engine = filled(tmp_path, 3)
    engine.update_config(replace(SMALL, segment_bytes=3500))
    append(engine, batch(3, size=1000))
    assert bases(engine) == [0, 3]


# ---- reserve, write, publish, abandon --------------------------------------------------------------------


def test_nothing_is_read_before_it_is_published(tmp_path: Path) -> None:
    """Contract rule 2: outstanding reservations, published in order, over a roll."""
    engine = filled(tmp_path, 9, config=SMALL)
    parts = [batch(9 + i, size=1000) for i in range(3)]
    reserved = [engine.reserve(len(part), infos(part), NOW_MS) for part in parts]
    assert [r.rolled for r in reserved] == [False, True, False]
    for reservation, part in reversed(list(zip(reserved, parts, strict=True))):
        engine.write(reservation, part)
    assert engine.end_offset == 9
    assert engine.size_bytes == 9000
    assert engine.locate(9, 10**6, 9, min_one_batch=True).size == 0
    for number, reservation in enumerate(reserved):
        engine.publish(reservation)
        assert engine.end_offset == 10 + number
        assert engine.locate(9 + number, 10**6, 10 + number, min_one_batch=True).size == 1000
    assert read(engine, 9) == parts[0]
    assert read(engine, 10) == parts[1] + parts[2]
    engine.close()
    assert [len(data) for name, data in contents(tmp_path).items() if name.endswith(".timeindex")] == [36, 12]


def test_abandoning_gives_up_all_that_was_reserved_later(tmp_path: Path) -> None:
    """Contract: with the segments that these reservations began; what was reserved before stays."""
    engine = filled(tmp_path, 8, config=SMALL)
    parts = [batch(8 + i, size=1000) for i in range(4)]
    reserved = [engine.reserve(len(part), infos(part), NOW_MS) for part in parts]
    for reservation, part in zip(reserved, parts, strict=True):
        engine.write(reservation, part)
    assert bases(engine) == [0, 10]
    engine.abandon(reserved[1])
    assert bases(engine) == [0]
    engine.write(reserved[2], parts[2])  # the writer's thread did not know yet
    engine.publish(reserved[0])
    assert (engine.end_offset, (tmp_path / f"{0:020d}.log").stat().st_size) == (9, 9000)
    append(engine, parts[1])
    append(engine, parts[2])
    assert bases(engine) == [0, 10]
    assert read(engine, 8) == parts[0] + parts[1]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_after_a_failed_write_and_abandon_all_is_as_before(tmp_path: Path, code: int) -> None:
    """A part of the batch may have reached the file."""
    disk = FaultyDisk()
    engine = filled(tmp_path, 5, disk=disk)
    before = contents(tmp_path)
    part = batch(5, size=1000)
    reservation = engine.reserve(len(part), infos(part), NOW_MS)
    disk.room, disk.fail_writes = 300, code
    with pytest.raises(StorageError):
        engine.write(reservation, part)
    engine.abandon(reservation)
    assert contents(tmp_path) == before
    assert (engine.end_offset, engine.size_bytes) == (5, 5000)
    disk.room, disk.fail_writes = None, 0
    append(engine, part)
    assert read(engine, 4)[1000:] == part


def test_a_reserve_that_fails_to_roll_has_reserved_nothing(tmp_path: Path) -> None:
    """Contract rule 6."""
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


def test_short_writes_are_continued(tmp_path: Path) -> None:
    """The system may write less than it is asked to."""
    disk = FaultyDisk()
    disk.write_limit = 333
    engine = filled(tmp_path, 5, disk=disk)
    assert read(engine, 0) == b"".join(batch(i, timestamp_ms=NOW_MS + i, size=1000) for i in range(5))


# ---- locate ----------------------------------------------------------------------------------------------


def test_locate_answers_with_one_region_of_one_segment(tmp_path: Path) -> None:
    """F7: the rest is in the next segment, and the next fetch will get it."""
    engine = filled(tmp_path, 25, config=SMALL)
    located = engine.locate(3, 10**6, 25, min_one_batch=True)
    assert [(r.position, r.length) for r in located.regions] == [(3000, 7000)]
    assert located.size == 7000
    assert located.end_offset == 10
    assert located.position == OffsetPosition(0, 3000)
    located = engine.locate(20, 10**6, 25, min_one_batch=True)
    assert (located.size, located.end_offset, located.position) == (5000, 25, OffsetPosition(20, 0))


@pytest.mark.parametrize("again", [False, True])
def test_locate_starts_at_the_batch_that_holds_the_offset(tmp_path: Path, *, again: bool) -> None:
    """F8, for every offset, in active and older segments."""
    engine = filled(tmp_path, 25, records=3, config=SMALL)
    if again:
        engine.close()
        engine = opened(tmp_path, SMALL)
    for offset in range(75):
        first = offset - offset % 3
        assert read(engine, offset, 1000) == batch(first, 3, timestamp_ms=NOW_MS + first // 3, size=1000)


def test_locate_stops_before_the_batch_that_reaches_max_offset(tmp_path: Path) -> None:
    """F8: the high watermark or last stable offset becomes a position."""
    engine = filled(tmp_path, 25, records=2, config=SMALL)
    for max_offset in range(4, 20):
        located = engine.locate(4, 10**6, max_offset, min_one_batch=True)
        assert located.size == 1000 * ((max_offset - 4) // 2)
        assert located.end_offset <= max_offset
    assert engine.locate(4, 10**6, 20, min_one_batch=True).size == 8000
    assert engine.locate(4, 10**6, 21, min_one_batch=True).size == 8000
    assert engine.locate(7, 10**6, 7, min_one_batch=True).size == 0
    assert engine.locate(5, 10**6, 5, min_one_batch=True).regions == ()


def test_locate_gives_at_most_max_bytes_and_may_cut_a_batch(tmp_path: Path) -> None:
    """F8, F9: never the first batch, which comes whole or not at all."""
    engine = filled(tmp_path, 8)
    sizes = {
        (max_bytes, min_one): engine.locate(2, max_bytes, 8, min_one_batch=min_one).size
        for max_bytes in (0, 1, 999, 1000, 1001, 2500, 6000, 7000)
        for min_one in (False, True)
    }
    assert [sizes[n, False] for n in (0, 1, 999, 1000, 1001, 2500, 6000, 7000)] == [
        0,
        0,
        0,
        1000,
        1001,
        2500,
        6000,
        6000,
    ]
    assert [sizes[n, True] for n in (0, 1, 999, 1000, 1001)] == [1000, 1000, 1000, 1000, 1001]


def test_the_end_offset_of_a_cut_answer_is_a_little_behind_it(tmp_path: Path) -> None:
    """Kafka's upper bound for aborted transactions: the next index entry, never beyond max_offset."""
    engine = filled(tmp_path, 40, config=LogConfig(index_interval_bytes=4096))
    located = engine.locate(3, 4000, 40, min_one_batch=True)
    assert 7 <= located.end_offset <= 11
    located = engine.locate(3, 4000, 8, min_one_batch=True)
    assert located.end_offset == 8
    assert engine.locate(30, 9000, 40, min_one_batch=True).end_offset == 40


def test_locate_at_the_end_is_empty_and_says_where_the_end_is(tmp_path: Path) -> None:
    """F6, F7."""
    engine = filled(tmp_path, 12, config=SMALL)
    located = engine.locate(12, 10**6, 12, min_one_batch=True)
    assert (located.regions, located.size, located.position) == ((), 0, OffsetPosition(10, 2000))


def test_locate_goes_on_to_the_next_segment_when_this_one_has_nothing_left(tmp_path: Path) -> None:
    """F7: offsets may be missing at a segment's end, after compaction."""
    engine = filled(tmp_path, 10, config=SMALL)
    append(engine, batch(50, size=1000))
    assert bases(engine) == [0, 50]
    for offset in (10, 49, 50):
        assert read(engine, offset) == batch(50, size=1000)
    located = engine.locate(20, 10**6, 40, min_one_batch=True)
    assert (located.regions, located.size) == ((), 0)


def test_a_reader_at_the_end_costs_no_system_call(tmp_path: Path) -> None:
    """Hot path: the last batches, and the end itself, are in memory."""
    disk = FaultyDisk()
    engine = filled(tmp_path, 200, disk=disk)
    disk.forget_history()
    for offset in range(140, 201):
        engine.locate(offset, 10**6, 200, min_one_batch=True)
        engine.locate(offset, 10**6, max(offset, 190), min_one_batch=True)
        engine.locate(offset, 1500, 200, min_one_batch=True)
    assert disk.reads == []


def test_read_batches_gives_whole_batches_only(tmp_path: Path) -> None:
    """For internal readers: at least one, no further one beyond max_bytes."""
    engine = filled(tmp_path, 8)
    whole = [batch(i, timestamp_ms=NOW_MS + i, size=1000) for i in range(8)]
    assert bytes(engine.read_batches(2, 1)) == whole[2]
    assert bytes(engine.read_batches(2, 1999)) == whole[2]
    assert bytes(engine.read_batches(2, 2000)) == whole[2] + whole[3]
    assert bytes(engine.read_batches(2, 2060)) == whole[2] + whole[3]
    assert bytes(engine.read_batches(5, 10**6)) == b"".join(whole[5:])
    assert bytes(engine.read_batches(8, 10**6)) == b""


def test_times_are_found_across_segments(tmp_path: Path) -> None:
    """ListOffsets by time: the first batch that is late enough, at or behind the offset."""
    engine = filled(tmp_path, 25, records=2, config=SMALL)
    assert engine.find_timestamp(0, 0) == 0
    assert engine.find_timestamp(NOW_MS + 12, 0) == 24
    assert engine.find_timestamp(NOW_MS + 24, 0) == 48
    assert engine.find_timestamp(NOW_MS + 25, 0) is None
    assert engine.find_timestamp(NOW_MS, 31) == 30
    assert engine.find_timestamp(NOW_MS, 50) is None
    assert engine.max_timestamp() == (NOW_MS + 24, 49)
    assert [engine.segment_max_timestamp(base) - NOW_MS for base in bases(engine)] == [9, 19, 24]


def test_the_greatest_time_is_that_of_the_first_batch_that_has_it(tmp_path: Path) -> None:
    """Contract; also in a segment that was loaded again."""
    engine = opened(tmp_path, SMALL)
    assert engine.max_timestamp() is None
    for offset, time in enumerate([1, 9, 3, 9, 2] * 3):
        append(engine, batch(offset, timestamp_ms=NOW_MS + time, size=2000))
    assert engine.max_timestamp() == (NOW_MS + 9, 1)
    engine.close()
    assert opened(tmp_path, SMALL).max_timestamp() == (NOW_MS + 9, 1)


def test_a_segment_without_times_is_as_old_as_its_file(tmp_path: Path) -> None:
    """Retention by time falls back to it."""
    engine = opened(tmp_path)
    append(engine, batch(0, timestamp_ms=-1))
    assert engine.segment_max_timestamp(0) == (tmp_path / f"{0:020d}.log").stat().st_mtime_ns // 10**6


# ---- opening ---------------------------------------------------------------------------------------------


def test_a_clean_partition_is_opened_without_opening_a_file(tmp_path: Path) -> None:
    """Rule 3, D11: 5,000 partitions must not open 15,000 files."""
    filled(tmp_path, 45, config=SMALL).close()
    disk = FaultyDisk()
    engine = opened(tmp_path, SMALL, disk=disk)
    assert engine.start_offset == 0
    assert engine.size_bytes == 45_000
    assert (disk.open_files, disk.reads) == (0, [])
    assert engine.end_offset == engine.flushed_end_offset == 45
    assert disk.open_files == 1
    assert {Path(path).name[:20] for path, _, _ in disk.reads} == {f"{40:020d}"}


def test_a_partition_closed_and_opened_again_goes_on(tmp_path: Path) -> None:
    """The files are the same as without the stop."""
    engine = filled(tmp_path / "a", 25, config=SMALL)
    engine.close()
    engine = opened(tmp_path / "a", SMALL)
    for number in range(25, 50):
        append(engine, batch(number, timestamp_ms=NOW_MS + number, size=1000))
    engine.close()
    filled(tmp_path / "b", 50, config=SMALL).close()
    a, b = contents(tmp_path / "a"), contents(tmp_path / "b")
    # The stop left one time entry more, as Kafka's stop does.
    stopped_in = f"{20:020d}.timeindex"
    assert (len(a.pop(stopped_in)), len(b.pop(stopped_in))) == (48, 36)
    assert a == b


def test_closing_cuts_off_what_was_never_published(tmp_path: Path) -> None:
    """A late write of an abandoned reservation must not be found by the next start."""
    engine = filled(tmp_path, 5)
    engine._active.file.pwrite(b"x" * 500, 5000)
    engine.close()
    assert (tmp_path / f"{0:020d}.log").stat().st_size == 5000


def test_idle_partitions_hold_no_descriptor(tmp_path: Path) -> None:
    """close_idle lets go of what was not used since the last call; all works on."""
    disk = Disk()
    engine = filled(tmp_path, 25, config=SMALL, disk=disk)
    for offset in range(25):
        read(engine, offset)
    assert disk.open_files == 3
    engine.close_idle()
    assert disk.open_files == 1
    engine.close_idle()
    assert disk.open_files == 0
    append(engine, batch(25, size=1000))
    engine.close_idle()
    assert disk.open_files == 1
    assert read(engine, 25) == batch(25, size=1000)
    assert read(engine, 3, 1000) == batch(3, timestamp_ms=NOW_MS + 3, size=1000)


def test_indexes_without_log_and_files_half_deleted_go(tmp_path: Path) -> None:
    """layout.py rule 1; what is not ours stays."""
    filled(tmp_path, 15, config=SMALL).close()
    expected = contents(tmp_path)
    for name in (
        f"{77:020d}.index",
        f"{77:020d}.timeindex",
        f"{77:020d}.txnindex",
        f"{3:020d}.log.deleted",
        f"{3:020d}.index.deleted",
        f"{3:020d}.log.cleaned",
        f"{3:020d}.snapshot.deleted",
    ):
        (tmp_path / name).write_bytes(b"12345678")
    kept = ["leader-epoch-checkpoint", "partition.metadata", f"{15:020d}.snapshot", f"{9:020d}-0000000001.checkpoint"]
    for name in [*kept, f"{4:020d}-0000000001.checkpoint.deleted"]:
        (tmp_path / name).write_bytes(b"")
        expected[name] = b""
    engine = opened(tmp_path, SMALL)
    assert bases(engine) == [0, 10]
    engine.close()
    assert contents(tmp_path) == expected


def test_a_swap_that_was_begun_is_finished(tmp_path: Path) -> None:
    """layout.py rule 1: a compacted segment replaces those whose offsets it covers."""
    filled(tmp_path, 35, config=SMALL).close()
    swapped = batch(3, size=1000) + batch(19, size=1000)
    (tmp_path / f"{0:020d}.log.swap").write_bytes(swapped)
    for suffix in (".index", ".timeindex"):
        (tmp_path / f"{0:020d}{suffix}.swap").write_bytes(b"")
    engine = opened(tmp_path, SMALL)
    assert bases(engine) == [0, 20, 30]
    assert read(engine, 0) == swapped
    assert read(engine, 12) == swapped[1000:]
    assert not list(tmp_path.glob("*.swap"))


def test_a_swap_beside_a_cleaned_file_was_not_complete_and_goes(tmp_path: Path) -> None:
    """layout.py rule 1: a split that was interrupted."""
    filled(tmp_path, 35, config=SMALL).close()
    before = contents(tmp_path)
    for name in (f"{0:020d}.log.cleaned", f"{5:020d}.log.swap", f"{5:020d}.index.swap"):
        (tmp_path / name).write_bytes(batch(5, size=1000))
    opened(tmp_path, SMALL).close()
    assert contents(tmp_path) == before


# ---- recovery --------------------------------------------------------------------------------------------


def test_recovery_checks_from_the_segment_of_the_recovery_point_on(tmp_path: Path) -> None:
    """Contract: older segments are vouched for."""
    filled(tmp_path, 45, config=SMALL).close()
    before = contents(tmp_path)
    for point, first in ((0, 0), (9, 0), (10, 10), (37, 30), (45, 40)):
        engine, visited = recovered(tmp_path, point)
        assert visited == list(range(first, 45))
        assert (engine.end_offset, engine.flushed_end_offset) == (45, point)
        assert contents(tmp_path) == before
        engine.close()


def test_before_recovery_older_segments_can_be_read(tmp_path: Path) -> None:
    """Contract: the producers' state is taken up from there."""
    filled(tmp_path, 25, config=SMALL).close()
    engine = SegmentEngine(Disk(), str(tmp_path), SMALL)
    assert engine.open(13) == 10
    assert engine.bytes_to_recover(10) == 15_000
    assert bytes(engine.read_batches(8, 10**6))[:1000] == batch(8, timestamp_ms=NOW_MS + 8, size=1000)
    assert bytes(engine.read_batches(10, 10**6)) == b""


@pytest.mark.parametrize("kept", [1, 999, 1001, 4500, 9999])
def test_what_lies_behind_damage_is_dropped(tmp_path: Path, kept: int) -> None:
    """A segment torn in the middle of the log ends it, whatever follows."""
    filled(tmp_path, 45, config=SMALL).close()
    log = tmp_path / f"{20:020d}.log"
    log.write_bytes(log.read_bytes()[:kept])
    engine, visited = recovered(tmp_path, 12)
    end_offset = 20 + kept // 1000
    assert visited == list(range(10, end_offset))
    assert bases(engine) == [0, 10, 20]
    assert (engine.end_offset, engine.size_bytes) == (end_offset, 1000 * end_offset)
    append(engine, batch(end_offset, size=1000))
    assert read(engine, end_offset) == batch(end_offset, size=1000)
    engine.close()
    _, visited = recovered(tmp_path, 0)
    assert visited == list(range(end_offset + 1))


def test_the_flushed_end_is_never_behind_the_recovered_end(tmp_path: Path) -> None:
    """A checkpoint that says more than there is."""
    filled(tmp_path, 15, config=SMALL).close()
    engine, _ = recovered(tmp_path, 99)
    assert engine.flushed_end_offset == engine.end_offset == 15


def test_a_segment_without_index_is_recovered_also_after_a_clean_stop(tmp_path: Path) -> None:
    """As Kafka; nothing is flushed less for it."""
    filled(tmp_path, 35, config=SMALL).close()
    before = contents(tmp_path)
    (tmp_path / f"{10:020d}.timeindex").unlink()
    engine = SegmentEngine(Disk(), str(tmp_path), SMALL)
    assert engine.open(None) == 10
    engine.recover(10, lambda *_: None)
    assert engine.flushed_end_offset == 35
    engine.close()
    assert contents(tmp_path) == before


def test_recovery_goes_in_slices(tmp_path: Path) -> None:
    """So that it can run beside other work."""
    filled(tmp_path, 45, config=SMALL).close()
    engine = SegmentEngine(Disk(), str(tmp_path), SMALL)
    start = engine.open(0)
    assert start == 0
    assert list(engine.recovery(start, lambda *_: None)) == [10, 20, 30, 40, 45]


def test_every_crash_of_an_append_is_recovered(tmp_path: Path) -> None:
    """Whatever part of the last writes reached the disk: no byte position is special."""
    whole = b"".join(batch(i, 2, size=150) for i in range(0, 8, 2))
    for length in range(len(whole) + 1):
        directory = tmp_path / str(length)
        directory.mkdir()
        (directory / f"{0:020d}.log").write_bytes(whole[:length])
        engine, visited = recovered(directory, 0)
        assert visited == [2 * i for i in range(length // 150)]
        assert read(engine, 0) == whole[: length - length % 150]


# ---- aborted transactions --------------------------------------------------------------------------------


def test_aborted_transactions_are_found_across_segments(tmp_path: Path) -> None:
    """F10: each in the segment of its marker; the search ends where nothing can follow."""
    engine = filled(tmp_path, 35, config=SMALL)
    first = AbortedTransaction(1, 5, 12, 5)
    second = AbortedTransaction(2, 8, 31, 13)
    engine.add_aborted(first)
    engine.add_aborted(second)
    assert sorted(path.name for path in tmp_path.glob("*.txnindex")) == [f"{n:020d}.txnindex" for n in (10, 30)]
    assert engine.aborted(0, 6) == [first]
    assert engine.aborted(0, 35) == [first, second]
    assert engine.aborted(20, 25) == [second]
    assert engine.aborted(32, 35) == []
    engine.close()
    again = opened(tmp_path, SMALL)
    assert again.aborted(0, 35) == [first, second]
    again.truncate(31)
    assert again.aborted(0, 31) == [first]


def test_recovery_builds_the_transaction_index_anew(tmp_path: Path) -> None:
    """Of the range that is recovered; what is older stays."""
    engine = filled(tmp_path, 35, config=SMALL)
    old, new = AbortedTransaction(1, 5, 12, 5), AbortedTransaction(2, 8, 31, 13)
    engine.add_aborted(old)
    engine.add_aborted(new)
    engine.close()
    engine = SegmentEngine(Disk(), str(tmp_path), SMALL)
    start = engine.open(25)
    assert start is not None

    def visit(buffer: Buffer, position: int, header: BatchHeader) -> None:
        if header.base_offset == 31:
            assert engine.aborted(0, 31) == [old]
            engine.add_aborted(new)

    engine.recover(start, visit)
    assert engine.aborted(0, 35) == [old, new]


# ---- cutting ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 1, 9, 10, 11, 19, 20, 21, 24, 25])
def test_truncation_cuts_across_segments(tmp_path: Path, offset: int) -> None:
    """Later segments go, the one that holds the offset is active again; the flushed end follows."""
    engine = filled(tmp_path, 25, config=SMALL)
    engine.collect_sync().run()
    engine.mark_flushed(25)
    engine.truncate(offset)
    assert engine.end_offset == engine.flushed_end_offset == offset
    assert engine.size_bytes == 1000 * offset
    for number in range(offset, 30):
        append(engine, batch(number, timestamp_ms=NOW_MS + number, size=1000))
    for number in range(30):
        assert read(engine, number, 1000) == batch(number, timestamp_ms=NOW_MS + number, size=1000)
    engine.close()
    assert [segment.end_offset for segment in opened(tmp_path, SMALL).segments()][-1] == 30


def test_truncation_inside_a_batch_takes_all_of_it(tmp_path: Path) -> None:
    """The end is then the batch's base offset."""
    engine = filled(tmp_path, 5, records=4)
    engine.truncate(10)
    assert engine.end_offset == 8
    engine.truncate(8)
    assert engine.end_offset == 8


def test_reset_begins_anew_at_any_offset(tmp_path: Path) -> None:
    """A follower whose log ends before the leader's begins; or the leader's offset is one of ours."""
    for number, offset in enumerate((0, 5, 10, 100)):
        engine = filled(tmp_path / str(number), 25, config=SMALL)
        engine.reset(offset)
        assert (engine.start_offset, engine.end_offset, engine.size_bytes) == (offset, offset, 0)
        assert engine.flushed_end_offset <= offset
        append(engine, batch(offset, size=1000))
        assert read(engine, offset) == batch(offset, size=1000)
        engine.close()
        assert len(contents(tmp_path / str(number))) == 3


def test_trimming_dooms_whole_segments_before_the_offset(tmp_path: Path) -> None:
    """Never the active one; regions that are being sent live on."""
    engine = filled(tmp_path, 35, config=SMALL)
    located = engine.locate(3, 10**6, 35, min_one_batch=True)
    sent = bytes_of(located.regions)
    assert engine.trim(9) == []
    doomed = engine.trim(25)
    assert bases(engine) == [20, 30]
    assert engine.start_offset == 20
    assert sorted(Path(path).name for path in doomed) == sorted(
        f"{base:020d}{suffix}.deleted" for base in (0, 10) for suffix in (".log", ".index", ".timeindex")
    )
    for path in doomed:
        Path(path).unlink()
    assert bytes_of(located.regions) == sent
    assert len(engine.trim(10**9)) == 3
    assert bases(engine) == [30]


# ---- durability ------------------------------------------------------------------------------------------


def synced(disk: FaultyDisk) -> list[str]:
    names = [Path(path).name.lstrip("0") for path in disk.syncs]
    disk.syncs.clear()
    return names


def test_a_sync_covers_the_active_log_and_finished_segments_with_their_indexes(tmp_path: Path) -> None:
    """Rule 5: indexes of the active segment are built anew after a crash and need no sync."""
    disk = FaultyDisk()
    engine = filled(tmp_path, 5, config=SMALL, disk=disk)
    work = engine.collect_sync()
    assert work.end_offset == 5
    assert engine.flushed_end_offset == 0
    work.run()
    engine.mark_flushed(5)
    assert synced(disk) == [".log"]
    assert engine.flushed_end_offset == 5
    engine.collect_sync().run()
    engine.mark_flushed(5)
    assert synced(disk) == []
    for number in range(5, 25):
        append(engine, batch(number, size=1000))
    engine.collect_sync().run()
    names = synced(disk)
    assert set(names) == {".log", ".index", ".timeindex", "10.log", "10.index", "10.timeindex", "20.log"}
    engine.mark_flushed(25)
    engine.roll(NOW_MS)
    engine.collect_sync().run()
    assert set(synced(disk)) == {"20.log", "20.index", "20.timeindex"}


def test_new_names_are_synced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """disk.py rule 6: a file that is not in its directory is lost with all its bytes."""
    disk = FaultyDisk()
    asked: list[str] = []
    real = disk.open_directory

    def observed(path: str) -> File:
        asked.append(path)
        return real(path)

    monkeypatch.setattr(disk, "open_directory", observed)
    engine = filled(tmp_path, 5, config=SMALL, disk=disk)
    engine.collect_sync().run()
    append(engine, batch(5, size=1000))
    engine.collect_sync().run()
    assert asked == [str(tmp_path)]
    for number in range(6, 12):
        append(engine, batch(number, size=1000))
    engine.collect_sync().run()
    assert asked == [str(tmp_path)] * 2


def test_sync_work_does_not_mind_what_happens_meanwhile(tmp_path: Path) -> None:
    """Closed over open files: renamed, deleted, the directory gone."""
    engine = filled(tmp_path / "t", 25, config=SMALL)
    work = engine.collect_sync()
    for path in engine.trim(20):
        Path(path).unlink()
    (tmp_path / "t").rename(tmp_path / "t-delete")
    work.run()


def test_a_failed_sync_is_an_error_and_flushes_nothing(tmp_path: Path) -> None:
    """D12b."""
    disk = FaultyDisk()
    engine = filled(tmp_path, 5, disk=disk)
    disk.fail_syncs = errno.EIO
    with pytest.raises(StorageError):
        engine.collect_sync().run()
    assert engine.flushed_end_offset == 0


def test_a_sync_from_before_a_truncation_does_not_vouch_for_what_came_after(tmp_path: Path) -> None:
    """The offsets are the same, the bytes are not."""
    engine = filled(tmp_path, 5)
    work = engine.collect_sync()
    engine.truncate(2)
    for number in range(2, 8):
        append(engine, batch(number, size=1000))
    later = engine.collect_sync()
    work.run()
    engine.mark_flushed(work.end_offset)
    assert engine.flushed_end_offset == 2
    later.run()
    engine.mark_flushed(later.end_offset)
    assert engine.flushed_end_offset == 8


def test_deleting_writes_nothing(tmp_path: Path) -> None:
    """The directory is the caller's to remove."""
    disk = FaultyDisk()
    engine = filled(tmp_path, 100, disk=disk)
    disk.fail_writes = errno.ENOSPC
    engine.delete()
    assert disk.open_files == 0
