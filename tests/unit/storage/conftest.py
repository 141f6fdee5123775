"""What the tests of storage share: logs on both engines, and what storage says."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from storage.log import Log
from tests.support.logs import Engines, MakeLog, log_at, scattered, segments


@pytest.fixture(autouse=True)
def _heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever another test has done with the daemon's loggers."""
    monkeypatch.setattr(logging.root.manager, "disable", 0)
    for name in ("barnabas", "barnabas.storage"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
        monkeypatch.setattr(logging.getLogger(name), "disabled", False)


@pytest.fixture(params=[segments, scattered], ids=["segments", "scattered"])
def engines(request: pytest.FixtureRequest) -> Engines:
    found: Engines = request.param
    return found


@pytest.fixture
def make(tmp_path: Path, engines: Engines) -> MakeLog:
    """Make the log of t-0 as a new process sees it."""

    def made(**options: object) -> Log:
        return log_at(tmp_path, engines=engines, **options)  # type: ignore[arg-type]

    return made
