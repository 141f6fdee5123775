"""Measurements of two brokers: one row per figure, with every sample, stored as JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from tests.benchmark.load.meter import Outcome

OURS, THEIRS, OTHER_BUILD = "Barnabas", "Apache Kafka", "other build"
QUANTILES = (0.01, 0.05, *(n / 10 for n in range(1, 10)), 0.95, 0.97, 0.98, 0.99, 0.993, 0.995, 0.997, 0.998, 0.999)
"""The stored quantiles of latencies."""
NO_AIMS: Mapping[str, float] = MappingProxyType({})
_RATES = frozenset({"MB/s", "records/s", "transactions/s", "commits/s"})
"""Figures of which more is better."""


class Quartiles(NamedTuple):
    lower: float
    median: float
    upper: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Quartiles:
        """The quartiles of one or more values; between two values they are interpolated linearly.

        Of three values they are the mean of the least and the median, the median, and the mean of the median and the most.
        """
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        return cls(*statistics.quantiles(values, n=4, method="inclusive"))


@dataclass
class Row:
    """One figure of one load: all rounds of all brokers, paired; ours first, the rival last."""

    load: str
    figure: str
    aim: float | None
    samples: dict[str, list[float]]

    @property
    def is_rate(self) -> bool:
        return self.figure in _RATES

    @property
    def ratio(self) -> Quartiles | None:
        """Barnabas / the rival, quartiles of the ratios of the rounds; of several Barnabas the last one."""
        ours, theirs = list(self.samples.values())[-2:]
        ratios = [mine / yours for mine, yours in zip(ours, theirs, strict=False) if yours]
        return Quartiles.of(ratios) if ratios else None

    @property
    def is_missed(self) -> bool:
        """Whether the median misses the aim."""
        ratio = self.ratio
        if self.aim is None or ratio is None:
            return False
        return ratio.median < self.aim if self.is_rate else ratio.median > self.aim

    def __str__(self) -> str:
        return f"{self.load}, {self.figure}"


class Results:
    """All rows of a run in order, and the latencies of some."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        self.name = name
        self.when = datetime.now(UTC).isoformat(timespec="seconds")
        self.settings = dict(settings)
        self.machine = machine()
        self.rows: list[Row] = []
        self.latencies: dict[str, dict[str, list[list[float]]]] = {}
        """Load, broker, round: the quantiles in microseconds."""

    @property
    def builds(self) -> list[str]:
        """The measured builds of Barnabas, with their interpreter; empty for old results."""
        named = self.settings.get("builds", {}).items()
        return [f"{name}: {build}, on {self.settings['interpreter']}" for name, build in named]

    @property
    def rival(self) -> str:
        """The broker that Barnabas is compared with."""
        return str(self.settings.get("rival", THEIRS))

    @property
    def brokers(self) -> list[str]:
        """The measured brokers: Barnabas, perhaps with several settings, then the rival."""
        return list(self.settings.get("brokers", [OURS, self.rival]))

    def row(self, load: str, figure: str, aim: float | None = None) -> Row:
        """The row of a figure; created if there is none."""
        for row in self.rows:
            if (row.load, row.figure) == (load, figure):
                return row
        self.rows.append(Row(load, figure, aim, {name: [] for name in self.brokers}))
        return self.rows[-1]

    def add(self, load: str, broker: str, outcome: Outcome, aims: Mapping[str, float] = NO_AIMS) -> None:
        """Adds the outcome of one round on one broker."""
        for figure, value in outcome.figures.items():
            aim = aims.get(figure) if self.rival == THEIRS else None
            self.row(load, figure, aim).samples[broker].append(value)
        if elapsed := outcome.seconds:
            quantiles = [round(elapsed[int(quantile * len(elapsed))] * 1e6, 1) for quantile in QUANTILES]
            self.latencies.setdefault(load, {}).setdefault(broker, []).append(quantiles)

    @property
    def missed(self) -> list[Row]:
        return [row for row in self.rows if row.is_missed]

    def write(self, path: Path) -> None:
        """Writes every sample, with a description of the machine."""
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [{**vars(row), "ratio": row.ratio} for row in self.rows]
        path.write_text(json.dumps({**vars(self), "rows": rows}, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        content = json.loads(path.read_text())
        results = cls(content["name"], content["settings"])
        results.when, results.machine, results.latencies = (content[name] for name in ("when", "machine", "latencies"))
        results.rows = [Row(row["load"], row["figure"], row["aim"], row["samples"]) for row in content["rows"]]
        return results


def machine() -> dict[str, Any]:
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    return {
        "cpu": cpu.partition(":")[2].strip(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python of the loads": platform.python_version(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }
