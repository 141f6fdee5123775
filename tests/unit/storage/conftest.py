"""Fixtures: logs on all engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.log.log import Log
from tests.support.logs import Engines, MakeLog, commitlog, log_at, scattered, segments


@pytest.fixture(params=[segments, scattered, commitlog], ids=["segments", "scattered", "commitlog"])
def engines(request: pytest.FixtureRequest) -> Engines:
    found: Engines = request.param
    return found


@pytest.fixture
def make(tmp_path: Path, engines: Engines) -> MakeLog:
    """Creates the log of t-0 as a new process does."""

    def made(**options: object) -> Log:
        return log_at(tmp_path, engines=engines, **options)  # type: ignore[arg-type]

    return made


@pytest.fixture
def log(make: MakeLog) -> Log:
    """An empty log of t-0."""
    return make()
