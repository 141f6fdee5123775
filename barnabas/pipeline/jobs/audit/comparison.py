"""Two sets of records compared, whatever their order: first by sums over stretches of offsets, then record by record.

RULES    1. A stretch is so many offsets of one partition. Two sides whose counts and sums agree in it are the same there.
         2. Only the stretches that differ are looked into. A record is *lost* (the archive has it not), *doubled* (the archive
            has it more than once), *altered* (both have it, with another content) or *strange* (the topic has it not).
         3. Both sides have the columns topic, partition, offset, hash.
NOT HERE Where the records come from, what is said about them (`audit.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from barnabas.pipeline.checksums import joined, sums

FEW = 1_000
"""So many stretches can be named one by one; when more differ, all are looked into."""


class Stretch(NamedTuple):
    """So many offsets of a partition, by its number."""

    topic: str
    partition: int
    number: int


class Sum(NamedTuple):
    """What one side has in a stretch."""

    records: int
    checksum: int


def sum_stretches(records: DataFrame, size: int) -> dict[Stretch, Sum]:
    """Counts and sums of one side."""
    number = f.floor(f.col("offset") / f.lit(size)).cast("bigint").alias("number")
    rows = records.groupBy("topic", "partition", number).agg(*sums("hash")).collect()
    return {Stretch(row["topic"], row["partition"], row["number"]): Sum(row["count"], joined(row)) for row in rows}


def differing(topic: dict[Stretch, Sum], held: dict[Stretch, Sum]) -> list[Stretch]:
    """The stretches in which the two sides are not the same (rule 1)."""
    return sorted(stretch for stretch in topic.keys() | held.keys() if topic.get(stretch) != held.get(stretch))


def within(records: DataFrame, stretches: Collection[Stretch], size: int) -> DataFrame:
    """The records of these stretches."""
    if len(stretches) > FEW:
        return records
    number = f.floor(f.col("offset") / f.lit(size)).cast("bigint")
    return records.where(
        f.concat_ws("/", "topic", "partition", number).isin(["/".join(map(str, s)) for s in stretches])
    )


def differences(topic: DataFrame, held: DataFrame) -> DataFrame:
    """One row for each record that is not the same on both sides: kind, topic, partition, offset, copies (rule 2)."""
    place = ["topic", "partition", "offset"]
    live = topic.groupBy(place).agg(f.first("hash").alias("live"))
    kept = held.groupBy(place).agg(
        f.count("*").alias("copies"), f.min("hash").alias("low"), f.max("hash").alias("high")
    )
    kind = (
        f.when(f.col("copies").isNull(), "lost")
        .when(f.col("live").isNull(), "strange")
        .when((f.col("low") != f.col("live")) | (f.col("high") != f.col("live")), "altered")
        .when(f.col("copies") > 1, "doubled")
    )
    both = live.join(kept, place, "full_outer").withColumn("kind", kind)
    return both.where("kind is not null").select("kind", *place, f.coalesce("copies", f.lit(0)).alias("copies"))


def gaps(records: DataFrame) -> DataFrame:
    """Where offsets are missing between two records of a partition: topic, partition, start, end (exclusive)."""
    before = f.lag("offset").over(Window.partitionBy("topic", "partition").orderBy("offset"))
    return (
        records.withColumn("before", before)
        .where("offset - before > 1")
        .select("topic", "partition", (f.col("before") + 1).alias("start"), f.col("offset").alias("end"))
    )


def steps_back(records: DataFrame) -> DataFrame:
    """How often, and how far at most, the timestamps of a partition go back: topic, partition, times, most_ms."""
    before = f.lag("ms").over(Window.partitionBy("topic", "partition").orderBy("offset"))
    return (
        records.select("topic", "partition", "offset", f.unix_millis("timestamp").alias("ms"))
        .withColumn("back", before - f.col("ms"))
        .where("back > 0")
        .groupBy("topic", "partition")
        .agg(f.count("*").alias("times"), f.max("back").alias("most_ms"))
    )
