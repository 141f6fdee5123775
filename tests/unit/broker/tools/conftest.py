"""A stopped node's data directory for the tests of the tools, and commit logs with small files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import storage.directories.commit_logs
from tests.support.data_directory import COMMIT_LOG_FILE_BYTES, make_data_directory


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undamaged directory with all logs in segments; no test changes it."""
    path = tmp_path_factory.mktemp("tools") / "data"
    make_data_directory(path)
    return path


@pytest.fixture
def data(whole: Path, tmp_path: Path) -> Path:
    """A copy of it to change."""
    return shutil.copytree(whole, tmp_path / "data")


@pytest.fixture(scope="module")
def small_files() -> Iterator[None]:
    """New files of commit logs are small, also those that a command creates without a setting."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage.directories.commit_logs, "FILE_BYTES", COMMIT_LOG_FILE_BYTES)
        yield
