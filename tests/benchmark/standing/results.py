"""What the experiment found: figures per phase, a table, JSON, and a chart."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from tests.benchmark.standing.producers import Sample, Samples

BROKER, PROGRAM = "broker", "other program"
AIM_RATIO: Final = 2.0
AIM_STALL_MS: Final = 50.0
_QUANTILES: Final = [*(step / 100 for step in range(1, 100)), 0.995, 0.999, 0.9995, 0.9999]
_BUCKET_S: Final = 0.1
_STALL = re.compile(
    r"the loop stood still (?:once,|(\d+) times, at the longest) (\d+) ms \(\d+ ms of processor time\) in (.*)"
)


class Phase(NamedTuple):
    """One measurement: some seconds of the quiet producers of one broker in one scene."""

    broker: str
    scene: str
    beside: str
    produced: dict[str, float]
    probed: dict[str, float]
    quantiles_ms: list[float]
    worst_by_tenth_ms: list[float]
    stalls: list[dict[str, Any]]
    """Our broker's own: how often, the longest, where."""

    @property
    def longest_stall_ms(self) -> float:
        """0 when the loop never stood still."""
        return max((stall["longest_ms"] for stall in self.stalls), default=0.0)


def phase(broker: str, scene: str, beside: str, samples: Samples, log: str) -> Phase:
    """Figures of one measurement."""
    latencies = sorted(sample.latency_s for sample in samples.produced)
    buckets: dict[int, float] = {}
    for due_s, latency_s in samples.produced:
        slot = int(due_s / _BUCKET_S)
        buckets[slot] = max(buckets.get(slot, 0.0), latency_s)
    stalls = [
        {"times": int(found[1] or 1), "longest_ms": float(found[2]), "in": found[3]} for found in _STALL.finditer(log)
    ]
    return Phase(
        broker,
        scene,
        beside,
        _figures(samples.produced),
        _figures(samples.probed),
        [round(1e3 * _at(latencies, quantile), 3) for quantile in _QUANTILES],
        [round(1e3 * buckets.get(slot, 0.0), 2) for slot in range(max(buckets) + 1)],
        stalls,
    )


def _figures(samples: list[Sample]) -> dict[str, float]:
    latencies = sorted(sample.latency_s for sample in samples)
    figures = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    return {
        "count": len(latencies),
        **{name: round(1e3 * _at(latencies, quantile), 3) for name, quantile in figures.items()},
        "max": round(1e3 * latencies[-1], 3),
    }


def _at(ordered: list[float], quantile: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * quantile))]


class Line(NamedTuple):
    """One scene of one broker over all rounds."""

    broker: str
    scene: str
    phases: dict[str, list[Phase]]

    def median(self, beside: str, figure: str) -> float | None:
        """Over the rounds."""
        phases = self.phases.get(beside)
        return statistics.median(phase.produced[figure] for phase in phases) if phases else None

    @property
    def ratio(self) -> float | None:
        """The median over the rounds of: p99 beside the busy broker / p99 beside the other program."""
        pairs = zip(self.phases.get(BROKER, []), self.phases.get(PROGRAM, []), strict=False)
        ratios = [ours.produced["p99"] / theirs.produced["p99"] for ours, theirs in pairs]
        return statistics.median(ratios) if ratios else None

    @property
    def longest_stall_ms(self) -> float:
        """Of all rounds beside the busy broker."""
        return max((phase.longest_stall_ms for phase in self.phases.get(BROKER, [])), default=0.0)


def lines(phases: Iterable[Phase]) -> list[Line]:
    """Phases by scene and broker."""
    found: dict[tuple[str, str], Line] = {}
    for one in phases:
        line = found.setdefault((one.scene, one.broker), Line(one.broker, one.scene, {}))
        line.phases.setdefault(one.beside, []).append(one)
    return list(found.values())


def missed(all_lines: Iterable[Line], ours: str) -> list[str]:
    """What our broker did not reach, in sentences."""
    sentences = []
    for line in all_lines:
        if line.broker != ours:
            continue
        if line.ratio is not None and line.ratio > AIM_RATIO:
            sentences.append(f"{line.scene}: p99 is {line.ratio:.1f} x of the reference")
        if line.longest_stall_ms > AIM_STALL_MS:
            sentences.append(f"{line.scene}: the loop stood still for {line.longest_stall_ms:.0f} ms")
    return sentences


def show(all_lines: Iterable[Line]) -> None:
    """Print the table."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("producers beside", "broker"):
        table.add_column(heading)
    for heading in (
        "p50",
        "p99",
        "p99.9",
        "max ms",
        "reference p50",
        "p99",
        "p99.9",
        "max ms",
        "p99 ratio",
        "probe max",
    ):
        table.add_column(heading, justify="right")
    table.add_column("stalls above 20 ms", justify="right")
    for line in all_lines:
        cells = [
            "" if (value := line.median(beside, figure)) is None else f"{value:.3g}"
            for beside in (BROKER, PROGRAM)
            for figure in ("p50", "p99", "p99.9", "max")
        ]
        busy = line.phases.get(BROKER, [])
        probe = f"{max(phase.probed['max'] for phase in busy):.3g}" if busy else ""
        times = sum(stall["times"] for phase in busy for stall in phase.stalls)
        stalls = (
            f"{times}, longest {line.longest_stall_ms:.0f} ms" if times else "0" if line.broker == "Barnabas" else ""
        )
        ratio = "" if line.ratio is None else f"{line.ratio:.2f}"
        table.add_row(line.scene, line.broker, *cells, ratio, probe, stalls)
    Console(width=max(160, Console().width)).print(table)


def write(path: Path, phases: list[Phase], settings: dict[str, Any]) -> None:
    """Everything that was found."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"settings": settings, "quantiles": _QUANTILES, "phases": [one._asdict() for one in phases]}
    path.write_text(json.dumps(content, indent=1) + "\n")


def draw(path: Path, all_lines: list[Line]) -> None:
    """A panel for each scene: how long the slowest producers had to wait."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    scenes = list(dict.fromkeys(line.scene for line in all_lines))
    colours = dict(zip(dict.fromkeys(line.broker for line in all_lines), ("#1f6f8b", "#c8553d"), strict=False))
    figure, panels = plt.subplots(2, -(-len(scenes) // 2), figsize=(13, 7.5), sharex=True, sharey=True, squeeze=False)
    for panel, scene in zip(panels.flat, scenes, strict=False):
        panel.set_title(scene, fontsize=11)
        for line in all_lines:
            if line.scene != scene:
                continue
            for beside, phases in line.phases.items():
                middle = [
                    statistics.median(column) for column in zip(*(one.quantiles_ms for one in phases), strict=True)
                ]
                label = f"{line.broker}, beside {'itself busy' if beside == BROKER else 'another program'}"
                style = "-" if beside == BROKER else ":"
                panel.plot([1 - q for q in _QUANTILES], middle, style, color=colours[line.broker], label=label)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.grid(visible=True, which="major", alpha=0.3)
    panels.flat[0].invert_xaxis()
    for panel in panels[-1]:
        panel.set_xlabel("share of requests that took longer")
    for row in panels:
        row[0].set_ylabel("ms from when it was due")
    handles, labels = panels.flat[min(1, len(scenes) - 1)].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=4, frameon=False)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
