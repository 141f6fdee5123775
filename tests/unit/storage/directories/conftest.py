"""Fixture: a log manager."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.directories.log_manager import LogManager
from tests.unit.storage.directories.test_log_manager import started


@pytest.fixture
def manager(tmp_path: Path) -> LogManager:
    """A manager with one empty log directory."""
    return started(tmp_path)
