"""How far a job is, from the steps that it tells of: rate, what is behind, when it ends; as a bar, and as metrics in a file.

RULES    1. The rate is that of the steps so far: their records by their seconds. What is left takes what is behind, by it.
         2. The metrics are written at the start, after every step, and at the end, which says how it ended.
         3. Metrics that cannot be written cost the news and never the job: it is logged.
NOT HERE Lines for people and programs (`reporter.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn
from rich.progress import Progress as Lines

from barnabas.pipeline.reporting.metrics_file import Sample, metrics_text, replace_file

ADDED_UP = ("records", "bytes", "seconds", "malformed", "dead_letters")
PREFIX = "barnabas_job_"

log = logging.getLogger(__name__)


class Progress:
    """What the steps of one job come to."""

    def __init__(self) -> None:
        self.steps = 0
        self.totals: dict[str, float] = {}
        self.behind: int | None = None

    def take(self, said: Mapping[str, Any]) -> None:
        """A step is done."""
        self.steps += 1
        for name in ADDED_UP:
            if name in said:
                self.totals[name] = self.totals.get(name, 0) + said[name]
        self.behind = said.get("behind", self.behind)

    @property
    def rate(self) -> float | None:
        """Records in a second (rule 1)."""
        records, seconds = self.totals.get("records", 0), self.totals.get("seconds", 0)
        return records / seconds if records and seconds else None

    @property
    def left_s(self) -> float | None:
        """The seconds that are left; None when nobody knows."""
        return self.behind / self.rate if self.behind and self.rate else None

    def words(self) -> list[str]:
        """The same for people."""
        said = [f"{self.rate:,.0f} records/s"] if self.rate else []
        return [*said, f"about {self.left_s:,.0f} s left"] if self.left_s is not None else said


class Bars:
    """Lines of a terminal, one for each name, that are drawn anew after each step."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[words]}"),
        )
        self._lines = Lines(*columns, console=console, auto_refresh=False)
        self._tasks: dict[str, TaskID] = {}

    def show(self, name: str, progress: Progress) -> None:
        """Draw them."""
        if name not in self._tasks:
            self._tasks[name] = self._lines.add_task(name, total=None, words="")
        done, behind = progress.totals.get("records", 0), progress.behind
        words = [f"{done:,.0f} records", *([] if behind is None else [f"{behind:,} behind"]), *progress.words()]
        total = None if behind is None else done + behind
        self._lines.start()
        self._lines.update(self._tasks[name], completed=done, total=total, words=", ".join(words), refresh=True)

    def close(self) -> None:
        """Leave the last lines as they are."""
        self._lines.stop()


class Metrics:
    """The file."""

    def __init__(self, path: Path, job: str) -> None:
        self._path = path
        self._labels = {"job": job}
        self.write(Progress(), is_running=True)

    def write(self, progress: Progress, *, is_running: bool, succeeded: bool | None = None) -> None:
        """Put it in its place (rules 2 and 3)."""
        figures = [*_figures(progress), ("running", int(is_running)), ("updated_timestamp_seconds", time.time())]
        if succeeded is not None:
            figures.append(("succeeded", int(succeeded)))
        samples = [Sample(PREFIX + name, self._labels, value) for name, value in figures]
        try:
            replace_file(self._path, metrics_text(samples))
        except OSError as failure:
            log.warning("The metrics could not be written: %s", failure)


def _figures(progress: Progress) -> Iterator[tuple[str, float]]:
    yield "steps_total", progress.steps
    for name in ADDED_UP:
        yield f"{name}_total", progress.totals.get(name, 0)
    for name, value in (("records_per_second", progress.rate), ("records_behind", progress.behind)):
        if value is not None:
            yield name, value
    if progress.left_s is not None:
        yield "seconds_left", progress.left_s
