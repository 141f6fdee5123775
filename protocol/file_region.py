"""Ranges of log files that a response sends without reading them (sendfile).

NOT HERE How they are sent (`broker/network/sender.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias


class HasFileno(Protocol):
    """An open file, as a region needs it."""

    def fileno(self) -> int:
        """The file descriptor to send from."""
        ...


class FileRegion:
    """A range of an open file that is sent without being read; it holds a reference to the file."""

    __slots__ = ("file", "length", "position")

    def __init__(self, file: HasFileno, position: int, length: int) -> None:
        self.file = file
        self.position = position
        self.length = length

    def __len__(self) -> int:
        """Bytes, as of the other parts of a response."""
        return self.length

    @property
    def spans(self) -> tuple[tuple[int, int]]:
        """As of a ScatteredRegion."""
        return ((self.position, self.length),)

    def __repr__(self) -> str:
        return f"FileRegion({self.file!r}, {self.position}, {self.length})"


class ScatteredRegion:
    """Ranges of an open file that are sent one after the other, like one FileRegion; it never changes."""

    __slots__ = ("file", "length", "spans")

    def __init__(self, file: HasFileno, spans: Sequence[tuple[int, int]], length: int) -> None:
        """`spans`: position and length of each range, at least one; `length`: of all."""
        self.file = file
        self.spans = spans
        self.length = length

    def __len__(self) -> int:
        """Bytes, as of the other parts of a response."""
        return self.length

    def __repr__(self) -> str:
        return f"ScatteredRegion({self.file!r}, {self.spans!r})"

    def after(self, count: int, length: int) -> ScatteredRegion:
        """The region without its first `count` ranges, which have this length."""
        return ScatteredRegion(self.file, self.spans[count:], self.length - length)


Region: TypeAlias = FileRegion | ScatteredRegion
"""Stored batches of a response."""


def file_regions(regions: Iterable[Region]) -> Iterator[FileRegion]:
    """The contiguous ranges of these regions, in order."""
    for region in regions:
        if isinstance(region, FileRegion):
            yield region
        else:
            yield from [FileRegion(region.file, position, length) for position, length in region.spans]
