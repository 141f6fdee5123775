"""One log file and its indexes (storage/segments/active_segment.py, sealed_segment.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import Buffer
from protocol.records import BATCH_OVERHEAD, HEADER, BatchHeader, headers, parse_header
from storage.io.deferred_file_ops import run_now
from storage.io.disk import Disk, File
from storage.io.disk_lookup import NotResident, read_waiting
from storage.segments.active_segment import ActiveSegment
from storage.segments.directory_recovery import LOG, OFFSET_INDEX, TIME_INDEX
from storage.segments.sealed_segment import ActiveView, LogSegment, SealedSegment
from storage.segments.segment_files import BatchPosition
from storage.segments.segments_view import SegmentsView
from tests.support.batches import with_fields
from tests.support.faulty_disk import FaultyDisk
from tests.support.segments import NOW_MS, batch, contents, infos

BASE = 7000


def new_segment(directory: Path, data: bytes = b"", *, disk: Disk | None = None, interval: int = 4096) -> ActiveSegment:
    """A segment at offset BASE with `data`, each batch published alone."""
    directory.mkdir(exist_ok=True)
    segment = ActiveSegment(disk or Disk(), str(directory), BASE, interval)
    segment.create(NOW_MS)
    for info in infos(data):
        append(segment, data[info.position : info.position + info.size])
    return segment


def append(segment: ActiveSegment, data: bytes) -> None:
    """Reserve, write and publish at once."""
    segment.write(data, segment.reserve(infos(data), len(data)))
    segment.publish(infos(data))


def sealed(segment: LogSegment, *, disk: Disk | None = None) -> SealedSegment:
    """The segment as found on disk."""
    size = Path(segment.path(LOG)).stat().st_size
    return SealedSegment(disk or Disk(), segment.directory, BASE, size, segment.interval)


def loaded(segment: LogSegment, *, disk: Disk | None = None) -> ActiveSegment:
    """The segment loaded for appends after a restart."""
    again = ActiveSegment(disk or Disk(), segment.directory, BASE, segment.interval)
    again.load(Path(segment.path(LOG)).stat().st_size)
    return again


def found(segment: LogSegment, offset: int) -> BatchPosition:
    """The result of a thread; the segment adopts the opened files."""
    view = SegmentsView([segment], BASE + 2**31, ())
    position = view.find_in_segment(BASE, offset)
    for reader, files in view.opened.items():
        reader.adopt(files)
    return position


def batches(count: int, *, records: int = 1, size: int = 1000) -> bytes:
    """Consecutive batches from BASE on, a millisecond apart."""
    return b"".join(batch(BASE + records * i, records, timestamp_ms=NOW_MS + i, size=size) for i in range(count))


def expected(data: bytes, offset: int) -> tuple[int, int] | None:
    """The result of `find` by a scan of all batches."""
    for position, header in headers(data):
        if header.last_offset >= offset:
            return position, header.size
    return None


def state(segment: ActiveSegment) -> tuple[object, ...]:
    """The state that an append needs."""
    return (
        segment.size,
        segment.end_offset,
        segment.max_timestamp,
        segment.first_timestamp,
        segment._unindexed,
        segment.offset_index.entries,
        segment.time_index.last,
    )


def torn(segment: LogSegment, *, disk: Disk | None = None) -> ActiveSegment:
    """The segment after a crash, for a recovery."""
    return ActiveSegment(disk or Disk(), segment.directory, BASE, segment.interval)


def recover(segment: ActiveSegment) -> list[tuple[BatchHeader, bytes]]:
    """Run the recovery; returns every batch visited."""
    seen = []

    def visit(buffer: Buffer, position: int, header: BatchHeader) -> None:
        seen.append((header, bytes(buffer[position : position + header.size])))

    segment.recover(visit)
    return seen


# ---- indexes while appending -----------------------------------------------------------------------------


def test_a_batch_more_than_an_interval_after_the_last_entry_is_indexed(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, batches(12), interval=3000)
    segment.finish()
    entries = [segment.offset_index.entry(slot) for slot in range(segment.offset_index.entries)]
    assert entries == [(4, 4000), (8, 8000)]
    times = [segment.time_index.entry(slot) for slot in range(segment.time_index.entries)]
    assert times == [(NOW_MS + 4, 4), (NOW_MS + 8, 8), (NOW_MS + 11, 11)]


def test_the_time_index_has_the_greatest_timestamp_so_far(tmp_path: Path) -> None:
    times = [5, 9, 3, 9, 4, 8, 2, 12, 1]
    data = b"".join(batch(BASE + i, timestamp_ms=NOW_MS + time, size=1000) for i, time in enumerate(times))
    segment = new_segment(tmp_path, data, interval=1500)
    segment.finish()
    entries = [segment.time_index.entry(slot) for slot in range(segment.time_index.entries)]
    assert entries == [(NOW_MS + 9, 1), (NOW_MS + 12, 7)]
    assert segment.max_timestamp == (NOW_MS + 12, BASE + 7)


def test_the_offset_index_has_last_offsets(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, batches(9, records=10), interval=4096)
    assert segment.offset_index.last == (BASE + 59, 5000)


def test_each_batch_of_an_append_is_indexed(tmp_path: Path) -> None:
    data = batches(20)
    one_by_one = new_segment(tmp_path / "a", data, interval=2000)
    together = new_segment(tmp_path / "b", interval=2000)
    append(together, data)
    assert together.offset_index.entries == 6
    assert state(together) == state(one_by_one)
    one_by_one.finish()
    together.finish()
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.parametrize("count", [0, 1, 4, 5, 6, 70, 200])
def test_a_reopened_segment_continues_as_if_never_closed(tmp_path: Path, count: int) -> None:
    segment = new_segment(tmp_path, batches(count))
    segment.finish()
    before = state(segment)
    assert state(loaded(segment)) == before


def test_index_files_are_written_in_groups_of_entries(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, batches(130), interval=1)
    sizes = {suffix: Path(segment.path(suffix)).stat().st_size for suffix in (OFFSET_INDEX, TIME_INDEX)}
    assert sizes == {OFFSET_INDEX: 8 * 128, TIME_INDEX: 12 * 128}


# ---- look-ups --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("size", [100, 900, 5000])
def test_find_agrees_with_a_scan_for_every_offset(tmp_path: Path, size: int, *, again: bool) -> None:
    data = b"".join(batch(BASE + 5 * i, 3, size=size + i % 7) for i in range(200))  # gaps, as compaction leaves them
    segment = new_segment(tmp_path, data)
    segment.finish()
    for offset in range(BASE - 1, BASE + 1001):
        wanted = expected(data, offset)
        assert found(sealed(segment) if again else segment, offset) == wanted, offset
        assert segment.find(offset) == wanted, offset


def test_find_among_recent_batches_reads_nothing(tmp_path: Path) -> None:
    disk = FaultyDisk()
    segment = new_segment(tmp_path, batches(500), disk=disk)
    disk.reset_counters()
    for offset in range(BASE + 500 - 64, BASE + 501):
        segment.find(offset)
    assert disk.reads == []


def test_find_after_a_load_reads_nothing_above_the_last_entry(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, batches(500))
    segment.finish()
    disk = FaultyDisk()
    again = loaded(segment, disk=disk)
    disk.reset_counters()
    last_indexed = again.offset_index.last[0]
    assert [again.find(offset) for offset in range(last_indexed, BASE + 501)][-1] is None
    assert disk.reads == []


@pytest.mark.parametrize("size", [100, 1000, 4000, 20_000])
def test_find_reads_batch_headers_of_one_interval_and_no_more(tmp_path: Path, size: int) -> None:
    disk = FaultyDisk()
    segment = new_segment(tmp_path, batches(300, size=size), disk=disk)
    log = segment.path(LOG)
    for offset in range(BASE, BASE + 230, 3):
        found(segment, BASE)  # opens what was not open
        disk.reset_counters()
        assert found(segment, offset) == (size * (offset - BASE), size)
        assert sum(length for path, _, length in disk.reads if path == log) <= 4096 + BATCH_OVERHEAD
        assert {path for path, _, _ in disk.reads} <= {log}


def test_find_scans_with_large_reads_when_the_index_is_short(tmp_path: Path) -> None:
    disk = FaultyDisk()
    segment = new_segment(tmp_path, batches(2000, size=100), disk=disk, interval=10**9)
    disk.reset_counters()
    assert found(segment, BASE + 1900) == (190_000, 100)
    assert len(disk.reads) <= 6


def test_find_raises_for_a_corrupt_log(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, batches(200))
    segment.file.pwrite(b"\0\0\0\1", 1000 + 8)
    with pytest.raises(KafkaError, match="damaged at position 1000") as caught:
        found(segment, BASE + 3)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


def test_the_first_timestamp_is_that_of_the_first_batch(tmp_path: Path) -> None:
    data = batch(BASE, timestamp_ms=NOW_MS + 5) + batch(BASE + 1, timestamp_ms=NOW_MS)
    segment = new_segment(tmp_path, data)
    assert segment.first_timestamp == NOW_MS + 5
    segment.finish()
    assert loaded(segment).first_timestamp == NOW_MS + 5
    assert new_segment(tmp_path).first_timestamp == -1


# ---- truncation ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True])
def test_truncation_keeps_everything_below_the_offset(tmp_path: Path, *, again: bool) -> None:
    data = b"".join(batch(BASE + 4 * i, 3, timestamp_ms=NOW_MS + i, size=700) for i in range(60))  # gaps of one
    for offset in range(BASE, BASE + 242, 5):
        directory = tmp_path / str(offset)
        segment = new_segment(directory, data, interval=1000)
        if again:
            segment.finish()
            segment = loaded(segment)
        segment.truncate(offset)
        kept = [(position, header) for position, header in headers(data) if header.last_offset < offset]
        cut = [header.base_offset for _, header in headers(data) if header.last_offset >= offset]
        assert segment.size == segment.reserved == Path(segment.path(LOG)).stat().st_size == 700 * len(kept)
        assert segment.end_offset == min([offset, *cut])
        fresh = new_segment(directory / "fresh", data[: segment.size], interval=1000)
        assert state(segment)[2:-1] == state(fresh)[2:-1]
        for probe in range(BASE, offset + 3, 7):
            assert found(segment, probe) == found(fresh, probe)


def test_a_truncated_segment_can_be_appended_to_and_reopened(tmp_path: Path) -> None:
    data = batches(40)
    segment = new_segment(tmp_path / "a", data)
    segment.truncate(BASE + 20)
    for info in infos(data)[20:]:
        append(segment, data[info.position : info.position + info.size])
    whole = new_segment(tmp_path / "b", data)
    segment.finish()
    whole.finish()
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


# ---- recovery --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [100, 1000, 30_000])
def test_recovery_rebuilds_identical_indexes(tmp_path: Path, size: int) -> None:
    data = batches(150, records=2, size=size)
    segment = new_segment(tmp_path, data)
    segment.finish()
    before = contents(tmp_path)
    seen = recover(segment)
    assert b"".join(found for _, found in seen) == data
    assert [header for header, _ in seen] == [header for _, header in headers(data)]
    assert contents(tmp_path) == before
    recover(segment)
    assert contents(tmp_path) == before


def test_recovery_does_not_rewrite_correct_indexes(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, batches(400), interval=900)
    segment.finish()
    before = contents(tmp_path)
    disk = FaultyDisk()
    recover(torn(segment, disk=disk))
    assert disk.writes == []
    for suffix, extra in ((OFFSET_INDEX, b"\1" * 16), (TIME_INDEX, b"\1" * 24)):
        path = Path(segment.path(suffix))
        for damaged in (b"", before[path.name][:-12], before[path.name] + extra, b"\1" * 8 + before[path.name][8:]):
            path.write_bytes(damaged)
            recover(torn(segment))
            assert contents(tmp_path) == before


def test_a_torn_log_is_truncated_after_its_last_whole_batch(tmp_path: Path) -> None:
    data = batches(3, records=2, size=90)
    for length in range(len(data) + 1):
        segment = new_segment(tmp_path, data, interval=100)
        segment.finish()
        Path(segment.path(LOG)).write_bytes(data[:length])
        again = torn(segment)
        assert len(recover(again)) == length // 90
        assert again.size == Path(again.path(LOG)).stat().st_size == length // 90 * 90
        assert again.end_offset == BASE + 2 * (length // 90)
        whole = new_segment(tmp_path / f"whole{length}", data[: again.size], interval=100)
        whole.finish()
        assert contents(tmp_path / f"whole{length}") == contents(tmp_path)


def with_wrong_byte(position: int) -> bytes:
    data = bytearray(batches(3, size=1000))
    data[2000 + position] ^= 0x40
    return bytes(data[2000:] + data[:1000])


INVALID_BATCHES = {
    **{f"a wrong byte at {position}": with_wrong_byte(position) for position in (0, 8, 11, 16, 17, 21, 26, 60, 61, 99)},
    "zeros": bytes(5000),
    "ones": b"\xff" * 5000,
    "a large length": bytes(8) + b"\x7f\xff\xff\xff" + bytes(60),
    "a descending offset": batch(BASE + 1, size=500),
    "a last offset before the first": bytes(with_fields(batch(BASE + 2, size=500), last_offset_delta=-1)),
    "an offset too far from the base": batch(BASE + 2**31),
}


@pytest.mark.parametrize("tail", INVALID_BATCHES.values(), ids=INVALID_BATCHES)
def test_an_invalid_batch_ends_the_log(tmp_path: Path, tail: bytes) -> None:
    data = batches(2)
    segment = new_segment(tmp_path)
    segment.file.pwrite(data + tail, 0)
    again = torn(segment)
    assert len(recover(again)) == 2
    assert again.size == len(data)
    assert Path(again.path(LOG)).read_bytes() == data


def test_recovery_reads_a_batch_larger_than_its_buffer(tmp_path: Path) -> None:
    data = batches(2, size=400_000) + batch(BASE + 2, size=3_000_000) + batch(BASE + 3, size=700_000)
    segment = new_segment(tmp_path)
    segment.file.pwrite(data, 0)
    again = torn(segment)
    again.recover(None)
    assert again.size == 4_500_000


def test_a_repeated_recovery_gives_the_same_result(tmp_path: Path) -> None:
    data = batches(30, size=100_000)
    segment = new_segment(tmp_path, data)
    segment.finish()
    before = contents(tmp_path)

    def stop(_: Buffer, __: int, header: BatchHeader) -> None:
        if header.base_offset > BASE + 15:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        torn(segment).recover(stop)
    recover(torn(segment))
    assert contents(tmp_path) == before


def test_a_short_index_is_extended_not_rewritten(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, batches(50))
    segment.finish()
    good = contents(tmp_path)
    for suffix, size in ((OFFSET_INDEX, 27), (TIME_INDEX, 24)):
        Path(segment.path(suffix)).write_bytes(Path(segment.path(suffix)).read_bytes()[:size])
    disk = FaultyDisk()
    recover(torn(segment, disk=disk))
    assert contents(tmp_path) == good
    assert sorted((Path(path).suffix, position) for path, position, _ in disk.writes) == [
        (".index", 27),
        (".timeindex", 24),
    ]


@pytest.mark.parametrize("surplus", [0, 24])
def test_a_wrong_index_is_overwritten_and_only_its_surplus_is_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, surplus: int
) -> None:
    segment = new_segment(tmp_path, batches(50))
    segment.finish()
    good = contents(tmp_path)
    path = Path(segment.path(TIME_INDEX))
    size = path.stat().st_size
    path.write_bytes(b"\1" * (size + surplus))
    truncated, truncate = [], File.truncate

    def recording(file: File, size: int) -> None:
        truncated.append((file.path, size))
        truncate(file, size)

    monkeypatch.setattr(File, "truncate", recording)
    recover(torn(segment))
    assert contents(tmp_path) == good
    assert truncated == ([(str(path), size)] if surplus else [])


# ---- indexes that do not fit -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        *((suffix, damage) for suffix in (OFFSET_INDEX, TIME_INDEX) for damage in (b"torn", bytes(24), b"\xff" * 24)),
        (OFFSET_INDEX, b"\0\0\0\1\0\xff\xff\xff"),
    ],
)
def test_inconsistent_indexes_are_rebuilt_at_their_first_use(tmp_path: Path, suffix: str, damage: bytes) -> None:
    segment = new_segment(tmp_path, batches(50))
    segment.finish()
    good = contents(tmp_path)
    Path(segment.path(suffix)).write_bytes(damage)
    assert found(sealed(segment), BASE + 7) == (7000, 1000)
    assert contents(tmp_path) == good


@pytest.mark.parametrize("fields", [{"last_offset_delta": -3}, {"base_offset": 3}, {"last_offset_delta": 2**31 - 1}])
def test_invalid_offsets_are_found_by_load(fields: dict[str, int], tmp_path: Path) -> None:
    segment = new_segment(tmp_path, batches(5))
    segment.finish()
    content = bytearray(Path(segment.path(LOG)).read_bytes())
    HEADER.pack_into(content, 4000, *parse_header(content, 4000)._replace(**fields))
    Path(segment.path(LOG)).write_bytes(content)
    again = loaded(segment)
    assert (again.size, again.end_offset) == (4000, BASE + 4)


def test_a_torn_log_is_found_by_load(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, batches(50))
    segment.finish()
    with Path(segment.path(LOG)).open("ab") as log:
        log.write(batches(1)[:777])
    again = loaded(segment)
    assert (again.size, again.end_offset) == (50_000, BASE + 50)
    assert Path(segment.path(LOG)).stat().st_size == 50_000


# ---- letting go ------------------------------------------------------------------------------------------


def test_a_closed_active_segment_has_no_descriptor_and_still_works(tmp_path: Path) -> None:
    disk = Disk()
    segment = new_segment(tmp_path, batches(2000, size=100), disk=disk, interval=90)
    assert found(segment, BASE) == (0, 100)
    held = segment.file
    segment.close_if_written(run_now)
    assert disk.open_files == 1  # the one that we hold
    assert held.pread(100, 0) == batches(1, size=100)
    del held
    assert disk.open_files == 0
    with pytest.raises(NotResident):
        segment.find(BASE + 1999)
    assert found(segment, BASE + 1999) == segment.find(BASE + 1999) == (199_900, 100)
    segment.close_files()
    append(segment, batch(BASE + 2000, size=100))
    assert segment.find(BASE + 2000) == (200_000, 100)
    assert found(segment, BASE + 3) == (300, 100)
    assert segment.find(BASE + 3) == (300, 100)


def test_a_sealed_segment_uses_the_files_that_a_thread_opened_until_they_are_closed(tmp_path: Path) -> None:
    disk = Disk()
    new_segment(tmp_path, batches(2000, size=100), interval=90).finish()
    segment = SealedSegment(disk, str(tmp_path), BASE, 200_000, 90)
    with pytest.raises(NotResident):
        segment.find(BASE)
    assert found(segment, BASE + 3) == segment.find(BASE + 3) == (300, 100)
    files = segment.files
    assert files is not None
    segment.adopt(segment.open_files())
    assert segment.files is files, "the first ones stay"
    segment.close_files()
    assert files.find(BASE + 3, read_waiting) == (300, 100)
    assert files.find_timestamp(NOW_MS + 3, BASE) == BASE + 3
    del files
    assert disk.open_files == 0


def test_a_view_of_an_active_segment_does_not_change(tmp_path: Path) -> None:
    data = batches(3000, size=100)
    segment = new_segment(tmp_path, data[:150_000], interval=90)
    view = ActiveView(segment)
    for info in infos(data)[1500:]:
        append(segment, data[info.position : info.position + info.size])
    files = view.open_files()
    assert [files.find(BASE + number, read_waiting) for number in (0, 1499, 1500)] == [(0, 100), (149_900, 100), None]
    assert (view.max_timestamp, files.find_timestamp(NOW_MS + 1500, BASE)) == ((NOW_MS + 1499, BASE + 1499), None)


def test_files_renamed_for_deletion_are_still_readable(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, batches(50))
    segment.finish()
    file = segment.file
    names = set(contents(tmp_path))
    deleted_files: list[str] = []
    segment.mark_deleted(deleted_files)
    assert set(contents(tmp_path)) == {f"{name}.deleted" for name in names}
    assert sorted(deleted_files) == sorted(f"{tmp_path}/{name}.deleted" for name in names)
    for path in deleted_files:
        Path(path).unlink()
    assert file.pread(1000, 0) == batches(1)
