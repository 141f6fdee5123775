"""What every test run does, whichever tests it runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.support.stall_lines import StallLines
from tests.support.turns import Turns, day_of_the_run, turn_of


def pytest_configure(config: pytest.Config) -> None:
    """Show where brokers stood still; have long tests take turns."""
    plugin = StallLines()
    plugin.attach()
    config.pluginmanager.register(plugin, "stall-lines")
    config.addinivalue_line(
        "markers", "turn(number): a long test that is played on one day of six (tests/support/turns.py)"
    )
    config.pluginmanager.register(Turns(turn_of(day_of_the_run())), "turns")


@pytest.fixture(autouse=True)
def _levels_stay() -> Iterator[None]:
    """A level that a test gives to a logger (KIP-412) is not the next test's."""
    before = {name: logger.level for name, logger in _loggers().items()}
    yield
    for name, logger in _loggers().items():
        logger.setLevel(before.get(name, logging.NOTSET))


def _loggers() -> dict[str, logging.Logger]:
    known = logging.root.manager.loggerDict.items()
    ours = {name: one for name, one in known if name.startswith("barnabas") and isinstance(one, logging.Logger)}
    return {"root": logging.root, **ours}
