"""Reads offset spans of topics through Spark's Kafka source.

RULES    1. Committed records only by default, with headers. Lost data fail the query.
         2. Client settings given by the user are passed to Spark's clients.
         3. Internal topics are refused: Spark finds no partitions of them.
NOT HERE The choice of offsets (`jobs/`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.brokers import Span
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.settings import BrokerSettings
from barnabas.pipeline.sources.segment_options import INTERNAL
from barnabas.pipeline.store.archive_reader import COLUMNS, no_records


def read_spans(
    spark: SparkSession,
    settings: BrokerSettings,
    spans: Mapping[TopicPartition, Span],
    isolation: str = "read_committed",
) -> DataFrame:
    """Returns the records of these offsets, with the Kafka source's columns."""
    non_empty = {tp: span for tp, span in spans.items() if span.start < span.end}
    if not non_empty:
        return no_records(spark).select(*COLUMNS)
    if internal := sorted({tp.topic for tp in non_empty} & INTERNAL):
        raise JobError(
            f"{internal[0]} is an internal topic, which Spark's Kafka source does not read: --log-dir of search and stats "
            "reads its files."
        )
    starts = _by_topic({tp: span.start for tp, span in non_empty.items()})
    options = {
        "kafka.bootstrap.servers": settings.bootstrap,
        **{f"kafka.{name}": value for name, value in settings.client_settings().items()},
        "kafka.isolation.level": isolation,
        "assign": json.dumps({topic: sorted(map(int, offsets)) for topic, offsets in starts.items()}),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(_by_topic({tp: span.end for tp, span in non_empty.items()})),
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        "minPartitions": str(spark.sparkContext.defaultParallelism),
    }
    return spark.read.format("kafka").options(**options).load().select(*COLUMNS)


def _by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    topics: dict[str, dict[str, int]] = {}
    for tp, offset in offsets.items():
        topics.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return topics
