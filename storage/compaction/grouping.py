"""Groups neighbouring segments that are compacted into one.

RULES    1. A group's logs fit into `segment.bytes`, its indexes of each type into
            `segment.index.bytes`, and its offsets into relative ones of the first base offset.
         2. The sizes before the compaction count: it only shrinks segments.
         3. An empty segment joins any group.
NOT HERE Rewriting (cleaner.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from storage.engine import SegmentInfo
from storage.segments.segment import MAX_RELATIVE_OFFSET

IndexSizes = Callable[[SegmentInfo], tuple[int, int]]
"""Sizes of a segment's offset index and time index."""


def group_segments(
    segments: Sequence[SegmentInfo], max_bytes: int, max_index_bytes: int, index_sizes: IndexSizes
) -> list[list[SegmentInfo]]:
    """The segments in offset order, in groups that each become one segment."""
    found: list[list[SegmentInfo]] = []
    total = offsets = times = 0
    for segment in segments:
        more_offsets, more_times = index_sizes(segment)
        if (
            found
            and total + segment.size <= max_bytes
            and offsets + more_offsets <= max_index_bytes
            and times + more_times <= max_index_bytes
            and (not segment.size or segment.end_offset - 1 - found[-1][0].base_offset <= MAX_RELATIVE_OFFSET)
        ):
            found[-1].append(segment)
            total, offsets, times = total + segment.size, offsets + more_offsets, times + more_times
        else:
            found.append([segment])
            total, offsets, times = segment.size, more_offsets, more_times
    return found
