"""The output of a job: text, or JSON lines.

RULES    1. With --json standard output has JSON lines only: one for each step, one for each line of the report, and last the
            report.
         2. Without it steps go to standard error and the report to standard output.
         3. On a terminal, steps with a lag update one progress bar instead of printing lines.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from barnabas.pipeline.reporting.progress import Bars, JobProgress, Metrics

OnStep = Callable[[dict[str, Any]], None]
"""Called with each step of a job: `Reporter.step`, or any function in a notebook."""
WIDE = 200
LONGEST_CELL = 120


class Reporter:
    """The output of one job."""

    def __init__(
        self, job: str, *, as_json: bool, metrics: Path | None = None, terminal: Console | None = None
    ) -> None:
        self._job = job
        self._as_json = as_json
        self._progress = JobProgress()
        self._metrics = None if metrics is None else Metrics(metrics, job)
        terminal = terminal or Console(stderr=True)
        self._bars = Bars(terminal) if terminal.is_terminal and not as_json else None

    def step(self, values: dict[str, Any]) -> None:
        """Reports a completed step."""
        self._progress.add_step(values)
        if self._metrics is not None:
            self._metrics.write(self._progress, is_running=True)
        if self._as_json:
            click.echo(json.dumps({"event": "step", "job": self._job, **values}))
        elif self._bars is not None and "behind" in values:
            self._bars.show(self._job, self._progress)
        else:
            parts = [f"{name.replace('_', ' ')} {_format(value)}" for name, value in values.items()]
            click.echo(f"{self._job}: {', '.join([*parts, *self._progress.summary()])}", err=True)

    def finish(self, *, succeeded: bool) -> None:
        """Closes the bar and writes the final metrics."""
        if self._bars is not None:
            self._bars.close()
        if self._metrics is not None:
            self._metrics.write(self._progress, is_running=False, succeeded=succeeded)

    def note(self, message: str) -> None:
        """Prints a message, unless the output is JSON."""
        if not self._as_json:
            click.echo(f"{self._job}: {message}", err=True)

    def report(self, report: Any) -> None:
        """Prints the report."""
        values = dataclasses.asdict(report)
        self._lines(values.pop("lines", []))
        if self._as_json:
            click.echo(json.dumps({"event": "report", "job": self._job, **values}))
            return
        for name, value in values.items():
            if not isinstance(value, (list, dict)):
                click.echo(f"{name.replace('_', ' ')}: {_format(value)}")

    def _lines(self, lines: list[dict[str, Any]]) -> None:
        """Prints the report's lines: a table, or JSON lines."""
        if self._as_json:
            for line in lines:
                click.echo(json.dumps({"event": "line", "job": self._job, **line}))
            return
        if lines:
            names = list(dict.fromkeys(name for line in lines for name in line))
            table = Table(*names, box=SIMPLE_HEAD, pad_edge=False)
            for line in lines:
                table.add_row(*(escape(_cell(line.get(name, ""))) for name in names))
            Console(width=None if sys.stdout.isatty() else WIDE).print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, list):
        return " ".join("=".join("null" if part is None else str(part) for part in row.values()) for row in value)
    text = _format(value)
    return text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 1]}…"


def _format(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
