"""The segments of one partition, in offset order (Kafka: LogSegments).

RULES    1. The last segment gets the appends; it is an `ActiveSegment` from its first use on.
         2. A segment is sealed when later ones have started, its batches are published and its files are written: a
            `SealedSegment` takes its place and its open files, the oldest first. So the sealed segments precede those with
            appends.
         3. With `register_files`, unused files may be closed between any two calls (storage/io/file_handle_cache.py).
NOT HERE When a segment starts, what is appended and read (segment_engine.py); the segments at one moment (segments_view.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

from storage.engine import SegmentInfo
from storage.io.deferred_file_ops import Submit
from storage.io.file_handle_cache import FileHandleCache, HandleRegistration
from storage.segments.active_segment import ActiveSegment
from storage.segments.sealed_segment import LogSegment, SealedSegment
from storage.segments.segment_files import SegmentFiles

_base_offset = attrgetter("base_offset")


class LogSegments:
    """The list of segments, their place in the file handle cache, and which of them have aborted transactions."""

    __slots__ = ("_handles", "items", "with_aborted")

    def __init__(self, open_files: FileHandleCache | None) -> None:
        self._handles = HandleRegistration(open_files)
        self.items: list[LogSegment] = []
        """By base offset; changed by the methods here, and shortened by the engine."""
        self.with_aborted: set[int] = set()
        """The base offsets of segments with a transaction index."""

    def slot_of(self, offset: int) -> int:
        """The slot of the segment that contains an offset, or of the first one."""
        return slot_of(self.items, offset)

    def containing(self, offset: int) -> LogSegment:
        """The segment that contains an offset, or the first one."""
        return self.items[slot_of(self.items, offset)]

    def starting_at(self, offset: int) -> list[LogSegment]:
        """The segments from the one that contains an offset on."""
        return self.items[slot_of(self.items, offset) :]

    def add(self, segment: LogSegment) -> None:
        """Append a segment to the list."""
        self.items.append(segment)
        segment.handles = self._handles

    def replace(self, slot: int, new: LogSegment, count: int = 1) -> None:
        """Put a segment in the place of `count` others, which are retired."""
        items = self.items
        old = items[slot : slot + count]
        items[slot : slot + count] = [new]
        new.handles = self._handles
        if new.is_open:
            self._handles.files_opened(new)
        for segment in old:
            segment.retire()

    def discard(self, segment: LogSegment) -> None:
        """Retire a segment that was taken out of the list."""
        self.with_aborted.discard(segment.base_offset)
        segment.retire()

    def seal(self, slot: int, size: int) -> SealedSegment:
        """Replace the object in a slot by a sealed segment of `size` bytes with the same files."""
        segment = self.items[slot]
        sealed = SealedSegment(segment.disk, segment.directory, segment.base_offset, size, segment.interval)
        self.replace(slot, sealed)
        return sealed

    def seal_written(self, submit: Submit) -> None:
        """Seal the segments that get no further appends, the oldest first."""
        for slot in range(first_active(self.items), len(self.items) - 1):
            segment = self.items[slot]
            assert isinstance(segment, ActiveSegment)
            segment.write_indexes(submit)
            if segment.has_pending_appends or not segment.is_written:
                break
            files = segment.files_to_seal()
            sealed = self.seal(slot, segment.size)
            if files is not None:
                sealed.adopt(files)

    def adopt_files(self, opened: Mapping[SealedSegment, SegmentFiles]) -> None:
        """Use the files that a thread has opened for a view."""
        for reader, files in opened.items():
            if files.size == reader.size:
                reader.adopt(files)
            elif not reader.is_retired:  # the rebuild found an invalid batch
                self.seal(self.slot_of(reader.base_offset), files.size).adopt(files)

    def register_files(self, close: Callable[[LogSegment], bool]) -> None:
        """Add the open files to the file handle cache, which calls `close` to close those of a segment."""
        self._handles.close = close
        for segment in self.items:
            if segment.is_open:
                self._handles.files_opened(segment)

    def unregister_files(self) -> None:
        """Remove all files from the file handle cache."""
        self._handles.close = None
        for segment in self.items:
            self._handles.files_closed(segment)

    def close_if_written(self, segment: LogSegment, submit: Submit) -> bool:
        """Close a segment's files if nothing is pending; returns whether they are closed."""
        if isinstance(segment, SealedSegment):
            segment.close_files()
        elif segment is self.items[-1]:
            segment.close_if_written(submit)
        else:
            self.seal_written(submit)
            if segment.is_retired:
                self.containing(segment.base_offset).close_files()
        return not segment.is_open


def first_active(segments: Sequence[LogSegment]) -> int:
    """The number of sealed segments; those with appends follow."""
    slot = len(segments)
    while slot and isinstance(segments[slot - 1], ActiveSegment):
        slot -= 1
    return slot


def slot_of(segments: Sequence[LogSegment], offset: int) -> int:
    """The slot of the segment that contains an offset, or of the first one."""
    return max(bisect_right(segments, offset, key=_base_offset) - 1, 0)


def segment_infos(segments: Sequence[LogSegment], end_offset: int, limit: int | None) -> list[SegmentInfo]:
    """The segments from the oldest to the active one, at most `limit`."""
    listed = segments[:limit]
    ends = [*[segment.base_offset for segment in segments[1 : len(listed) + 1]], end_offset]
    return [SegmentInfo(segment.base_offset, end, segment.size) for segment, end in zip(listed, ends, strict=False)]
