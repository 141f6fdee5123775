"""How much was written to this broker since a record was: more than memory holds, and reading it means the disk (seeds.md I4).

RULES    1. One counter counts the bytes appended to all partitions of the broker: they share its page cache.
         2. A partition notes now and then where it ended when the counter stood where: so often that a look-up is
            right to a sixty-fourth of what is asked about, and it keeps twice what that needs.
         3. Of what was written before the notes begin, at least what the partition itself holds behind it was appended since.
NOT HERE Who is sent elsewhere for it (`replica_selector.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

_MARKS: Final = 64


class Appends:
    """The counter of a broker."""

    def __init__(self, memory_bytes: int) -> None:
        """`memory_bytes`: the backlog that matters."""
        self.memory_bytes = memory_bytes
        self.step = max(memory_bytes // _MARKS, 1)
        self.total = 0


class AppendHistory:
    """What one partition has noted."""

    __slots__ = ("_appends", "_born_total", "_offsets", "_totals")

    def __init__(self, appends: Appends) -> None:
        self._appends = appends
        self._born_total = appends.total
        self._offsets: list[int] = []
        self._totals: list[int] = []

    def appended(self, base_offset: int, size: int) -> None:
        """So many bytes were appended, and begin at that offset."""
        appends = self._appends
        if not self._totals or appends.total - self._totals[-1] >= appends.step:
            self._offsets.append(base_offset)
            self._totals.append(appends.total)
            if len(self._totals) > 2 * _MARKS:
                del self._offsets[0], self._totals[0]
        appends.total += size

    def is_deep(self, offset: int, log_start_offset: int, end_offset: int, log_bytes: int) -> bool:
        """Whether more was appended since the record at an offset than memory holds.

        Args:
            offset: of the record.
            log_start_offset: where the partition's log begins.
            end_offset: where it ends.
            log_bytes: how large it is.
        """
        found = bisect_right(self._offsets, offset) - 1
        if found >= 0:
            return self._appends.total - self._totals[found] > self._appends.memory_bytes
        since = self._appends.total - (self._totals[0] if self._totals else self._born_total)
        behind = log_bytes * (end_offset - offset) // max(end_offset - log_start_offset, 1)
        return max(since, behind) > self._appends.memory_bytes
