"""Offsets without a record, explained one by one: what transactions, compaction and retention leave behind.

RULES    1. A record that read_uncommitted shows and read_committed does not was aborted.
         2. What neither shows is looked up in the heads of the batches: a control batch is a transaction's marker; a data
            batch that has lost the record, or a hole in a compacted topic, is compaction; any other hole is unexplained.
         3. So many gaps are looked into; of the others it is said that nobody looked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from barnabas.pipeline.brokers import Brokers, Place, Span
from barnabas.pipeline.jobs.audit.comparison import gaps
from barnabas.pipeline.kafka.batch_lookup import BatchHeads, explain
from barnabas.pipeline.kafka.kafka_source import read_spans
from barnabas.pipeline.settings import BrokerSettings

MOST_GAPS = 5_000


@dataclass
class Gaps:
    """How many offsets have no committed record, by what became of them."""

    aborted: int = 0
    markers: int = 0
    compacted: int = 0
    unexplained: int = 0
    not_looked_into: int = 0


def explain_gaps(
    spark: SparkSession,
    settings: BrokerSettings,
    brokers: Brokers,
    spans: Mapping[Place, Span],
    committed: Mapping[Place, int],
) -> dict[Place, Gaps]:
    """Explain what is missing in spans that have so many committed records."""
    if not spans:
        return {}
    records = read_spans(spark, settings, spans, "read_uncommitted").select("topic", "partition", "offset")
    found = {place: Gaps(aborted=-committed[place]) for place in spans}
    for row in records.groupBy("topic", "partition").count().collect():
        found[Place(row["topic"], row["partition"])].aborted += row["count"]
    runs: dict[Place, list[Span]] = {place: [] for place in spans}
    for row in gaps(records.union(_edges(spark, spans))).orderBy("start").limit(MOST_GAPS).collect():
        runs[Place(row["topic"], row["partition"])].append(Span(row["start"], row["end"]))
    for place, span in spans.items():
        looked = _look(brokers, place, runs[place], found[place]) if brokers.is_plain else 0
        found[place].not_looked_into = span.end - span.start - committed[place] - found[place].aborted - looked
    return found


def _look(brokers: Brokers, place: Place, runs: list[Span], found: Gaps) -> int:
    """Ask the leader what covers the missing offsets; how many they are."""
    is_compacted = "compact" in brokers.topic_settings(place.topic)["cleanup.policy"]
    heads = BatchHeads(*brokers.leader(place))
    try:
        for gap in runs:
            explained = explain(heads.read(place, gap), gap)
            found.markers += explained.markers
            found.compacted += explained.removed + (explained.holes if is_compacted else 0)
            found.unexplained += 0 if is_compacted else explained.holes
    finally:
        heads.close()
    return sum(gap.end - gap.start for gap in runs)


def _edges(spark: SparkSession, spans: Mapping[Place, Span]) -> DataFrame:
    """Records that stand for the ends of the spans, so that gaps there are seen."""
    rows = [
        f"('{place.topic}', {place.partition}, {offset}L)"
        for place, span in spans.items()
        for offset in (span.start - 1, span.end)
    ]
    return spark.sql(f"select * from values {', '.join(rows)} as edges(topic, partition, offset)")  # noqa: S608 - our names
