"""Records to data files, and what is in them: the steps that a round and a compaction share.

RULES    1. A file holds one topic and one day (of the record's timestamp, UTC), in the order of partitions and offsets.
         2. What was written is read back from the files: the counts and checksums that go into the manifest are theirs.
         3. Each attempt at a round writes into a folder that no attempt before had: where a driver was killed, its JVM and its
            workers may write on for a moment, and what they finish late must not be found by the next attempt.
NOT HERE Making files visible (`store/publish.py`).
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from barnabas.pipeline.checksums import joined, record_hash, sums
from barnabas.pipeline.spark.rows import collected
from barnabas.pipeline.store.archive_reader import SCHEMA, read_files
from barnabas.pipeline.store.digests import digests
from barnabas.pipeline.store.manifest import Contents, DataFile

JUDGED = f"{SCHEMA}, error string"
"""The columns of a data file that every archive has; `error` is null where nothing is decoded."""


class Stock(NamedTuple):
    """What the staged files of a round hold."""

    files: list[DataFile]
    malformed: int


class Held(NamedTuple):
    """What files hold: by path, and in the order of partitions; and which of them hold records of another day."""

    contents: dict[str, list[Contents]]
    malformed: int
    misplaced: set[str]


def own_session(spark: SparkSession) -> SparkSession:
    """A session of our own on the same Spark, so that what is set here changes nothing for whoever called."""
    own = spark.newSession()
    own.conf.set("spark.sql.session.timeZone", "UTC")
    own.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    own.conf.set("spark.sql.parquet.compression.codec", "zstd")
    own.conf.set("spark.sql.adaptive.enabled", "true")
    return own


def with_day(records: DataFrame) -> DataFrame:
    """Records with the day of their timestamp."""
    return records.withColumn("date", f.to_date("timestamp"))


def ordered(records: DataFrame, *, one_a_day: bool = False) -> DataFrame:
    """Spread for files of a topic and a date: as many as the amount asks for, or one for each."""
    spread = records.repartition("topic", "date") if one_a_day else records.hint("rebalance", "topic", "date")
    return spread.sortWithinPartitions("topic", "date", "partition", "offset")


def write_files(records: DataFrame, target: Path, *, one_a_day: bool = False) -> None:
    """Files by topic and date."""
    attempt = target.with_name(f"{target.name}.{secrets.token_hex(4)}")
    ordered(records, one_a_day=one_a_day).write.partitionBy("topic", "date").parquet(str(attempt))
    attempt.rename(target)


def take_stock(spark: SparkSession, staged: Path, sequence: int) -> Stock:
    """Give the staged files their names, and say what is found in each (rule 2)."""
    paths = []
    for number, path in enumerate(sorted(staged.glob("topic=*/date=*/*.parquet"))):
        named = path.rename(path.with_name(f"{sequence:012d}-{number:05d}.parquet"))
        paths.append(str(named.relative_to(staged)))
    for leftover in (*staged.glob("_SUCCESS"), *staged.rglob(".*.crc")):
        leftover.unlink()
    stock = contents_by_file(read_files(spark, staged, paths, JUDGED)) if paths else Held({}, 0, set())
    sums_of = digests([staged / path for path in paths])
    files = [
        DataFile(path, (staged / path).stat().st_size, tuple(stock.contents.get(path, ())), sums_of[staged / path])
        for path in paths
    ]
    return Stock(files, stock.malformed)


def contents_by_file(records: DataFrame) -> Held:
    """What files hold."""
    found: dict[str, list[Contents]] = {}
    malformed, misplaced = 0, set()
    for row in sorted(collected(contents_of_files(records)), key=lambda row: (row["path"], row["partition"])):
        contents = Contents(row["partition"], row["count"], row["first"], row["last"], joined(row))
        found.setdefault(row["path"], []).append(contents)
        malformed += row["malformed"]
        if row["elsewhere"]:
            misplaced.add(row["path"])
    return Held(found, malformed, misplaced)


def path_inside() -> Column:
    """The path of a record's file inside the archive."""
    return f.element_at(f.split(f.col("_metadata.file_path"), "/(?=topic=)"), -1).alias("path")


def contents_of_files(records: DataFrame) -> DataFrame:
    """What each file holds of each partition."""
    return (
        records.select(path_inside(), "partition", "offset", "error", is_elsewhere(), record_hash().alias("hash"))
        .groupBy("path", "partition")
        .agg(
            f.min("offset").alias("first"),
            f.max("offset").alias("last"),
            f.count("error").alias("malformed"),
            f.count_if("is_elsewhere").alias("elsewhere"),
            *sums("hash"),
        )
    )


def is_elsewhere() -> Column:
    """Whether a record lies under another day than its own."""
    return (~f.col("date").eqNullSafe(f.to_date("timestamp"))).alias("is_elsewhere")
