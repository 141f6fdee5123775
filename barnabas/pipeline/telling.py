"""What a job says while it runs and at its end: lines for people, or a JSON object a line for programs.

RULES    1. With --json standard output carries JSON lines only: one for each step and each line that a report lists, the last
            one is the report.
         2. For people the steps go to standard error and the report to standard output.
         3. The time that is left is what is behind, by the rate of the steps so far.
NOT HERE What is reported (`jobs/`).
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

WIDE = 200
LONGEST_CELL = 120


class Telling:
    """One job's voice."""

    def __init__(self, job: str, *, as_json: bool) -> None:
        self._job = job
        self._as_json = as_json
        self._seconds = 0.0
        self._records = 0

    def step(self, said: dict[str, Any]) -> None:
        """A step is done."""
        if self._as_json:
            click.echo(json.dumps({"event": "step", "job": self._job, **said}))
            return
        self._records += int(said.get("records", 0))
        words = [f"{name.replace('_', ' ')} {_in_words(value)}" for name, value in said.items()]
        self._seconds += float(said.get("seconds", 0.0))
        if self._records and self._seconds:
            rate = self._records / self._seconds
            words.append(f"{rate:,.0f} records/s")
            if said.get("behind"):
                words.append(f"about {said['behind'] / rate:,.0f} s left")
        click.echo(f"{self._job}: {', '.join(words)}", err=True)

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
