"""Where the results of a run go: JSON, Markdown and plots in build/bench, on request plots in docs/figures too."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.benchmark.report import plots, tables
from tests.benchmark.report.rows import Results
from tests.benchmark.report.terminal import say

FOLDER = Path("build/bench")
FIGURES = Path("docs/figures")


def measured(results: Results, measure: Callable[[], None], *, docs: bool) -> int:
    """Measure into the results and publish them: what was measured is not lost with a load that fails."""
    before_s = results.settings.get("seconds", 0.0)
    started = time.monotonic()
    try:
        measure()
    finally:
        say("")
        results.settings["seconds"] = round(before_s + time.monotonic() - started, 1)
        status = publish(results, docs=docs)
    return status


def publish(results: Results, *, docs: bool) -> int:
    """Write all of it and print the table; 1 when a row is behind its aim."""
    path = FOLDER / f"{results.name}.json"
    results.write(path)
    drawn = draw(results, FOLDER)
    if docs:
        draw(results, FIGURES)
    links = "".join(f"\n![{what}](figures/{name})\n" for what, name in drawn.items())
    text = tables.markdown(results) + links
    path.with_suffix(".md").write_text(text)
    tables.show(results)
    print(f"least / median / most of {results.settings['rounds']} round(s) in {results.settings['seconds']:.0f} s")
    print(f"every sample: {path}; the table in Markdown: {path.with_suffix('.md')}; plots: {FOLDER}/*.svg")
    if docs:
        print(f"plots for the page: {FIGURES}/{results.name}-*.svg; its table:\n\n{text}")
    if results.missed:
        print("behind the aim: " + "; ".join(str(row) for row in results.missed))
    return 1 if results.missed else 0


def draw(results: Results, folder: Path) -> dict[str, str]:
    """The plots for which there is something to draw; what each shows, and its file's name."""
    drawn = {}
    if any(row.ratio is not None for row in results.rows):
        drawn["every ratio and its range"] = f"{results.name}-ratios.svg"
        plots.ratios(results, folder / f"{results.name}-ratios.svg")
    if results.latencies:
        drawn["latencies by percentile"] = f"{results.name}-latencies.svg"
        plots.latencies(results, folder / f"{results.name}-latencies.svg")
    return drawn
