"""What was measured of two brokers, as a table and as JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

OURS, THEIRS = "Barnabas", "Apache Kafka"
_RATES = frozenset({"MB/s", "records/s"})
"""Figures of which more is better."""


class Spread(NamedTuple):
    """Some measurements of one thing."""

    least: float
    median: float
    most: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """The spread of one or more values."""
        return cls(min(values), statistics.median(values), max(values))

    def __str__(self) -> str:
        return f"{_short(self.least)} / [bold]{_short(self.median)}[/] / {_short(self.most)}"


class Row:
    """One figure of one load: all rounds of both brokers, paired."""

    def __init__(self, load: str, figure: str, aim: float | None) -> None:
        self.load = load
        self.figure = figure
        self.aim = aim
        self.samples: dict[str, list[float]] = {OURS: [], THEIRS: []}

    @property
    def ratio(self) -> Spread | None:
        """Barnabas / Apache Kafka, round by round."""
        pairs = zip(self.samples[OURS], self.samples[THEIRS], strict=False)
        ratios = [ours / theirs for ours, theirs in pairs if theirs]
        return Spread.of(ratios) if ratios else None

    @property
    def is_missed(self) -> bool:
        """Whether the median is worse than what was aimed at."""
        ratio = self.ratio
        if self.aim is None or ratio is None:
            return False
        return ratio.median < self.aim if self.figure in _RATES else ratio.median > self.aim

    def __str__(self) -> str:
        return f"{self.load}, {self.figure}"


def table(rows: list[Row]) -> Table:
    """All rows; least, median and most of the rounds."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("load", "figure"):
        shown.add_column(heading)
    for heading in (OURS, THEIRS, "ratio", "aim"):
        shown.add_column(heading, justify="right")
    before = ""
    for row in rows:
        ratio, aim = row.ratio, ""
        if row.aim is not None:
            aim = f"{'>=' if row.figure in _RATES else '<='} {row.aim:g}"
            if ratio is not None:
                aim = f"[red]{aim}[/]" if row.is_missed else f"[green]{aim}[/]"
        values = [str(Spread.of(samples)) if samples else "" for samples in row.samples.values()]
        shown.add_row(row.load if row.load != before else "", row.figure, *values, str(ratio or ""), aim)
        before = row.load
    return shown


def show(rows: list[Row]) -> None:
    """Print the table, as wide as it has to be."""
    Console(width=max(150, Console().width)).print(table(rows))


def write(path: Path, rows: list[Row], settings: dict[str, Any]) -> None:
    """Write every sample, with what one must know of the machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": settings,
        "machine": machine(),
        "rows": [
            {"load": row.load, "figure": row.figure, "aim": row.aim, "samples": row.samples, "ratio": row.ratio}
            for row in rows
        ],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    return {
        "cpu": cpu.partition(":")[2].strip(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
    }


def _short(value: float) -> str:
    if value >= 100_000:
        return f"{value / 1000:.0f}k"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
