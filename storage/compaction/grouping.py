"""Which neighbouring segments are compacted into one.

RULES    1. As many as fit: their logs together within `segment.bytes`, each kind of index within
            `segment.index.bytes`, all offsets within what an index can tell from the first base offset.
         2. What a segment held before it is compacted counts: nobody knows yet what will be left, and it only shrinks.
         3. A segment that is empty already joins any group.
NOT HERE Writing them anew (cleaner.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from storage.engine import SegmentInfo
from storage.segments.segment import MAX_RELATIVE_OFFSET

IndexSizes = Callable[[SegmentInfo], tuple[int, int]]
"""Bytes of a segment's offset index and of its time index."""


def groups(
    segments: Sequence[SegmentInfo], max_bytes: int, max_index_bytes: int, index_sizes: IndexSizes
) -> list[list[SegmentInfo]]:
    """The segments, in their order, in groups of which each becomes one segment."""
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
