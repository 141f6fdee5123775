"""The progress of a job, computed from its steps: rate, lag and remaining time; as a bar, and as metrics in a file.

RULES    1. The rate is the records of all steps divided by their seconds. The remaining time is the lag divided by the rate.
         2. The metrics are written at the start, after each step, and at the end with the result.
         3. If the file cannot be written, a warning is logged; the job continues.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn
from rich.progress import Progress as RichProgress

from barnabas.pipeline.reporting.metrics_file import Sample, write_metrics

SUMMED_FIELDS = ("records", "bytes", "seconds", "malformed", "dead_letters")
PREFIX = "barnabas_job_"

log = logging.getLogger(__name__)


class JobProgress:
    """The sums over a job's steps."""

    def __init__(self) -> None:
        self.steps = 0
        self.totals: dict[str, float] = {}
        self.behind: int | None = None

    def add_step(self, step: Mapping[str, Any]) -> None:
        """Adds a completed step."""
        self.steps += 1
        for name in SUMMED_FIELDS:
            if name in step:
                self.totals[name] = self.totals.get(name, 0) + step[name]
        self.behind = step.get("behind", self.behind)

    @property
    def rate(self) -> float | None:
        """Records per second (rule 1)."""
        records, seconds = self.totals.get("records", 0), self.totals.get("seconds", 0)
        return records / seconds if records and seconds else None

    @property
    def remaining_s(self) -> float | None:
        """The remaining seconds; None if unknown."""
        return self.behind / self.rate if self.behind and self.rate else None

    def summary(self) -> list[str]:
        """Returns rate and remaining time as text."""
        parts = [f"{self.rate:,.0f} records/s"] if self.rate else []
        return [*parts, f"about {self.remaining_s:,.0f} s left"] if self.remaining_s is not None else parts


class Bars:
    """Progress bars in a terminal, one per name, redrawn after each step."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[summary]}"),
        )
        self._display = RichProgress(*columns, console=console, auto_refresh=False)
        self._tasks: dict[str, TaskID] = {}

    def show(self, name: str, progress: JobProgress) -> None:
        """Redraws a bar."""
        if name not in self._tasks:
            self._tasks[name] = self._display.add_task(name, total=None, summary="")
        done, behind = progress.totals.get("records", 0), progress.behind
        summary = [f"{done:,.0f} records", *([] if behind is None else [f"{behind:,} behind"]), *progress.summary()]
        total = None if behind is None else done + behind
        self._display.start()
        self._display.update(self._tasks[name], completed=done, total=total, summary=", ".join(summary), refresh=True)

    def close(self) -> None:
        """Stops; the last state stays on the screen."""
        self._display.stop()


class Metrics:
    """The metrics file of a job."""

    def __init__(self, path: Path, job: str) -> None:
        self._path = path
        self._labels = {"job": job}
        self.write(JobProgress(), is_running=True)

    def write(self, progress: JobProgress, *, is_running: bool, succeeded: bool | None = None) -> None:
        """Replaces the file (rules 2 and 3)."""
        figures = [*_figures(progress), ("running", int(is_running)), ("updated_timestamp_seconds", time.time())]
        if succeeded is not None:
            figures.append(("succeeded", int(succeeded)))
        try:
            write_metrics(self._path, [Sample(PREFIX + name, self._labels, value) for name, value in figures])
        except OSError as failure:
            log.warning("The metrics could not be written: %s", failure)


def _figures(progress: JobProgress) -> Iterator[tuple[str, float]]:
    yield "steps_total", progress.steps
    for name in SUMMED_FIELDS:
        yield f"{name}_total", progress.totals.get(name, 0)
    for name, value in (("records_per_second", progress.rate), ("records_behind", progress.behind)):
        if value is not None:
            yield name, value
    if progress.remaining_s is not None:
        yield "seconds_left", progress.remaining_s
