"""What every test run does, whichever tests it runs."""

from __future__ import annotations

import pytest

from tests.support.stall_lines import StallLines


def pytest_configure(config: pytest.Config) -> None:
    """Show where brokers stood still."""
    plugin = StallLines()
    plugin.attach()
    config.pluginmanager.register(plugin, "stall-lines")
