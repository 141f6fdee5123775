"""Explains offsets without a record: transactions, compaction, retention.

RULES    1. A record that is visible to read_uncommitted only was aborted.
         2. Other missing offsets are looked up in batch headers: a control batch is a transaction marker; a data batch without
            the record, or a hole in a compacted topic, is compaction; any other hole is unexplained.
         3. At most MOST_GAPS gaps are looked up. The others are counted as not looked into.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.brokers import Brokers, Span
from barnabas.pipeline.jobs.audit.comparison import gaps
from barnabas.pipeline.kafka.batch_lookup import BatchHeaderReader, count_gap
from barnabas.pipeline.kafka.kafka_source import read_spans
from barnabas.pipeline.settings import BrokerSettings

MOST_GAPS = 5_000


@dataclass
class Gaps:
    """The number of offsets without a committed record, by cause; `not_looked_into` is no fault (rule 3)."""

    aborted: int = 0
    markers: int = 0
    compacted: int = 0
    unexplained: int = 0
    not_looked_into: int = 0


def explain_gaps(
    spark: SparkSession,
    settings: BrokerSettings,
    brokers: Brokers,
    spans: Mapping[TopicPartition, Span],
    committed: Mapping[TopicPartition, int],
) -> dict[TopicPartition, Gaps]:
    """Explains the missing offsets of spans; `committed` is the number of committed records of each."""
    if not spans:
        return {}
    records = read_spans(spark, settings, spans, "read_uncommitted").select("topic", "partition", "offset")
    gaps_of = {tp: Gaps(aborted=-committed[tp]) for tp in spans}
    for row in records.groupBy("topic", "partition").count().collect():
        gaps_of[TopicPartition.of(row)].aborted += row["count"]
    runs: dict[TopicPartition, list[Span]] = {tp: [] for tp in spans}
    for row in gaps(records.union(_edges(spark, spans))).orderBy("start").limit(MOST_GAPS).collect():
        runs[TopicPartition.of(row)].append(Span(row["start"], row["end"]))
    for tp, span in spans.items():
        inspected = _count_from_batches(brokers, tp, runs[tp], gaps_of[tp])
        gaps_of[tp].not_looked_into = span.end - span.start - committed[tp] - gaps_of[tp].aborted - inspected
    return gaps_of


def _count_from_batches(brokers: Brokers, tp: TopicPartition, runs: list[Span], gaps_of: Gaps) -> int:
    """Fetches the batches that cover the gaps from the leader; returns the number of offsets inspected."""
    is_compacted = "compact" in brokers.topic_configs(tp.topic)["cleanup.policy"]
    headers = BatchHeaderReader(*brokers.leader(tp), brokers.security)
    try:
        for gap in runs:
            explained = count_gap(headers.read(tp, gap), gap)
            gaps_of.markers += explained.markers
            gaps_of.compacted += explained.removed + (explained.holes if is_compacted else 0)
            gaps_of.unexplained += 0 if is_compacted else explained.holes
    finally:
        headers.close()
    return sum(gap.end - gap.start for gap in runs)


def _edges(spark: SparkSession, spans: Mapping[TopicPartition, Span]) -> DataFrame:
    """Pseudo records at both ends of the spans, so that gaps there are found."""
    rows = [
        f"('{tp.topic}', {tp.partition}, {offset}L)"
        for tp, span in spans.items()
        for offset in (span.start - 1, span.end)
    ]
    return spark.sql(f"select * from values {', '.join(rows)} as edges(topic, partition, offset)")  # noqa: S608 - our names
