"""The order in which test files are run; pytest-xdist takes them in this order (`--no-loadscope-reorder`).

RULES    1. Files whose tests mostly wait for processes are spread evenly among those that compute, so that one worker
            computes while another one waits.
         2. With a time budget (time_budget.py) the order starts at a file that SEED chooses and wraps around, so that commits
            take different shares of the tests.
         3. `--first PATH` (repeatable) runs these files before all others: CI names the ones that the last commits touch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import pytest

_WITH_PROCESSES: Final = ("cli", "conformance", "exactly_once", "packaging", "pipeline", "process")


class FileOrder:
    """A pytest plugin."""

    def __init__(self, config: pytest.Config) -> None:
        self._first: list[str] = config.getoption("first")
        self._is_rotated = config.getoption("budget_s") is not None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Order the files; the tests of one file stay together."""
        files = spread(list(dict.fromkeys(path_of(item.nodeid) for item in items)))
        if self._is_rotated:
            files = rotated(files, int(os.environ.get("SEED") or 0))
        files.sort(key=lambda path: path not in self._first)
        places = {path: place for place, path in enumerate(files)}
        items.sort(key=lambda item: places[path_of(item.nodeid)])


def path_of(node_id: str) -> str:
    """The test file of a test, relative to the repository."""
    return node_id.split("::", maxsplit=1)[0]


def spread(files: Sequence[str]) -> list[str]:
    """The files in the order of rule 1."""
    waiting = [path for path in files if path.split("/")[1] in _WITH_PROCESSES]
    computing = [path for path in files if path not in waiting]
    placed = [((place + 0.5) / len(group), path) for group in (waiting, computing) for place, path in enumerate(group)]
    return [path for _, path in sorted(placed)]


def rotated(files: Sequence[str], seed: int) -> list[str]:
    """The files in the order of rule 2."""
    start = seed % len(files) if files else 0
    return [*files[start:], *files[:start]]


def add_options(parser: pytest.Parser) -> None:
    """The option of rule 3."""
    parser.getgroup("order").addoption(
        "--first", action="append", default=[], help="a test file to run before all others"
    )
