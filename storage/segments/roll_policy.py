"""When an append starts a new segment.

RULES    1. An append rolls the segment if it would exceed `segment_bytes`, if its timestamps are more than `segment_ms`
            (minus jitter) after the first batch's, if an index is full, or if a relative offset would overflow.
            The first batch of an empty segment never rolls by size.
NOT HERE Rolling (segment_engine.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from storage.config.log_config import LogConfig
from storage.engine import BatchInfo
from storage.segments.segment import MAX_RELATIVE_OFFSET, Segment


def draw_roll_ms(config: LogConfig, jitter: Callable[[int], int]) -> int:
    """The maximum age of the active segment; `jitter` draws a number below its bound."""
    bound_ms = min(config.segment_jitter_ms, config.segment_ms)
    return config.segment_ms - (jitter(bound_ms) if bound_ms else 0)


def must_roll(
    segment: Segment, size: int, batches: Sequence[BatchInfo], wall_ms: int, config: LogConfig, roll_ms: int
) -> bool:
    """Whether batches of `size` bytes need a new segment; `roll_ms` is the maximum age."""
    reserved = segment.reserved
    if segment.created_ms < 0:
        segment.created_ms = wall_ms
    if not reserved:
        return batches[-1][3] - segment.base_offset > MAX_RELATIVE_OFFSET and batches[0][2] > segment.base_offset
    if reserved + size > config.segment_bytes or batches[-1][3] - segment.base_offset > MAX_RELATIVE_OFFSET:
        return True
    first_timestamp = segment.first_timestamp
    if first_timestamp >= 0:
        waited_ms = (batches[0][4] if len(batches) == 1 else max([b[4] for b in batches])) - first_timestamp
    else:
        waited_ms = wall_ms - segment.created_ms
    return waited_ms > roll_ms or segment.has_full_index(config.segment_index_bytes)
