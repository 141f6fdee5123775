"""A wrong but ascending entry of an offset index hides no record."""

from __future__ import annotations

import random
from pathlib import Path
from struct import pack, unpack_from

import pytest

from storage.io.disk import Disk
from storage.io.disk_lookup import NotResident
from storage.segments.active_segment import ActiveSegment
from storage.segments.directory_recovery import OFFSET_INDEX
from storage.segments.sealed_segment import LogSegment, SealedSegment
from storage.segments.segments_view import SegmentsView
from tests.support.seeds import seed_of
from tests.support.segments import batch, infos

COUNT = 300
RECORDS = 3


def written(directory: Path) -> SealedSegment:
    """A segment as found by a start."""
    data = b"".join(batch(number * RECORDS, RECORDS, size=200) for number in range(COUNT))
    segment = ActiveSegment(Disk(), str(directory), 0, 500)
    segment.create(0)
    segment.write(data, segment.reserve(infos(data), len(data)))
    segment.publish(infos(data))
    segment.finish()
    return SealedSegment(Disk(), str(directory), 0, segment.size, segment.interval)


def damage(segment: LogSegment, slot: int, offset: int, position: int) -> bytes:
    """Overwrite an entry; returns the original index."""
    path = Path(segment.path(OFFSET_INDEX))
    whole = path.read_bytes()
    path.write_bytes(whole[: slot * 8] + pack(">II", offset, position) + whole[slot * 8 + 8 :])
    return whole


def entry(segment: LogSegment, slot: int) -> tuple[int, int]:
    offset, position = unpack_from(">II", Path(segment.path(OFFSET_INDEX)).read_bytes(), slot * 8)
    return offset, position


def find(segment: LogSegment, offset: int) -> tuple[int, int] | None:
    """The result of a thread; the segment adopts the opened files."""
    view = SegmentsView([segment], COUNT * RECORDS, ())
    found = view.find_in_segment(0, offset)
    for reader, files in view.opened.items():
        reader.adopt(files)
    return found


def check_all(segment: LogSegment) -> None:
    for offset in range(COUNT * RECORDS):
        try:
            found = segment.find(offset)
        except NotResident:
            found = find(segment, offset)
        assert found == (offset // RECORDS * 200, 200), offset
    assert segment.find(COUNT * RECORDS) is None


@pytest.mark.parametrize("way", ["too far", "inside a batch", "beyond the end", "too small an offset"])
def test_a_wrong_entry_causes_an_index_rebuild(tmp_path: Path, way: str, caplog: pytest.LogCaptureFixture) -> None:
    segment = written(tmp_path)
    offset, position = entry(segment, 20)
    wrong = {
        "too far": (offset, position + 400),
        "inside a batch": (offset, position + 70),
        "beyond the end": (offset, 1 << 30),
        "too small an offset": (offset - 2 * RECORDS, position),
    }[way]
    whole = damage(segment, 20, *wrong)
    check_all(segment)
    assert Path(segment.path(OFFSET_INDEX)).read_bytes() == whole
    assert caplog.text.count("Rebuilding ") == 1


def test_a_thread_rebuilds_the_index_for_a_caller_that_must_not_block(tmp_path: Path) -> None:
    segment = written(tmp_path)
    offset, position = entry(segment, 20)
    whole = damage(segment, 20, offset, position + 400)
    segment.adopt(segment.open_files())
    with pytest.raises(NotResident):
        segment.find(offset)
    assert find(segment, offset) == (offset // RECORDS * 200, 200)
    assert Path(segment.path(OFFSET_INDEX)).read_bytes() == whole
    assert segment.find(offset) == (offset // RECORDS * 200, 200)
    check_all(segment)


def test_the_index_of_the_active_segment_is_bypassed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = written(tmp_path)
    offset, position = entry(found, 20)
    damage(found, 20, offset, position + 400)
    segment = ActiveSegment(Disk(), str(tmp_path), 0, found.interval)
    segment.load(found.size)
    check_all(segment)
    more = batch(COUNT * RECORDS, RECORDS, size=200)
    segment.write(more, segment.reserve(infos(more), len(more)))
    segment.publish(infos(more))
    assert segment.find(COUNT * RECORDS) == (COUNT * 200, 200)
    assert "Searching " in caplog.text
    assert "Rebuilding " not in caplog.text


def test_random_index_bytes_hide_no_record(tmp_path: Path) -> None:
    seed = seed_of()
    print(f"seed {seed}")
    rng = random.Random(seed)
    segment = written(tmp_path)
    path = Path(segment.path(OFFSET_INDEX))
    whole = path.read_bytes()
    for _ in range(150):
        place = rng.randrange(len(whole))
        broken = whole[:place] + rng.randbytes(rng.choice((1, 2, 4, 20)))
        path.write_bytes((broken + whole[len(broken) :])[: len(whole)])
        segment = SealedSegment(Disk(), str(tmp_path), 0, segment.size, segment.interval)
        for offset in rng.sample(range(COUNT * RECORDS), 20):
            assert find(segment, offset) == (offset // RECORDS * 200, 200), (seed, place, offset)
