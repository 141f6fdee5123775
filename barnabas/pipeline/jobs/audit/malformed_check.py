"""Malformed records as an audit finds them: what each round counted, and the letters that were sent for them.

RULES    1. A malformed record stays in the archive, with its error: of each round there must be as many as its entry says.
         2. Where a round sent letters, each of its malformed records has one in the topic that the entry names. A letter may
            be there twice: another archive of the same topic may have sent it.
         3. That topic's owner may take letters away: one that is gone, trimmed or compacted is said, and no letter is missed.
NOT HERE Whether a record is rightly called malformed (`decoding_check.py`), sending (`dead_letters.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from barnabas.pipeline.brokers import Brokers, Place, Span
from barnabas.pipeline.jobs.dead_letters import ORIGIN, origin_of
from barnabas.pipeline.kafka.kafka_source import read_spans
from barnabas.pipeline.settings import BrokerSettings
from barnabas.pipeline.store.manifest import Entry

STARTS = "topic string, partition int, offset bigint, round bigint"


@dataclass
class Letters:
    """What became of the letters of a topic; `missing` is nothing where it has not all that it was sent."""

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
        self._malformed = _by_round(spark, rounds, malformed)
        self.count = 0
        self.miscounted: list[str] = []
        self.letters: list[Letters] = []
        self.missing: list[dict[str, Any]] = []

    def check(self, settings: BrokerSettings, brokers: Brokers, most: int) -> None:
        """Count, and look for the letters; of those that are missing some are named."""
        self._malformed.cache()
        try:
            found = {row["round"]: row["count"] for row in self._malformed.groupBy("round").count().collect()}
            self.count = sum(found.values())
            for entry in self._rounds:
                if (there := found.get(entry.sequence, 0)) != entry.malformed:
                    words = f"counted {entry.malformed} malformed records, and the archive has {there} of its offsets"
                    self.miscounted.append(f"round {entry.sequence} {words}")
            for topic in sorted({entry.letters_topic for entry in self._rounds} - {""}):
                self.letters.append(self._look(topic, settings, brokers, most))
        finally:
            self._malformed.unpersist()

    def refuse(self) -> None:
        """Of an archive that decodes nothing nothing is malformed."""
        for entry in self._rounds:
            if entry.malformed:
                words = f"counted {entry.malformed} malformed records, and nothing is decoded"
                self.miscounted.append(f"round {entry.sequence} {words}")

    def faults(self) -> list[str]:
        """What does not fit, in words."""
        missing = [f"{one.missing} letters of {one.topic}" for one in self.letters if one.missing]
        return [*self.miscounted, *missing]

    def lines(self) -> list[dict[str, Any]]:
        """The same for the report, some letters by name."""
        records = [f"{row['topic']}-{row['partition']}, offset {row['offset']}" for row in self.missing]
        return [
            *({"fault": "miscounted", "where": words} for words in self.miscounted),
            *({"fault": "letter missing", "where": words} for words in records),
        ]

    def _look(self, topic: str, settings: BrokerSettings, brokers: Brokers, most: int) -> Letters:
        """Hold the letters of a topic against the records of the rounds that sent them (rule 2)."""
        rounds = [entry for entry in self._rounds if entry.letters_topic == topic]
        result = Letters(topic, sum(entry.dead_letters for entry in rounds))
        spans = _whole(brokers, topic)
        if spans:
            letters = origin_of(read_spans(self._spark, settings, spans)).distinct()
            written = self._malformed.where(f.col("round").isin([entry.sequence for entry in rounds]))
            missing = written.join(letters, list(ORIGIN), "left_anti")
            result.missing = missing.count()
            named = missing.orderBy(*ORIGIN).limit(most).collect() if result.missing else []
            self.missing += [{name: row[name] for name in ORIGIN} for row in named]
        return result


def _by_round(spark: SparkSession, rounds: Collection[Entry], records: DataFrame) -> DataFrame:
    """Records with the round that read them: the last one that began at or before their offset."""
    starts = [
        (*read.place, read.start, entry.sequence) for entry in rounds for read in entry.ranges if read.start < read.end
    ]
    begun = spark.createDataFrame(starts, STARTS).withColumn("is_record", f.expr("false"))
    some = records.select(*ORIGIN, f.lit(None).cast("bigint").alias("round"), f.expr("true").alias("is_record"))
    before = Window.partitionBy("topic", "partition").orderBy("offset", "is_record", "round")
    known = some.union(begun).withColumn("round", f.last("round", ignorenulls=True).over(before))
    return known.where("is_record").drop("is_record")


def _whole(brokers: Brokers, topic: str) -> dict[Place, Span]:
    """The spans of a topic that has all that it was sent; nothing of another one (rule 3)."""
    if not brokers.exists(topic) or "compact" in brokers.topic_settings(topic)["cleanup.policy"]:
        return {}
    places = [Place(topic, number) for number in range(brokers.find_topics([topic])[topic].partitions)]
    starts, ends = brokers.starts(places), brokers.ends(places)
    return {} if any(starts.values()) else {place: Span(0, ends[place]) for place in places}
