"""Grouping of segments by size."""

from __future__ import annotations

import pytest

from storage.compaction.cleaner import group_segments
from storage.engine import SegmentInfo

FAR = 2**31


@pytest.mark.parametrize(
    ("segments", "expected"),
    [
        ([], []),
        ([(0, 10, 100)], [[0]]),
        ([(0, 10, 40), (10, 20, 60), (20, 30, 1)], [[0, 10], [20]]),
        ([(0, 10, 400), (10, 20, 400)], [[0], [10]]),
        ([(0, 10, 0), (10, 20, 100), (20, 30, 0)], [[0, 10, 20]]),
        ([(0, 10, 1), (10, FAR, 1), (FAR, FAR + 1, 1)], [[0, 10], [FAR]]),
        ([(0, 10, 1), (10, FAR + 1, 1)], [[0], [10]]),
        ([(0, 10, 1), (10, FAR + 1, 0)], [[0, 10]]),
    ],
    ids=["none", "one", "full", "each full", "empty ones join", "offsets fit", "offsets too far", "an empty one may"],
)
def test_groups_are_limited_by_log_size_and_offset_range(
    segments: list[tuple[int, int, int]], expected: list[list[int]]
) -> None:
    found = group_segments([SegmentInfo(*segment) for segment in segments], 100, 1000, lambda _: (0, 0))
    assert [[segment.base_offset for segment in group] for group in found] == expected


@pytest.mark.parametrize("sizes", [(6, 1), (1, 6)], ids=["offset index", "time index"])
def test_groups_are_limited_by_index_size(sizes: tuple[int, int]) -> None:
    segments = [SegmentInfo(number, number + 1, 1) for number in range(4)]
    assert [len(group) for group in group_segments(segments, 100, 12, lambda _: sizes)] == [2, 2]
