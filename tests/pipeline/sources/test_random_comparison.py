"""A random history on each broker, with random queries: a sample of `python -m tests.pipeline.sources.random_comparison`.

HISTORIES_SEED repeats a run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from barnabas import Broker
from tests.pipeline.sources.random_comparison import SETTINGS, run
from tests.support.kafka import ApacheKafka, needs_kafka
from tests.support.seeds import seed_of

pytestmark = pytest.mark.long

SEED = seed_of("HISTORIES_SEED")
QUESTIONS = 9
"""The tenth query would start Spark workers; test_live_logs.py covers that."""


@pytest.mark.parametrize("kind", [Broker, pytest.param(ApacheKafka, marks=needs_kafka)])
def test_both_sources_give_the_same_results(spark: Any, tmp_path: Path, kind: Any) -> None:
    print(f"replay with HISTORIES_SEED={SEED}")
    with kind(settings=SETTINGS, data_dir=tmp_path / "data") as broker:
        assert not run(spark, broker, SEED, 1, QUESTIONS)
