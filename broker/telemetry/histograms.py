"""Histograms of durations whose update costs a list index: one bucket for each power of two of microseconds.

RULES    1. Bucket i counts durations of i bits: from 2^(i-1) up to 2^i microseconds, exclusively; bucket 0 those below 1.
         2. Who records updates `buckets` and `sum_us` itself: a call would cost more than the update.
         3. A duration of 0 need not be recorded: `zeros` at the scrape adds them.
NOT HERE What is measured (`request_metrics.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

BUCKETS: Final = 64
"""More than any duration in microseconds has bits."""
FIRST_BOUND: Final = 5
LAST_BOUND: Final = 26
"""The bounds of the exposition, as powers of two of microseconds: 32 µs to 67 s."""
QUANTILES: Final = ("0.50", "0.75", "0.95", "0.98", "0.99", "0.999")


class Histogram:
    """Durations in microseconds."""

    __slots__ = ("buckets", "sum_us")

    def __init__(self) -> None:
        self.buckets: list[int] = [0] * BUCKETS
        self.sum_us = 0

    def record(self, duration_us: int) -> None:
        """Counts one; not for the hot path (rule 2)."""
        self.buckets[duration_us.bit_length()] += 1
        self.sum_us += duration_us


class Distribution:
    """The sum of several histograms at one moment, with `zeros` more durations of 0."""

    def __init__(self, histograms: Sequence[Histogram], count: int | None = None) -> None:
        """`count` is the number of all durations, if those of 0 are not recorded."""
        self.buckets = [sum([one.buckets[index] for one in histograms]) for index in range(BUCKETS)]
        self.sum_us = sum([one.sum_us for one in histograms])
        if count is not None:
            self.buckets[0] += max(count - sum(self.buckets), 0)
        self.count = sum(self.buckets)

    def quantile_ms(self, quantile: float) -> float:
        """The quantile in milliseconds, interpolated within its bucket; NaN without durations."""
        if not self.count:
            return float("nan")
        rank, below = quantile * self.count, 0
        for index, count in enumerate(self.buckets):
            if count and below + count >= rank:
                low = 0 if not index else 1 << (index - 1)
                return (low + ((1 << index) - low) * (rank - below) / count) / 1000
            below += count
        raise AssertionError("the counts add up")

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """Upper bounds in seconds as text, and how many durations are below each."""
        below = sum(self.buckets[:FIRST_BOUND])
        for index in range(FIRST_BOUND, LAST_BOUND + 1):
            below += self.buckets[index]
            yield repr((1 << index) / 1e6), below
        yield "+Inf", self.count
