"""A time budget for a test run: CI plays as much of the long tests as fits, a different share for each commit.

RULES    1. `--budget-s N` starts no test N seconds after the run began; each test left over is skipped with that reason.
         2. `--first PATH` (repeatable) runs these test files first: CI names the ones that the last commits touch.
         3. The other files start at a place that SEED chooses and wrap around, so that commits take different shares.
         4. The end of the run lists the files of which a test was not played.
"""

from __future__ import annotations

import os
import time
from typing import Final

import pytest

NOT_PLAYED: Final = "not played: the time budget of this run is used up"
_DEADLINE: Final = "BARNABAS_TESTS_DEADLINE"


class TimeBudget:
    """A pytest plugin; `pytest-xdist` workers share the deadline through the environment."""

    def __init__(self, config: pytest.Config) -> None:
        budget_s = config.getoption("budget_s")
        self._first: list[str] = config.getoption("first")
        self._unplayed: dict[str, int] = {}
        if budget_s is not None:
            os.environ.setdefault(_DEADLINE, str(time.time() + budget_s))
        self._deadline_s = float(os.environ.get(_DEADLINE, "inf"))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Order the files (rules 2 and 3); the tests of one file stay together."""
        if self._deadline_s == float("inf"):
            return
        files = list(dict.fromkeys(path_of(item) for item in items))
        order = {
            path: place for place, path in enumerate(rotated(files, int(os.environ.get("SEED") or 0), self._first))
        }
        items.sort(key=lambda item: order[path_of(item)])

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip what starts too late (rule 1)."""
        if time.time() > self._deadline_s:
            pytest.skip(NOT_PLAYED)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count what was not played."""
        if report.skipped and NOT_PLAYED in str(report.longrepr):
            path = report.nodeid.split("::")[0]
            self._unplayed[path] = self._unplayed.get(path, 0) + 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List it (rule 4)."""
        if self._unplayed:
            terminalreporter.write_sep("-", f"not played for lack of time: {sum(self._unplayed.values())} tests")
            for path, count in sorted(self._unplayed.items()):
                terminalreporter.write_line(f"{count:5d} {path}")


def path_of(item: pytest.Item) -> str:
    """The test file of an item, relative to the repository."""
    return item.nodeid.split("::")[0]


def rotated(files: list[str], seed: int, first: list[str]) -> list[str]:
    """The files in the order of rules 2 and 3."""
    start = seed % len(files) if files else 0
    rest = files[start:] + files[:start]
    return [path for path in rest if path in first] + [path for path in rest if path not in first]


def add_options(parser: pytest.Parser) -> None:
    """The command-line options of rules 1 and 2."""
    group = parser.getgroup("time budget")
    group.addoption("--budget-s", type=float, default=None, help="start no test N seconds after the run began")
    group.addoption("--first", action="append", default=[], help="a test file to run before all others")
