"""The rows as a table: for the terminal, and in Markdown for docs/performance.md."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from tests.benchmark.report.rows import Quartiles, Results, Row

_FIGURES = slice(2, -1)
_WIDTH = 180


def show(results: Results) -> None:
    """Prints the table at its full width."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    headings = _headings(results)
    for heading in headings:
        shown.add_column(heading, justify="right" if heading in headings[_FIGURES] else "left", no_wrap=True)
    for cells, row in _lines(results):
        colour = "red" if row.is_missed else "green"
        aim, verdict = (f"[{colour}]{cell}[/]" if cell else "" for cell in cells[-2:])
        shown.add_row(*(cell.replace("**", "") for cell in cells[:-2]), aim, verdict)
    Console(width=max(_WIDTH, Console().width)).print(shown)


def markdown(results: Results) -> str:
    """The same in Markdown, with a description of the run."""
    machine, settings = results.machine, results.settings
    about = (
        f"{results.when[:10]}, rounds: {settings['rounds']}, {settings['seconds'] / 60:.0f} minutes; {machine['cores']} x "
        f"{machine['cpu']}, {machine['memory_gib']:.0f} GiB, Linux {machine['kernel']}; "
        f"load {machine['load_average'][0]} before the start."
    )
    builds = "; ".join(results.builds)
    headings = _headings(results)
    rule = "|".join("---:" if heading in headings[_FIGURES] else "---" for heading in headings)
    lines = [f"| {' | '.join(headings)} |", f"|{rule}|"]
    lines += [f"| {' | '.join(cells)} |" for cells, _ in _lines(results)]
    return "\n".join([about, builds, "", *lines]) + "\n"


def _headings(results: Results) -> tuple[str, ...]:
    return ("load", "figure", *results.brokers, "ratio", "aim", "")


def _lines(results: Results) -> list[tuple[list[str], Row]]:
    found = []
    before = ""
    for row in results.rows:
        sign = "≥" if row.is_rate else "≤"
        cells = [
            row.load if row.load != before else "",
            row.figure,
            *(_quartiles(Quartiles.of(samples)) if samples else "" for samples in row.samples.values()),
            "" if row.ratio is None else _quartiles(row.ratio),
            "" if row.aim is None else f"{sign} {row.aim:g}",
            "behind" if row.is_missed else "",
        ]
        found.append((cells, row))
        before = row.load
    return found


def _quartiles(values: Quartiles) -> str:
    if values.lower == values.upper:
        return f"**{_short(values.median)}**"
    return f"{_short(values.lower)} / **{_short(values.median)}** / {_short(values.upper)}"


def _short(value: float) -> str:
    if value >= 100_000:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
