"""The segments of a log as a thread may look at them while the log goes on; there may be thousands, and it looks at few.

RULES    1. A segment that has indexes in memory is copied at once: what it holds may not be on the disk yet. That are those
            that are written to, and those in use.
         2. Any other is on the disk as it stays. It is copied when somebody looks at it, and opens its files by itself.
NOT HERE What a copy shares with its original, and what that learns of it (segment.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import SupportsIndex, overload

from storage.segments.segment import Segment


class Copies(list[Segment]):
    """Holds the originals, and shows copies."""

    def __init__(self, originals: Sequence[Segment]) -> None:
        super().__init__(originals)
        self.made = {segment.base_offset: segment.copy() for segment in originals if segment.has_indexes}
        """The copies so far, by their base offsets."""

    @overload
    def __getitem__(self, place: SupportsIndex) -> Segment: ...
    @overload
    def __getitem__(self, place: slice) -> list[Segment]: ...
    def __getitem__(self, place: SupportsIndex | slice) -> Segment | list[Segment]:
        """A copy, or several."""
        found = super().__getitem__(place)
        return [self._copy(segment) for segment in found] if isinstance(found, list) else self._copy(found)

    def __iter__(self) -> Iterator[Segment]:
        """All, one after the other."""
        return map(self._copy, super().__iter__())

    def _copy(self, original: Segment) -> Segment:
        made = self.made.get(original.base_offset)
        if made is None:
            made = self.made[original.base_offset] = original.anew()
        return made
