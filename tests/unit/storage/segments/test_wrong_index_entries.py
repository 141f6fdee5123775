"""A wrong but ascending entry of an offset index hides no record."""

from __future__ import annotations

import random
from pathlib import Path
from struct import pack, unpack_from

import pytest

from storage.io.disk import Disk
from storage.io.disk_lookup import DiskLookup
from storage.segments.directory_recovery import LOG, OFFSET_INDEX
from storage.segments.segment import Segment
from tests.support.seeds import seed_of
from tests.support.segments import batch, infos

COUNT = 300
RECORDS = 3


def written(directory: Path) -> tuple[Segment, bytes]:
    """A finished segment as found by a start, and its bytes."""
    data = b"".join(batch(number * RECORDS, RECORDS, size=200) for number in range(COUNT))
    segment = Segment(Disk(), str(directory), 0, 0, 500)
    segment.create(0)
    segment.file.pwrite(data, segment.reserve(infos(data), len(data)))
    segment.publish(infos(data))
    segment.finish()
    segment.release(forget=True)
    return again(segment), data


def again(segment: Segment) -> Segment:
    directory, _, _ = segment.path(LOG).rpartition("/")
    return Segment(Disk(), directory, 0, segment.size, segment.interval)


def damage(segment: Segment, slot: int, offset: int, position: int) -> bytes:
    """Overwrite an entry; returns the original index."""
    path = Path(segment.path(OFFSET_INDEX))
    whole = path.read_bytes()
    path.write_bytes(whole[: slot * 8] + pack(">II", offset, position) + whole[slot * 8 + 8 :])
    return whole


def entry(segment: Segment, slot: int) -> tuple[int, int]:
    offset, position = unpack_from(">II", Path(segment.path(OFFSET_INDEX)).read_bytes(), slot * 8)
    return offset, position


def check_all(segment: Segment) -> None:
    for offset in range(COUNT * RECORDS):
        assert segment.find_on_disk(offset) == (offset // RECORDS * 200, 200), offset
    assert segment.find_on_disk(COUNT * RECORDS) is None


@pytest.mark.parametrize("way", ["too far", "inside a batch", "beyond the end", "too small an offset"])
def test_a_wrong_entry_causes_an_index_rebuild(tmp_path: Path, way: str, caplog: pytest.LogCaptureFixture) -> None:
    segment, _ = written(tmp_path)
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
    segment, _ = written(tmp_path)
    segment.open_and_find(-1)
    offset, position = entry(segment, 20)
    whole = damage(segment, 20, offset, position + 400)
    segment = again(segment)
    segment.open_and_find(-1)
    lookup = segment.find(offset)
    assert isinstance(lookup, DiskLookup)
    lookup.run()
    lookup.finish()
    assert segment.find(offset) == (offset // RECORDS * 200, 200)
    assert Path(segment.path(OFFSET_INDEX)).read_bytes() == whole
    check_all(segment)


def test_the_index_of_the_active_segment_is_bypassed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    segment, _ = written(tmp_path)
    offset, position = entry(segment, 20)
    damage(segment, 20, offset, position + 400)
    segment.load()
    check_all(segment)
    more = batch(COUNT * RECORDS, RECORDS, size=200)
    segment.file.pwrite(more, segment.reserve(infos(more), len(more)))
    segment.publish(infos(more))
    assert segment.find_on_disk(COUNT * RECORDS) == (COUNT * 200, 200)
    assert "Searching " in caplog.text


def test_random_index_bytes_hide_no_record(tmp_path: Path) -> None:
    seed = seed_of()
    print(f"seed {seed}")
    rng = random.Random(seed)
    segment, _ = written(tmp_path)
    path = Path(segment.path(OFFSET_INDEX))
    whole = path.read_bytes()
    for _ in range(150):
        place = rng.randrange(len(whole))
        broken = whole[:place] + rng.randbytes(rng.choice((1, 2, 4, 20)))
        path.write_bytes((broken + whole[len(broken) :])[: len(whole)])
        segment = again(segment)
        for offset in rng.sample(range(COUNT * RECORDS), 20):
            assert segment.find_on_disk(offset) == (offset // RECORDS * 200, 200), (seed, place, offset)
