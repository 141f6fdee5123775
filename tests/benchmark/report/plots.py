"""Two plots of a run: every ratio with its quartiles and its aim, and the distribution of latencies.

SVG files with text as text, a few dozen kilobytes each.
"""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from tests.benchmark.report.rows import OTHER_BUILD, OURS, QUANTILES, THEIRS, Quartiles, Results, Row

COLOURS = {OURS: "#1f6f8b", THEIRS: "#c46a2b", OTHER_BUILD: "#7a5ba6"}
_GOOD, _BEHIND, _PLAIN = "#2f7d4f", "#b3392f", "#5b6770"
_LEAST_RATIO = 0.005
"""The start of the axis; smaller ratios are drawn here."""
_COLUMNS = 4
_COUNT_COLUMNS = 3
_COUNTED = re.compile(r"([\d,]+) partitions?, (\w+)")
_INCHES_PER_ROW = 0.21


def ratios(results: Results, path: Path) -> None:
    """One line per figure: from the lower to the upper quartile, a dot at the median, a mark at the aim."""
    rows = [(row, row.ratio) for row in results.rows]
    known = [(row, ratio) for row, ratio in rows if ratio is not None]
    figure = Figure(figsize=(9, 1.2 + _INCHES_PER_ROW * len(known)), layout="constrained")
    axes = figure.subplots()
    for row_index, (row, ratio) in enumerate(known):
        _ratio(axes, row_index, row, ratio)
    axes.axvline(1, color="#888888", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks(range(len(known)), [str(row) for row, _ in known], fontsize=7)
    axes.set_ylim(len(known) - 0.4, -0.6)
    axes.grid(axis="x", linewidth=0.3, alpha=0.6)
    axes.minorticks_off()
    axes.set_xticks([0.01, 0.03, 0.1, 0.3, 1, 3], ["0.01", "0.03", "0.1", "0.3", "1", "3"])
    rounds = f"{results.settings['rounds']} round(s)"
    axes.set_xlabel(f"{OURS} / {results.rival}: quartiles and median of {rounds}; | is the aim")
    _save(figure, path)


def _ratio(axes: Axes, row_index: int, row: Row, ratio: Quartiles) -> None:
    colour = _PLAIN if row.aim is None else _BEHIND if row.is_missed else _GOOD
    lower, middle, upper = (max(value, _LEAST_RATIO) for value in ratio)
    axes.plot([lower, upper], [row_index, row_index], color=colour, linewidth=3, alpha=0.5, solid_capstyle="butt")
    # For rates more is better: the marker points to the right.
    axes.plot([middle], [row_index], marker=">" if row.is_rate else "<", markersize=5, color=colour)
    if row.aim is not None:
        axes.plot([row.aim], [row_index], marker="|", markersize=9, color="black", zorder=3)


def latencies(results: Results, path: Path) -> None:
    """One panel per load: microseconds by percentile, the median of the rounds between their quartiles."""
    count = len(results.latencies)
    columns = min(_COLUMNS, count)
    height = -(-count // columns)
    figure = Figure(figsize=(3.1 * columns, 0.5 + 2.5 * height), layout="constrained")
    panels = figure.subplots(height, columns, squeeze=False).flat
    tail = [1 / (1 - quantile) for quantile in QUANTILES]
    for (load, brokers), axes in zip(results.latencies.items(), panels, strict=False):
        for broker, rounds in brokers.items():
            lower, middle, upper = zip(*map(Quartiles.of, zip(*rounds, strict=True)), strict=True)
            axes.fill_between(tail, lower, upper, color=COLOURS[broker], alpha=0.2, linewidth=0)
            axes.plot(tail, middle, color=COLOURS[broker], label=broker)
        axes.set_title(load, fontsize=8)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks([2, 10, 100, 1000], ["p50", "p90", "p99", "p99.9"], fontsize=7)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.minorticks_off()
        axes.tick_params(axis="y", labelsize=7)
        axes.grid(linewidth=0.3, alpha=0.6)
    for axes in panels:
        axes.axis("off")
    figure.axes[0].legend(fontsize=7)
    figure.supylabel("microseconds", fontsize=8)
    _save(figure, path)


def counts(results: Results, path: Path) -> None:
    """One panel per figure of loads `N partitions, KIND`: medians of all brokers and kinds by the number of partitions."""
    found: dict[str, dict[tuple[str, str], dict[int, float]]] = {}
    for row in results.rows:
        counted = _COUNTED.fullmatch(row.load)
        for broker, samples in row.samples.items() if counted else ():
            if counted and samples:
                curves = found.setdefault(row.figure, {})
                number = int(counted[1].replace(",", ""))
                curves.setdefault((broker, counted[2]), {})[number] = Quartiles.of(samples).median
    columns = min(_COUNT_COLUMNS, len(found))
    height = -(-len(found) // columns)
    figure = Figure(figsize=(3.6 * columns, 0.6 + 2.6 * height), layout="constrained")
    panels = list(figure.subplots(height, columns, squeeze=False).flat)
    colours = dict(zip(results.brokers, (COLOURS[OTHER_BUILD], COLOURS[OURS], COLOURS[THEIRS]), strict=False))
    for axes, (title, curves) in zip(panels, found.items(), strict=False):
        for (broker, kind), points in curves.items():
            style = "-" if kind == "synced" else ":"
            axes.plot(
                points.keys(), points.values(), style, marker=".", color=colours[broker], label=f"{broker}, {kind}"
            )
        axes.set_title(title, fontsize=8)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.minorticks_off()
        axes.tick_params(labelsize=7)
        axes.grid(linewidth=0.3, alpha=0.6)
    for axes in panels[len(found) :]:
        axes.axis("off")
    panels[0].legend(fontsize=6)
    figure.supxlabel("partitions", fontsize=8)
    _save(figure, path)


def has_counts(results: Results) -> bool:
    """Whether there are loads for `counts`."""
    return any(_COUNTED.fullmatch(row.load) for row in results.rows)


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without a date and with a fixed salt a plot changes only with its figures.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "barnabas"}):
        figure.savefig(path, metadata={"Date": None})
