"""Draws the figures of `stats` as PNG files: rates.png, sizes.png, keys.png, lag.png.

RULES    1. Equal figures give equal plots. A plot without data is not drawn.
         2. No display is needed.
         3. What is later than the year 9000 is not drawn: a record's time may be in wrong units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from barnabas.pipeline.errors import JobError

INCHES = (9.0, 4.2)
DOTS = 110
MOST_LINES = 10
_END_MS = 221_845_392_000_000
"""The year 9000: matplotlib has no time after the year 9999."""


def draw(report: Any, folder: Path) -> list[Path]:
    """Draws the plots and returns their files."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as missing:
        raise JobError(f"{missing.name} is missing for the plots: pip install 'barnabas[spark]'.") from missing
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        raise JobError(f"The plots cannot be written to {folder}: {failure.strerror}.") from failure
    pictures: dict[str, tuple[list[dict[str, Any]], Callable[[Any, Any], None]]] = {
        "rates": (
            report.rates,
            partial(_over_time, ("topic",), "records_per_s", "records a second", "Records, by their own timestamps"),
        ),
        "sizes": (report.lines, _sizes),
        "keys": (report.keys, _keys),
        "lag": (
            report.lags,
            partial(_over_time, ("group", "topic"), "lag", "records behind", "Lag of consumer groups"),
        ),
    }
    drawn = []
    for name, (figures, onto) in pictures.items():
        if figures:
            figure = Figure(figsize=INCHES, layout="constrained")
            field = figure.subplots()
            onto(field, figures)
            for side in ("top", "right"):
                field.spines[side].set_visible(False)
            drawn.append(folder / f"{name}.png")
            figure.savefig(drawn[-1], dpi=DOTS)
    return drawn


def _over_time(
    names: Sequence[str], column: str, label: str, title: str, field: Any, figures: list[dict[str, Any]]
) -> None:
    """Draws a column over time, with a line for each value of the named columns."""
    for name, rows in _lines(figures, *names).items():
        drawn = [row for row in rows if row["window_ms"] < _END_MS]
        moments = [datetime.fromtimestamp(row["window_ms"] / 1000, UTC) for row in drawn]
        field.step(moments, [row[column] for row in drawn], where="post", label=_label(name))
    field.set_ylabel(label)
    field.set_ylim(bottom=0)
    field.set_title(title, loc="left")
    field.tick_params(axis="x", rotation=20)
    field.legend(frameon=False)


def _sizes(field: Any, figures: list[dict[str, Any]]) -> None:
    names = [row["topic"] for row in figures]
    for index, (column, label) in enumerate(
        (("median_bytes", "median"), ("p99_bytes", "99th percentile"), ("largest_bytes", "largest"))
    ):
        at = [number + 0.27 * (index - 1) for number in range(len(names))]
        field.bar(at, [max(row[column], 1) for row in figures], width=0.25, label=label)
    field.set_yscale("log")
    field.set_xticks(range(len(names)), names)
    field.set_ylabel("bytes of key and value")
    field.set_title("Sizes of records", loc="left")
    field.legend(frameon=False)


def _keys(field: Any, figures: list[dict[str, Any]]) -> None:
    for name, rows in _lines(figures, "topic").items():
        field.plot([row["rank"] for row in rows], [100 * row["share"] for row in rows], marker="o", label=_label(name))
    field.set_xlabel("the commonest keys, by rank")
    field.set_ylabel("% of the records with a key")
    field.set_ylim(bottom=0)
    field.set_title("Skew of keys", loc="left")
    field.legend(frameon=False)


def _label(name: str) -> str:
    """A name as matplotlib takes it: a dollar sign begins a formula, and a legend leaves out what begins with `_`."""
    escaped = name.replace("$", r"\$")
    return f" {escaped}" if escaped.startswith("_") else escaped


def _lines(figures: list[dict[str, Any]], *names: str) -> dict[str, list[dict[str, Any]]]:
    """Groups rows into lines; keeps the longest ones."""
    lines: dict[str, list[dict[str, Any]]] = {}
    for row in figures:
        lines.setdefault(" of ".join(row[name] for name in names), []).append(row)
    return dict(sorted(lines.items(), key=lambda line: -len(line[1]))[:MOST_LINES])
