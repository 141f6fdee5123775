"""An entry of an offset index that ascends with the others and is wrong hides no record."""

from __future__ import annotations

import random
from pathlib import Path
from struct import pack, unpack_from

import pytest

from storage.io.disk import Disk
from storage.io.would_block import WouldBlock
from storage.segments.directory_recovery import LOG, OFFSET_INDEX
from storage.segments.segment import Segment
from tests.support.seeds import seed_of
from tests.support.segments import batch, infos

COUNT = 300
RECORDS = 3


def written(directory: Path) -> tuple[Segment, bytes]:
    """A finished segment, as a start finds it, and its bytes."""
    data = b"".join(batch(number * RECORDS, RECORDS, size=200) for number in range(COUNT))
    segment = Segment(Disk(), str(directory), 0, 0, 500)
    segment.create(0)
    segment.file.pwrite(data, segment.reserve(infos(data), len(data)))
    segment.publish(infos(data))
    segment.finish()
    segment.release(forget=True)
    return again(segment), data


def again(segment: Segment) -> Segment:
    """The same files, opened by somebody else."""
    directory, _, _ = segment.path(LOG).rpartition("/")
    return Segment(Disk(), directory, 0, segment.size, segment.interval)


def damage(segment: Segment, slot: int, offset: int, position: int) -> bytes:
    """Write another entry there; what the whole index was."""
    path = Path(segment.path(OFFSET_INDEX))
    whole = path.read_bytes()
    path.write_bytes(whole[: slot * 8] + pack(">II", offset, position) + whole[slot * 8 + 8 :])
    return whole


def entry(segment: Segment, slot: int) -> tuple[int, int]:
    """One as it stands in the file."""
    offset, position = unpack_from(">II", Path(segment.path(OFFSET_INDEX)).read_bytes(), slot * 8)
    return offset, position


def check_all(segment: Segment) -> None:
    """Every offset is found where it is."""
    for offset in range(COUNT * RECORDS):
        assert segment.find(offset) == (offset // RECORDS * 200, 200), offset
    assert segment.find(COUNT * RECORDS) is None


@pytest.mark.parametrize("way", ["too far", "inside a batch", "behind the end", "too small an offset"])
def test_a_wrong_entry_is_noticed_and_the_index_built_anew(
    tmp_path: Path, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """RULES 5 of segment.py: what holds the offset may lie before the batch that the entry names."""
    segment, _ = written(tmp_path)
    offset, position = entry(segment, 20)
    wrong = {
        "too far": (offset, position + 400),
        "inside a batch": (offset, position + 70),
        "behind the end": (offset, 1 << 30),
        "too small an offset": (offset - 2 * RECORDS, position),
    }[way]
    whole = damage(segment, 20, *wrong)
    check_all(segment)
    assert Path(segment.path(OFFSET_INDEX)).read_bytes() == whole
    assert caplog.text.count("Rebuilding ") == 1


def test_the_loop_has_it_built_anew_by_a_thread(tmp_path: Path) -> None:
    """What a look-up in a copy has built anew is taken over."""
    segment, _ = written(tmp_path)
    segment.open_and_find(-1)
    offset, position = entry(segment, 20)
    whole = damage(segment, 20, offset, position + 400)
    segment = again(segment)
    segment.open_and_find(-1)
    with pytest.raises(WouldBlock) as blocked:
        segment.find(offset, may_block=False)
    blocked.value.run()
    blocked.value.finish()
    assert segment.find(offset, may_block=False) == (offset // RECORDS * 200, 200)
    assert Path(segment.path(OFFSET_INDEX)).read_bytes() == whole
    check_all(segment)


def test_the_index_of_a_segment_that_is_appended_to_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Building it anew would touch what is being written: the next start does, or the first look-up after it was rolled."""
    segment, _ = written(tmp_path)
    offset, position = entry(segment, 20)
    damage(segment, 20, offset, position + 400)
    segment.load()
    check_all(segment)
    more = batch(COUNT * RECORDS, RECORDS, size=200)
    segment.file.pwrite(more, segment.reserve(infos(more), len(more)))
    segment.publish(infos(more))
    assert segment.find(COUNT * RECORDS) == (COUNT * 200, 200)
    assert "Searching " in caplog.text


def test_no_wrong_bytes_in_an_index_hide_a_record(tmp_path: Path) -> None:
    """Random bytes at random places: a record is found, or the log itself is what is damaged."""
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
            assert segment.find(offset) == (offset // RECORDS * 200, 200), (seed, place, offset)
