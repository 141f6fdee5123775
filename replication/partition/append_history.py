"""How many bytes were appended to this broker since a record: a consumer that reads older records reads from disk.

RULES    1. One counter covers all partitions of the broker, because they share its page cache.
         2. A partition records (offset, counter) pairs in steps of 1/64 of the memory size, and keeps twice as many as
            it needs.
         3. For offsets before the first pair, at least the partition's own bytes behind the offset were appended since.
NOT HERE Which replica a consumer reads from (`replica_selector.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

_SAMPLES: Final = 64


class AppendedBytes:
    """The counter of a broker."""

    def __init__(self, memory_bytes: int) -> None:
        """`memory_bytes`: the page cache size; older records are assumed to be on disk."""
        self.memory_bytes = memory_bytes
        self.step = max(memory_bytes // _SAMPLES, 1)
        self.total = 0


class AppendHistory:
    """The recorded pairs of one partition."""

    __slots__ = ("_counter", "_initial_total", "_offsets", "_totals")

    def __init__(self, counter: AppendedBytes) -> None:
        self._counter = counter
        self._initial_total = counter.total
        self._offsets: list[int] = []
        self._totals: list[int] = []

    def on_append(self, base_offset: int, size: int) -> None:
        """Count an append of `size` bytes that starts at `base_offset`."""
        counter = self._counter
        if not self._totals or counter.total - self._totals[-1] >= counter.step:
            self._offsets.append(base_offset)
            self._totals.append(counter.total)
            if len(self._totals) > 2 * _SAMPLES:
                del self._offsets[0], self._totals[0]
        counter.total += size

    def exceeds_memory(self, offset: int, log_start_offset: int, end_offset: int, log_bytes: int) -> bool:
        """Whether more was appended since the record at `offset` than memory holds; `log_bytes`: size of the partition."""
        sample = bisect_right(self._offsets, offset) - 1
        if sample >= 0:
            return self._counter.total - self._totals[sample] > self._counter.memory_bytes
        since = self._counter.total - (self._totals[0] if self._totals else self._initial_total)
        bytes_behind = log_bytes * (end_offset - offset) // max(end_offset - log_start_offset, 1)
        return max(since, bytes_behind) > self._counter.memory_bytes
