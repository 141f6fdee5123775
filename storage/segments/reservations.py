"""A place for an append in a segment's log, from its being set aside to its publication (segment_engine.py)."""

from __future__ import annotations

from collections.abc import Sequence

from storage.engine import BatchInfo, Reservation
from storage.segments.segment import Segment


class SegmentReservation(Reservation):
    """A place in one segment's log."""

    __slots__ = ("is_abandoned", "position", "segment")

    def __init__(
        self, size: int, batches: Sequence[BatchInfo], segment: Segment, position: int, *, rolled: bool
    ) -> None:
        self.size = size
        self.batches = batches
        self.rolled = rolled
        self.segment = segment
        self.position = position
        self.is_abandoned = False
