"""Histograms of durations whose update costs a list index: one bucket for each power of two of nanoseconds.

RULES    1. Bucket i counts durations of i bits: from 2^(i-1) up to 2^i nanoseconds, exclusively; bucket 0 those of 0.
         2. Durations of 0 need not be recorded: a distribution adds them, if it knows how many there were.
NOT HERE What is measured (`request_metrics.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

BUCKETS: Final = 64
"""More than any duration in nanoseconds has bits."""
FIRST_BOUND: Final = 15
LAST_BOUND: Final = 36
"""The bounds of the exposition, as powers of two of nanoseconds: 33 µs to 69 s."""
QUANTILES: Final = ("0.50", "0.75", "0.95", "0.98", "0.99", "0.999")


class Histogram:
    """Durations in nanoseconds."""

    __slots__ = ("buckets", "sum_ns")

    def __init__(self) -> None:
        self.buckets: list[int] = [0] * BUCKETS
        self.sum_ns = 0

    def record(self, duration_ns: int, weight: int = 1) -> None:
        """Counts a duration, which stands for `weight` of them."""
        self.buckets[duration_ns.bit_length()] += weight
        self.sum_ns += duration_ns * weight


class Distribution:
    """The sum of several histograms at one moment."""

    def __init__(self, histograms: Sequence[Histogram], count: int | None = None) -> None:
        """`count` is the number of all durations, if those of 0 are not recorded."""
        self.buckets = [sum([one.buckets[index] for one in histograms]) for index in range(BUCKETS)]
        self.sum_ns = sum([one.sum_ns for one in histograms])
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
                high = 0 if not index else 1 << index
                return (low + (high - low) * (rank - below) / count) / 1e6
            below += count
        raise AssertionError("the counts add up")

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """Upper bounds in seconds as text, and how many durations are below each."""
        below = sum(self.buckets[:FIRST_BOUND])
        for index in range(FIRST_BOUND, LAST_BOUND + 1):
            below += self.buckets[index]
            yield repr((1 << index) / 1e9), below
        yield "+Inf", self.count
