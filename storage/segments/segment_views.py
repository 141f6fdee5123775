"""Read-only copies of a log's segments for another thread, created on demand: a lookup uses few of thousands.

RULES    1. A segment with indexes in memory (written or in use) is copied at once: the disk may lack its entries.
         2. Any other segment does not change on disk. It is copied at its first use, and the copy opens its own files.
NOT HERE The state that a copy shares, and what the original adopts from it (segment.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import SupportsIndex, overload

from storage.segments.segment import Segment


class SegmentViews(list[Segment]):
    """A list of segments whose items are copies."""

    def __init__(self, originals: Sequence[Segment]) -> None:
        super().__init__(originals)
        self.views = {segment.base_offset: segment.copy() for segment in originals if segment.has_indexes}
        """The copies created so far, by base offset."""

    @overload
    def __getitem__(self, index: SupportsIndex) -> Segment: ...
    @overload
    def __getitem__(self, index: slice) -> list[Segment]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Segment | list[Segment]:
        """A copy, or several."""
        found = super().__getitem__(index)
        return [self._view(segment) for segment in found] if isinstance(found, list) else self._view(found)

    def __iter__(self) -> Iterator[Segment]:
        """All copies."""
        return map(self._view, super().__iter__())

    def _view(self, segment: Segment) -> Segment:
        view = self.views.get(segment.base_offset)
        if view is None:
            view = self.views[segment.base_offset] = segment.reopened_copy()
        return view
