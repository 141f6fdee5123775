"""When the active segment is full: Kafka's conditions for a new one (Kafka: LogSegment.shouldRoll).

RULES    1. Batches need a new segment if they would exceed `segment_bytes`, if their timestamps are more than `max_segment_ms`
            (minus jitter) after those of the segment's first batch, if an index is full, or if a relative offset would
            overflow. A segment without timestamps counts from its first reservation.
         2. An empty segment is too small for no batch, and never too old: only an overflow needs another one.
NOT HERE Starting the segment (segment_engine.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from storage.config.log_config import LogConfig
from storage.engine import BatchInfo
from storage.segments.active_segment import ActiveSegment
from storage.segments.indexes import OffsetIndex, TimeIndex
from storage.segments.segment import MAX_RELATIVE_OFFSET


class RollLimits:
    """The limits of one segment: its size, its age, the entries of its indexes."""

    __slots__ = ("_age_ms", "_bytes", "_offset_entries", "_time_entries")

    def __init__(self, config: LogConfig, jitter: Callable[[int], int]) -> None:
        """`jitter` draws a number below its bound: by this the maximum age is lowered."""
        self._bytes = config.segment_bytes
        self._offset_entries = config.segment_index_bytes // OffsetIndex.ENTRY.size
        # The last entry is that of the segment's end.
        self._time_entries = config.segment_index_bytes // TimeIndex.ENTRY.size - 1
        bound_ms = min(config.segment_jitter_ms, config.segment_ms)
        self._age_ms = config.max_segment_ms - (jitter(bound_ms) if bound_ms else 0)

    def must_roll(self, segment: ActiveSegment, size: int, batches: Sequence[BatchInfo], wall_ms: int) -> bool:
        """Whether batches of `size` bytes need a new segment."""
        reserved, first_timestamp = segment.reserved, segment.first_timestamp
        if first_timestamp < 0:  # also if it is empty
            if segment.created_ms < 0:
                segment.created_ms = wall_ms
            waited_ms = wall_ms - segment.created_ms
        elif len(batches) == 1:
            waited_ms = batches[0].max_timestamp - first_timestamp
        else:
            waited_ms = max([batch.max_timestamp for batch in batches]) - first_timestamp
        overflows = batches[-1].last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
        if not reserved:
            return overflows and batches[0].base_offset > segment.base_offset
        return (
            overflows
            or waited_ms > self._age_ms
            or reserved + size > self._bytes
            or segment.offset_index.entries >= self._offset_entries
            or segment.time_index.entries >= self._time_entries
        )
