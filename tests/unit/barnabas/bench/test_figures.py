"""Percentiles and drawings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from barnabas.bench.figures import bar, histogram, percentile, percentiles, sparkline


def test_percentiles_are_samples_of_nearest_rank() -> None:
    assert percentiles(list(range(1, 1001))) == {"p50": 500, "p95": 950, "p99": 990, "p99.9": 999, "max": 1000}
    assert percentiles([7.0]) == {"p50": 7, "p95": 7, "p99": 7, "p99.9": 7, "max": 7}
    assert percentile([], 50) == 0


def test_drawings_are_scaled_to_their_largest_value() -> None:
    assert sparkline([0, 4, 8]) == "▁▅█"
    assert sparkline([0, 0]) == "▁▁"
    assert (bar(1, 4), bar(0.5, 4), bar(1 / 32, 4), bar(0, 4)) == ("████", "██", "▏", "")


@given(st.lists(st.floats(0.001, 10_000), min_size=1, max_size=300))
def test_a_histogram_counts_each_sample_once(samples: list[float]) -> None:
    lines = histogram(samples)
    assert sum(int(line.split()[2]) for line in lines) == len(samples)
    assert len(lines) <= 12
    assert max(len(line) for line in lines) <= 65
