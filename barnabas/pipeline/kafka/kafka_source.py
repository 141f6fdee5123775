"""Spans of topics as a DataFrame: Spark's Kafka source, asked for exactly the offsets that are wanted.

RULES    1. Only committed records, with their headers; lost data stop the query.
         2. A client's setting that the user names goes to Spark's clients too.
NOT HERE Which offsets (`jobs/`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from barnabas.pipeline.brokers import Place, Span
from barnabas.pipeline.settings import BrokerSettings
from barnabas.pipeline.store.archive_reader import COLUMNS, no_records


def read_spans(
    spark: SparkSession, settings: BrokerSettings, spans: Mapping[Place, Span], isolation: str = "read_committed"
) -> DataFrame:
    """The records of these offsets, with the Kafka source's columns."""
    wanted = {place: span for place, span in spans.items() if span.start < span.end}
    if not wanted:
        return no_records(spark).select(*COLUMNS)
    options = {
        "kafka.bootstrap.servers": settings.bootstrap,
        **{f"kafka.{name}": value for name, value in settings.client_settings().items()},
        "kafka.isolation.level": isolation,
        "assign": json.dumps(_by_topic({place: place.partition for place in wanted}, as_list=True)),
        "startingOffsets": json.dumps(_by_topic({place: span.start for place, span in wanted.items()})),
        "endingOffsets": json.dumps(_by_topic({place: span.end for place, span in wanted.items()})),
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        "minPartitions": str(spark.sparkContext.defaultParallelism),
    }
    return spark.read.format("kafka").options(**options).load().select(*COLUMNS)


def _by_topic(numbers: Mapping[Place, int], *, as_list: bool = False) -> dict[str, object]:
    topics: dict[str, dict[str, int]] = {}
    for place, number in numbers.items():
        topics.setdefault(place.topic, {})[str(place.partition)] = number
    return {topic: sorted(table.values()) for topic, table in topics.items()} if as_list else dict(topics)
