"""What every test run does, whichever tests it runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.support.stall_lines import StallLines


def pytest_configure(config: pytest.Config) -> None:
    """Show where brokers stood still."""
    plugin = StallLines()
    plugin.attach()
    config.pluginmanager.register(plugin, "stall-lines")


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
