"""A sample of Spark's requests as a client, against Barnabas and Apache Kafka; `make spark-client` runs all scenarios."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from tests.pipeline.spark_client.runner import chosen, play, row_of, two_brokers
from tests.support.kafka import needs_kafka

BY_TURNS = (
    ("timestamps_by_partition", "a_topic_made_again_in_a_batch", "records_that_are_too_large"),
    ("isolation_levels", "offsets_beyond_the_log", "a_topic_that_appears"),
    ("columns_of_the_sink", "headers_and_nulls", "most_offsets_of_a_trigger"),
)


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[Any, Any]]:
    """Barnabas and Apache Kafka."""
    with two_brokers() as both:
        yield both


@needs_kafka
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) for place, names in enumerate(BY_TURNS) for name in names]
)
def test_spark_finds_no_difference(spark: Any, brokers: tuple[Any, Any], name: str) -> None:
    (played,) = play(spark, brokers, {name: chosen()[name]})
    assert played.ours == played.theirs
    assert played.agree, played.ours


def test_the_docs_list_every_scenario() -> None:
    """docs/spark-client.md has a row for each, with its docstring."""
    page = (Path(__file__).parents[2] / "docs" / "spark-client.md").read_text()
    tables = {**chosen(), **chosen(clusters=True)}
    missing = [row for name, scenario in tables.items() if (row := row_of(name, scenario)) not in page]
    assert not missing, "\n".join(missing)
    assert page.count("\n| `") == len(tables)
