"""The published batches of a log at one moment, for blocking reads in any thread.

RULES    1. Sealed segments are shared with the engine; of a segment with appends there is an `ActiveView`.
         2. `opened` has the files that were opened; the engine adopts them on its thread.
NOT HERE Reads that must not wait (segment_engine.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import cast

from protocol.primitives import Buffer
from protocol.records import NO_TIMESTAMP
from storage.engine import AbortedTransaction, SegmentInfo
from storage.io.disk_lookup import read_waiting
from storage.segments.active_segment import ActiveSegment
from storage.segments.indexes import CorruptIndex, TransactionIndex
from storage.segments.log_segments import first_active, segment_infos, slot_of
from storage.segments.sealed_segment import ActiveView, LogSegment, SealedSegment
from storage.segments.segment_files import BatchPosition, SegmentFiles, whole_batches


class SegmentsView:
    """The segments of a log at one moment; `EngineView` describes the methods."""

    __slots__ = ("_segments", "_with_aborted", "end_offset", "opened")

    def __init__(self, segments: Sequence[LogSegment], end_offset: int, with_aborted: Collection[int]) -> None:
        """`with_aborted`: the base offsets of segments with aborted transactions."""
        first = first_active(segments)
        views: list[ActiveView] = [
            ActiveView(segment) for segment in segments[first:] if isinstance(segment, ActiveSegment)
        ]
        self._segments: tuple[SealedSegment, ...] = (*cast("Sequence[SealedSegment]", segments[:first]), *views)
        self._with_aborted = frozenset(with_aborted)
        self.end_offset = end_offset
        self.opened: dict[SealedSegment, SegmentFiles] = {}

    @property
    def start_offset(self) -> int:
        return self._segments[0].base_offset

    def segments(self, limit: int | None = None) -> list[SegmentInfo]:
        return segment_infos(self._segments, self.end_offset, limit)

    def open_active(self) -> None:
        """Open the files of the active segment."""
        self._open(self._segments[-1])

    def find_in_segment(self, base_offset: int, offset: int) -> BatchPosition:
        """Position and size of the first batch of a segment whose last offset is at or above `offset`."""
        return self._find(self._segments[slot_of(self._segments, base_offset)], offset)

    def read_batches(self, offset: int, max_bytes: int) -> Buffer:
        segments = self._segments
        for segment in segments[slot_of(segments, offset) :] if offset < self.end_offset else ():
            found = self._find(segment, offset) if segment.base_offset < self.end_offset else None
            if found is not None:
                position, size = found
                files = self._open(segment)
                return whole_batches(files.log.pread(min(max(max_bytes, size), files.size - position), position))
        return b""

    def find_timestamp(self, target_ms: int, offset: int) -> int | None:
        segments = self._segments
        for segment in segments[slot_of(segments, offset) :] if offset < self.end_offset else ():
            greatest, _ = segment.max_timestamp
            if greatest >= target_ms:
                found = self._open(segment).find_timestamp(target_ms, offset)
                if found is not None:
                    return found
        return None

    def max_timestamp(self) -> tuple[int, int] | None:
        return max(
            [segment.max_timestamp for segment in self._segments if segment.size], key=itemgetter(0), default=None
        )

    def segment_max_timestamp(self, base_offset: int) -> int:
        segment = self._segments[slot_of(self._segments, base_offset)]
        greatest, _ = segment.max_timestamp
        return greatest if greatest != NO_TIMESTAMP else segment.modified_ms()

    def aborted(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        segments = self._segments[slot_of(self._segments, start_offset) :]
        return find_aborted(self._transaction_indexes(segments), start_offset, end_offset)

    def _transaction_indexes(self, segments: Sequence[SealedSegment]) -> Iterator[TransactionIndex]:
        """Opens the files of a segment when its index is needed."""
        for segment in segments:
            if segment.base_offset in self._with_aborted:
                yield self._open(segment).transactions

    def _open(self, segment: SealedSegment) -> SegmentFiles:
        files = self.opened.get(segment) or segment.files
        if files is None:
            files = self.opened[segment] = segment.open_files()
        return files

    def _find(self, segment: SealedSegment, offset: int) -> BatchPosition:
        if not segment.size:
            return None
        try:
            return self._open(segment).find(offset, read_waiting)
        except CorruptIndex as error:
            files = self.opened[segment] = segment.rebuild(str(error))
            return files.find(offset, read_waiting)


def find_aborted(indexes: Iterable[TransactionIndex], start_offset: int, end_offset: int) -> list[AbortedTransaction]:
    """The aborted transactions with records in the range; reads no more indexes than needed."""
    found: list[AbortedTransaction] = []
    for index in indexes:
        more, is_complete = index.overlapping(start_offset, end_offset)
        found += more
        if is_complete:
            break
    return found
