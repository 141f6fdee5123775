"""Selects records by time and by offsets; collects rows in the driver.

RULES    1. If the JVM is killed while it sends rows, PySpark takes the end of the stream for the end of the rows and raises no
            error. Collected rows are valid only if the JVM answers a later call.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.brokers import Span

ISO = "yyyy-MM-dd'T'HH:mm:ss.SSS"
"""The format of timestamps in reports, in UTC. Spark formats them, since Python has no year after 9999."""


def between(records: DataFrame, start_ms: int | None, end_ms: int | None) -> DataFrame:
    """Returns the records with a timestamp at or after the start and before the end; None is no limit."""
    ms = f.unix_millis("timestamp")
    if start_ms is not None:
        records = records.where(ms >= f.lit(start_ms))
    return records if end_ms is None else records.where(ms < f.lit(end_ms))


def in_spans(records: DataFrame, spans: Mapping[TopicPartition, Span]) -> DataFrame:
    """Returns the records with these offsets. Topics and the outermost offsets let Spark skip files."""
    if not spans:
        return records.where("false")
    name, offset = f.concat_ws("-", "topic", f.col("partition").cast("string")), f.col("offset")
    start_of, end_of = (
        f.create_map(*(f.lit(part) for tp, span in sorted(spans.items()) for part in (str(tp), getattr(span, bound))))
        for bound in Span._fields
    )
    near = (offset >= min(span.start for span in spans.values())) & (offset < max(span.end for span in spans.values()))
    is_inside = (offset >= start_of[name]) & (offset < end_of[name])
    return records.where(f.col("topic").isin(sorted({tp.topic for tp in spans})) & near & is_inside)


def collect_rows(records: DataFrame) -> list[Row]:
    """Returns every row, or raises (rule 1)."""
    rows = records.collect()
    check_jvm_alive(records.sparkSession)
    return rows


def check_jvm_alive(spark: SparkSession) -> None:
    """Raises if the JVM does not answer."""
    spark.sparkContext._jsc.version()  # noqa: SLF001 - a cheap call without side effects
