"""A small sample of `make kill-pipeline` on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from barnabas import Broker
from tests.pipeline.killing.archives import Archive
from tests.pipeline.killing.kill_run import LOCAL, KillRun
from tests.pipeline.killing.scenario import Scenario
from tests.pipeline.killing.tables import Table
from tests.pipeline.killing.warm_driver import WarmDriver
from tests.support.seeds import seed_of

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def warm_driver(java: None) -> Iterator[WarmDriver]:
    """Spark, started once."""
    with WarmDriver(LOCAL) as driver:
        yield driver


@pytest.mark.parametrize("kind", [Archive, Table], ids=lambda kind: kind.name)
def test_a_killed_job_keeps_every_record_once(kind: type[Scenario], warm_driver: WarmDriver, tmp_path: Path) -> None:
    seed = seed_of()
    print(f"seed {seed}")
    with Broker() as broker, KillRun(kind, tmp_path / "life", broker, seed, None, warm_driver) as kill_run:
        kill_run.run_job(("python",))
        kill_run.run_job((), kill_at=9)
        kill_run.finish()
