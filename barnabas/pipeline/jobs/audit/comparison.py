"""Compares two sets of records, independent of order: first by sums over offset blocks, then record by record.

RULES    1. A block is a fixed number of offsets of one partition. Two sides with equal counts and sums agree in it.
         2. Only differing blocks are compared by record. A record is *lost* (not in the archive), *doubled* (more than once in
            the archive), *altered* (on both sides with different content) or *unexpected* (not in the topic).
         3. Both sides have the columns topic, partition, offset, hash.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from barnabas.pipeline.checksums import combine_sums, sums
from barnabas.pipeline.store.manifest import Total

BLOCK_OFFSETS = 10_000
MAX_NAMED_BLOCKS = 1_000
"""If more blocks differ, all records are compared."""


class OffsetBlock(NamedTuple):
    """A block of offsets of a partition, by its number."""

    topic: str
    partition: int
    number: int


def sum_blocks(records: DataFrame) -> dict[OffsetBlock, Total]:
    """Returns counts and sums of one side, by block."""
    number = f.floor(f.col("offset") / f.lit(BLOCK_OFFSETS)).cast("bigint").alias("number")
    rows = records.groupBy("topic", "partition", number).agg(*sums("hash")).collect()
    return {
        OffsetBlock(row["topic"], row["partition"], row["number"]): Total(row["count"], combine_sums(row))
        for row in rows
    }


def differing(topic: dict[OffsetBlock, Total], archived: dict[OffsetBlock, Total]) -> list[OffsetBlock]:
    """Returns the blocks in which the sides differ (rule 1)."""
    return sorted(block for block in topic.keys() | archived.keys() if topic.get(block) != archived.get(block))


def in_blocks(records: DataFrame, blocks: Collection[OffsetBlock]) -> DataFrame:
    """Returns the records of these blocks."""
    if len(blocks) > MAX_NAMED_BLOCKS:
        return records
    number = f.floor(f.col("offset") / f.lit(BLOCK_OFFSETS)).cast("bigint")
    return records.where(
        f.concat_ws("/", "topic", "partition", number).isin(["/".join(map(str, block)) for block in blocks])
    )


def differences(topic: DataFrame, archived: DataFrame) -> DataFrame:
    """Returns one row per differing record: kind, topic, partition, offset, copies (rule 2)."""
    record_key = ["topic", "partition", "offset"]
    topic_rows = topic.groupBy(record_key).agg(f.first("hash").alias("live"))
    archived_rows = archived.groupBy(record_key).agg(
        f.count("*").alias("copies"), f.min("hash").alias("low"), f.max("hash").alias("high")
    )
    kind = (
        f.when(f.col("copies").isNull(), "lost")
        .when(f.col("live").isNull(), "unexpected")
        .when((f.col("low") != f.col("live")) | (f.col("high") != f.col("live")), "altered")
        .when(f.col("copies") > 1, "doubled")
    )
    both = topic_rows.join(archived_rows, record_key, "full_outer").withColumn("kind", kind)
    return both.where("kind is not null").select("kind", *record_key, f.coalesce("copies", f.lit(0)).alias("copies"))


def gaps(records: DataFrame) -> DataFrame:
    """Returns the offsets missing between two records of a partition: topic, partition, start, end (exclusive)."""
    before = f.lag("offset").over(Window.partitionBy("topic", "partition").orderBy("offset"))
    return (
        records.withColumn("before", before)
        .where("offset - before > 1")
        .select("topic", "partition", (f.col("before") + 1).alias("start"), f.col("offset").alias("end"))
    )


def steps_back(records: DataFrame) -> DataFrame:
    """Returns how often, and by how much at most, timestamps of a partition decrease: topic, partition, times, most_ms."""
    before = f.lag("ms").over(Window.partitionBy("topic", "partition").orderBy("offset"))
    return (
        records.select("topic", "partition", "offset", f.unix_millis("timestamp").alias("ms"))
        .withColumn("back", before - f.col("ms"))
        .where("back > 0")
        .groupBy("topic", "partition")
        .agg(f.count("*").alias("times"), f.max("back").alias("most_ms"))
    )
