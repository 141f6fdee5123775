"""Checks malformed records: the counts of each round, and the dead letters.

RULES    1. Malformed records stay in the archive. Their number per round must equal the entry's number.
         2. If a round sent dead letters, each of its malformed records has one in the entry's topic. Duplicates are allowed:
            another archive of the same topic may have sent them.
         3. If the dead-letter topic was deleted, trimmed or compacted, missing letters are not faults; the report says so.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.brokers import Brokers, Span
from barnabas.pipeline.jobs.dead_letters import ORIGIN, origin_of
from barnabas.pipeline.kafka.kafka_source import read_spans
from barnabas.pipeline.settings import BrokerSettings
from barnabas.pipeline.store.manifest import Entry

STARTS = "topic string, partition int, offset bigint, round bigint"


@dataclass
class DeadLetterTopic:
    """The dead letters in one topic; `missing` is None if the topic no longer has all its records."""

    topic: str
    sent: int
    missing: int | None = None


class AuditedMalformed:
    """The malformed records of an archive."""

    def __init__(
        self, spark: SparkSession, rounds: Collection[Entry], malformed: DataFrame, topics: Collection[str]
    ) -> None:
        self._spark = spark
        self._rounds = [entry for entry in rounds if all(read.topic in topics for read in entry.ranges)]
        self._malformed = _with_round(spark, rounds, malformed)
        self.count = 0
        self.miscounted: list[str] = []
        self.dead_letter_topics: list[DeadLetterTopic] = []
        self.missing: list[dict[str, Any]] = []

    def check(self, settings: BrokerSettings, brokers: Brokers, max_examples: int) -> None:
        """Compares counts and dead letters; keeps at most `max_examples` missing ones."""
        self._malformed.cache()
        try:
            found = {row["round"]: row["count"] for row in self._malformed.groupBy("round").count().collect()}
            self.count = sum(found.values())
            for entry in self._rounds:
                if (count := found.get(entry.sequence, 0)) != entry.malformed:
                    message = f"counted {entry.malformed} malformed records, and the archive has {count} of its offsets"
                    self.miscounted.append(f"round {entry.sequence} {message}")
            for topic in sorted({entry.dead_letters_topic for entry in self._rounds} - {""}):
                self.dead_letter_topics.append(self._check_letters(topic, settings, brokers, max_examples))
        finally:
            self._malformed.unpersist()

    def check_not_decoded(self) -> None:
        """Reports each round of an undecoded archive that counted malformed records."""
        for entry in self._rounds:
            if entry.malformed:
                message = f"counted {entry.malformed} malformed records, and nothing is decoded"
                self.miscounted.append(f"round {entry.sequence} {message}")

    def faults(self) -> list[str]:
        """Returns the faults as sentences."""
        missing = [
            f"{topic.missing} dead letters of {topic.topic}" for topic in self.dead_letter_topics if topic.missing
        ]
        return [*self.miscounted, *missing]

    def lines(self) -> list[dict[str, Any]]:
        """Returns the fault lines of the report."""
        records = [f"{row['topic']}-{row['partition']}, offset {row['offset']}" for row in self.missing]
        return [
            *({"fault": "miscounted", "where": message} for message in self.miscounted),
            *({"fault": "dead letter missing", "where": message} for message in records),
        ]

    def _check_letters(
        self, topic: str, settings: BrokerSettings, brokers: Brokers, max_examples: int
    ) -> DeadLetterTopic:
        """Compares the letters of a topic with the malformed records of its rounds (rule 2)."""
        rounds = [entry for entry in self._rounds if entry.dead_letters_topic == topic]
        result = DeadLetterTopic(topic, sum(entry.dead_letters for entry in rounds))
        spans = _complete_spans(brokers, topic)
        if spans:
            dead_letters = origin_of(read_spans(self._spark, settings, spans)).distinct()
            written = self._malformed.where(f.col("round").isin([entry.sequence for entry in rounds]))
            missing = written.join(dead_letters, list(ORIGIN), "left_anti")
            result.missing = missing.count()
            named = missing.orderBy(*ORIGIN).limit(max_examples).collect() if result.missing else []
            self.missing += [{name: row[name] for name in ORIGIN} for row in named]
        return result


def _with_round(spark: SparkSession, rounds: Collection[Entry], records: DataFrame) -> DataFrame:
    """Adds to each record its round: the last one that starts at or below the offset."""
    starts = [
        (*read.tp, read.start, entry.sequence) for entry in rounds for read in entry.ranges if read.start < read.end
    ]
    round_starts = spark.createDataFrame(starts, STARTS).withColumn("is_record", f.expr("false"))
    marked = records.select(*ORIGIN, f.lit(None).cast("bigint").alias("round"), f.expr("true").alias("is_record"))
    before = Window.partitionBy("topic", "partition").orderBy("offset", "is_record", "round")
    known = marked.union(round_starts).withColumn("round", f.last("round", ignorenulls=True).over(before))
    return known.where("is_record").drop("is_record")


def _complete_spans(brokers: Brokers, topic: str) -> dict[TopicPartition, Span]:
    """The offsets of a topic that still has all its records; empty otherwise (rule 3)."""
    if not brokers.exists(topic) or "compact" in brokers.topic_configs(topic)["cleanup.policy"]:
        return {}
    spans = brokers.spans(brokers.find_topics([topic]).values())
    return {} if any(span.start for span in spans.values()) else spans
