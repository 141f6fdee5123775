"""Percentiles, and drawings of figures as text.

RULES    1. A percentile is the smallest sample that is at least as large as that share of all samples (nearest rank).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

PERCENTILES = (50.0, 95.0, 99.0, 99.9)
_BLOCKS = "▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def percentile(ordered: Sequence[float], share: float) -> float:
    """Returns a percentile of sorted samples (rule 1); 0 without samples."""
    if not ordered:
        return 0.0
    return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)]


def percentiles(samples: Sequence[float]) -> dict[str, float]:
    """Returns the PERCENTILES and the maximum by name: p50, p99.9, max."""
    ordered = sorted(samples)
    found = {f"p{share:g}": percentile(ordered, share) for share in PERCENTILES}
    return {**found, "max": ordered[-1] if ordered else 0.0}


def sparkline(values: Sequence[float]) -> str:
    """Draws values in one line of blocks, from 0 to the greatest."""
    top = max(values, default=0)
    if top <= 0:
        return _BLOCKS[0] * len(values)
    return "".join(_BLOCKS[min(len(_BLOCKS) - 1, int(value / top * len(_BLOCKS)))] for value in values)


def bar(share: float, width: int) -> str:
    """Draws a share of 0 to 1 as a bar of at most `width` characters, to an eighth of one."""
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def histogram(samples: Sequence[float], width: int = 40, rows: int = 12) -> list[str]:
    """Draws how many samples are in each of at most `rows` classes, which double or grow evenly in logarithm."""
    positive = sorted(value for value in samples if value > 0)
    if not positive:
        return []
    low, high = positive[0], percentile(positive, 99.9)
    steps = max(1, min(rows, math.ceil(math.log2(high / low) * 2) if high > low else 1))
    ratio = (high / low) ** (1 / steps) if high > low else 2.0
    counts = [0] * steps
    for value in positive:
        counts[min(steps - 1, int(math.log(value / low) / math.log(ratio)))] += 1
    top = max(counts)
    edges = [low * ratio ** (step + 1) for step in range(steps)]
    return [
        f"{'≤' if step < steps - 1 else '>'} {edges[step] if step < steps - 1 else edges[step - 1] if step else low:9.3f}"
        f"  {count:8d}  {bar(count / top, width)}"
        for step, count in enumerate(counts)
    ]
