"""A small sample of `make kill-pipeline`, on this machine: jobs that are killed, and then the rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from barnabas import Broker
from barnabas.pipeline.session import NoJava, java_version
from tests.pipeline.killing.archives import Archive
from tests.pipeline.killing.life import LOCAL, Life
from tests.pipeline.killing.story import Story
from tests.pipeline.killing.tables import Table
from tests.pipeline.killing.warm import WarmDriver
from tests.support.seeds import seed_of

pytestmark = pytest.mark.turn(1)


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmDriver]:
    """Spark, once for all stories."""
    try:
        java_version()
    except NoJava as missing:
        pytest.skip(str(missing))
    with WarmDriver(LOCAL) as driver:
        yield driver


@pytest.mark.parametrize("kind", [Archive, Table], ids=lambda kind: kind.name)
def test_what_is_killed_holds_every_record_once(kind: type[Story], warm: WarmDriver, tmp_path: Path) -> None:
    """archives.py and tables.py, all rules: killed by somebody, and before a step of its own commit."""
    seed = seed_of()
    print(f"seed {seed}")
    with Broker() as broker, Life(kind, tmp_path / "life", broker, seed, None, warm) as life:
        life.turn(("python",))
        life.turn((), die_at=9)
        life.finish()
