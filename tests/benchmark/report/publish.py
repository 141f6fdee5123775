"""Writes the results of a run: JSON, Markdown and plots in build/bench, optionally plots in docs/figures too."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from tests.benchmark.report import plots, tables
from tests.benchmark.report.rows import Results
from tests.benchmark.report.terminal import Wanted, parse_arguments, results_name, results_settings, show_progress

FOLDER = Path("build/bench")
FIGURES = Path("docs/figures")


def compare(parser: argparse.ArgumentParser, measure: Callable[[Results, Wanted], None]) -> int:
    """The main function of a comparison with Apache Kafka or another build; 1 if a row misses its aim."""
    wanted = parse_arguments(parser)
    results = Results(results_name(parser.prog, wanted), results_settings(wanted))
    return measured(results, lambda: measure(results, wanted), docs=wanted.docs)


def measured(results: Results, measure: Callable[[], None], *, docs: bool) -> int:
    """Measures and publishes the results, also those before a load that fails."""
    before_s = results.settings.get("seconds", 0.0)
    started = time.monotonic()
    try:
        measure()
    finally:
        show_progress("")
        results.settings["seconds"] = round(before_s + time.monotonic() - started, 1)
        status = publish(results, docs=docs)
    return status


def publish(results: Results, *, docs: bool) -> int:
    """Writes everything and prints the table; 1 if a row misses its aim."""
    path = FOLDER / f"{results.name}.json"
    results.write(path)
    drawn = draw(results, FOLDER)
    if docs:
        draw(results, FIGURES)
    links = "".join(f"\n![{what}](figures/{name})\n" for what, name in drawn.items())
    text = tables.markdown(results) + links
    path.with_suffix(".md").write_text(text)
    if docs:
        insert(results.name, text)
    tables.show(results)
    rounds, seconds = results.settings["rounds"], results.settings["seconds"]
    print("\n".join(results.builds))
    print(f"lower quartile / median / upper quartile of {rounds} round(s) in {seconds:.0f} s")
    print(f"every sample: {path}; the table in Markdown: {path.with_suffix('.md')}; plots: {FOLDER}/*.svg")
    if docs:
        print(f"plots for the page: {FIGURES}/{results.name}-*.svg; its table:\n\n{text}")
    if results.missed:
        print("behind the aim: " + "; ".join(str(row) for row in results.missed))
    return 1 if results.missed else 0


def insert(name: str, text: str) -> None:
    """Puts a table between the marks `<!-- bench NAME -->` and `<!-- end -->` of the pages in docs that have them."""
    begin, end = f"<!-- bench {name} -->\n", "<!-- end -->\n"
    for page in Path("docs").glob("*.md"):
        before, mark, rest = page.read_text().partition(begin)
        if mark:
            page.write_text(before + mark + text + end + rest.partition(end)[2])


def draw(results: Results, folder: Path) -> dict[str, str]:
    """The plots for which there are data; their titles and file names."""
    drawn = {}
    if any(row.ratio is not None for row in results.rows):
        drawn["every ratio and its quartiles"] = f"{results.name}-ratios.svg"
        plots.ratios(results, folder / f"{results.name}-ratios.svg")
    if plots.has_counts(results):
        drawn["figures by the number of partitions"] = f"{results.name}-counts.svg"
        plots.counts(results, folder / f"{results.name}-counts.svg")
    if results.latencies:
        drawn["latencies by percentile"] = f"{results.name}-latencies.svg"
        plots.latencies(results, folder / f"{results.name}-latencies.svg")
    return drawn
