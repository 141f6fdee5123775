"""What a job says while it runs and at its end: lines for people, or a JSON object a line for programs.

RULES    1. With --json standard output carries JSON lines only: one for each step and each line that a report lists, the last
            one is the report.
         2. For people the steps go to standard error and the report to standard output.
         3. On a terminal the steps that say what is behind are one line, with a bar, instead of a line for each.
NOT HERE What is reported (`jobs/`), rate and time left (`progress.py`).
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

from barnabas.pipeline.reporting.progress import Bars, Metrics, Progress

Tell = Callable[[dict[str, Any]], None]
"""Whom a job tells of its steps: `Telling.step`, or whatever a notebook likes."""
WIDE = 200
LONGEST_CELL = 120


class Telling:
    """One job's voice."""

    def __init__(
        self, job: str, *, as_json: bool, metrics: Path | None = None, terminal: Console | None = None
    ) -> None:
        self._job = job
        self._as_json = as_json
        self._progress = Progress()
        self._metrics = None if metrics is None else Metrics(metrics, job)
        terminal = terminal or Console(stderr=True)
        self._bars = Bars(terminal) if terminal.is_terminal and not as_json else None

    def step(self, said: dict[str, Any]) -> None:
        """A step is done."""
        self._progress.take(said)
        if self._metrics is not None:
            self._metrics.write(self._progress, is_running=True)
        if self._as_json:
            click.echo(json.dumps({"event": "step", "job": self._job, **said}))
        elif self._bars is not None and "behind" in said:
            self._bars.show(self._job, self._progress)
        else:
            words = [f"{name.replace('_', ' ')} {_in_words(value)}" for name, value in said.items()]
            click.echo(f"{self._job}: {', '.join([*words, *self._progress.words()])}", err=True)

    def ended(self, *, succeeded: bool) -> None:
        """No step comes any more."""
        if self._bars is not None:
            self._bars.close()
        if self._metrics is not None:
            self._metrics.write(self._progress, is_running=False, succeeded=succeeded)

    def note(self, words: str) -> None:
        """Something to know, for people."""
        if not self._as_json:
            click.echo(f"{self._job}: {words}", err=True)

    def report(self, report: Any) -> None:
        """The end."""
        said = dataclasses.asdict(report)
        self._lines(said.pop("lines", []))
        if self._as_json:
            click.echo(json.dumps({"event": "report", "job": self._job, **said}))
            return
        for name, value in said.items():
            if not isinstance(value, (list, dict)):
                click.echo(f"{name.replace('_', ' ')}: {_in_words(value)}")

    def _lines(self, lines: list[dict[str, Any]]) -> None:
        """What a report lists: a table, or an object a line."""
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
        return " ".join("=".join("null" if part is None else str(part) for part in one.values()) for one in value)
    text = _in_words(value)
    return text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 1]}…"


def _in_words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
