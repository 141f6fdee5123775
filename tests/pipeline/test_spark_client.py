"""A sample of Spark's requests as a client, against Barnabas and Apache Kafka; `make spark-client` runs all scenarios."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from tests.pipeline.spark_client.runner import row_of, run_scenarios, select_scenarios, two_brokers
from tests.support.kafka import needs_kafka

SAMPLE = (
    "timestamps_by_partition",
    "a_recreated_topic_in_a_batch",
    "records_that_are_too_large",
    "isolation_levels",
    "offsets_beyond_the_log",
    "a_new_topic",
    "columns_of_the_sink",
    "headers_and_nulls",
    "max_offsets_of_a_trigger",
)


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[Any, Any]]:
    """Barnabas and Apache Kafka."""
    with two_brokers() as both:
        yield both


@needs_kafka
@pytest.mark.long
@pytest.mark.parametrize("name", SAMPLE)
def test_spark_finds_no_difference(spark: Any, brokers: tuple[Any, Any], name: str) -> None:
    (comparison,) = run_scenarios(spark, brokers, {name: select_scenarios()[name]})
    assert comparison.ours == comparison.theirs
    assert comparison.agree, comparison.ours


def test_the_docs_list_every_scenario() -> None:
    """docs/spark-client.md has a row for each, with its docstring."""
    page = (Path(__file__).parents[2] / "docs" / "spark-client.md").read_text()
    tables = {**select_scenarios(), **select_scenarios(clusters=True)}
    missing = [row for name, scenario in tables.items() if (row := row_of(name, scenario)) not in page]
    assert not missing, "\n".join(missing)
    assert sorted(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == sorted(tables)
