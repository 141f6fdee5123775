"""Long tests take turns: of those marked `turn(0)` to `turn(5)`, a run plays one sixth.

RULES    1. Which sixth is said by TURN (0 to 5, or all), else by the day, so that six days in a row play all.
            The day is that on which the run began: its processes are told, so that midnight does not part them.
         2. What another day plays is skipped with a reason; named on the command line, by file or by -k, it is played.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Final

import pytest

TURNS: Final = 6
ALL: Final = "all"
_DAY: Final = "DAY_OF_THE_RUN"


class Turns:
    """A plugin of pytest."""

    def __init__(self, turn: str) -> None:
        self._turn = turn

    def pytest_report_header(self) -> str:
        """Say which sixth it is."""
        return f"long tests: turn {self._turn} of {TURNS} (TURN=all plays all)"

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Skip what is not its turn."""
        if self._turn == ALL or config.getoption("keyword") or _is_named(config):
            return
        for item in items:
            mark = item.get_closest_marker("turn")
            if mark is not None and str(mark.args[0]) != self._turn:
                item.add_marker(pytest.mark.skip(reason=f"another day's turn: make test TURN={mark.args[0]}"))


def day_of_the_run() -> int:
    """Days are counted from the first of the year 1."""
    return int(os.environ.setdefault(_DAY, str(datetime.now(UTC).toordinal())))


def turn_of(day: int) -> str:
    """The turn of a run that began on this day (rule 1)."""
    said = os.environ.get("TURN") or str(day % TURNS)
    if said != ALL and said not in map(str, range(TURNS)):
        raise pytest.UsageError(f"TURN is 0 to {TURNS - 1} or all, not {said!r}")
    return said


def _is_named(config: pytest.Config) -> bool:
    return any(".py" in str(word) for word in config.args)
