"""A random history on each broker, and random questions: `python -m tests.pipeline.sources.histories` asks more of them.

HISTORIES_SEED has the same done again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from barnabas import Broker
from tests.pipeline.sources.histories import SETTINGS, run
from tests.support.kafka import ApacheKafka, needs_kafka
from tests.support.seeds import seed_of

pytestmark = pytest.mark.turn(4)

SEED = seed_of("HISTORIES_SEED")
QUESTIONS = 9
"""The tenth would start workers of Spark for the segment source; test_segment_source.py has those."""


@pytest.mark.parametrize("kind", [Broker, pytest.param(ApacheKafka, marks=needs_kafka)])
def test_the_segment_source_answers_as_the_kafka_source(spark: Any, tmp_path: Path, kind: Any) -> None:
    """histories.py: the same rows, or an error from both; and the same rows from the files alone."""
    print(f"replay with HISTORIES_SEED={SEED}")
    with kind(settings=SETTINGS, data_dir=tmp_path / "data") as broker:
        assert not run(spark, broker, SEED, 1, QUESTIONS)
