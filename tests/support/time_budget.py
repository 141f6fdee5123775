"""A time budget for a test run: CI plays as much of the long tests as fits (file_order.py: a different share each time).

RULES    1. `--budget-s N` starts no test N seconds after the run began; each test left over is skipped with that reason.
         2. The end of the run lists the files of which a test was not played.
"""

from __future__ import annotations

import os
import time
from typing import Final

import pytest

from tests.support.file_order import path_of

NOT_PLAYED: Final = "not played: the time budget of this run is used up"
_DEADLINE: Final = "BARNABAS_TESTS_DEADLINE"


class TimeBudget:
    """A pytest plugin; `pytest-xdist` workers share the deadline through the environment."""

    def __init__(self, config: pytest.Config) -> None:
        budget_s = config.getoption("budget_s")
        self._unplayed: dict[str, int] = {}
        if budget_s is not None:
            os.environ.setdefault(_DEADLINE, str(time.time() + budget_s))
        self._deadline_s = float(os.environ.get(_DEADLINE, "inf"))

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip what starts too late (rule 1)."""
        if time.time() > self._deadline_s:
            pytest.skip(NOT_PLAYED)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count what was not played."""
        if report.skipped and NOT_PLAYED in str(report.longrepr):
            path = path_of(report.nodeid)
            self._unplayed[path] = self._unplayed.get(path, 0) + 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List it (rule 2)."""
        if self._unplayed:
            terminalreporter.write_sep("-", f"not played for lack of time: {sum(self._unplayed.values())} tests")
            for path, count in sorted(self._unplayed.items()):
                terminalreporter.write_line(f"{count:5d} {path}")


def add_options(parser: pytest.Parser) -> None:
    """The option of rule 1."""
    group = parser.getgroup("time budget")
    group.addoption("--budget-s", type=float, default=None, help="start no test N seconds after the run began")
