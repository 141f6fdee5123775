"""Writes records to data files and summarises their content: shared by rounds and compactions.

RULES    1. A file holds one topic and one day (of the record's timestamp, UTC), ordered by partition and offset.
         2. Counts and checksums for the manifest are computed from the written files.
         3. Each attempt writes to a new folder: after a crash of the driver, late writes of its JVM and workers reach no later
            attempt.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from barnabas.pipeline.checksums import combine_sums, record_hash, sums
from barnabas.pipeline.spark.rows import collect_rows
from barnabas.pipeline.store.archive_reader import SCHEMA, read_files
from barnabas.pipeline.store.durable_files import digests
from barnabas.pipeline.store.manifest import Contents, DataFile

SCHEMA_WITH_ERROR = f"{SCHEMA}, error string"
"""The columns that data files of every archive have; `error` is null if nothing is decoded."""


class StagedFiles(NamedTuple):
    """The staged files of a round."""

    files: list[DataFile]
    malformed: int


class FileContents(NamedTuple):
    """The contents of each file by path, ordered by partition; the number of malformed records; misplaced files."""

    contents: dict[str, list[Contents]]
    malformed: int
    misplaced: set[str]
    """Files with records of another day than that of their folder."""


def isolated_session(spark: SparkSession) -> SparkSession:
    """Returns a new session of the same Spark, so that the caller's settings stay unchanged."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    session.conf.set("spark.sql.parquet.compression.codec", "zstd")
    session.conf.set("spark.sql.adaptive.enabled", "true")
    return session


def with_day(records: DataFrame) -> DataFrame:
    """Adds the day of the timestamp."""
    return records.withColumn("date", f.to_date("timestamp"))


def ordered(records: DataFrame, *, one_a_day: bool = False) -> DataFrame:
    """Repartitions and sorts records by topic and date: by size, or one partition for each."""
    spread = records.repartition("topic", "date") if one_a_day else records.hint("rebalance", "topic", "date")
    return spread.sortWithinPartitions("topic", "date", "partition", "offset")


def write_files(records: DataFrame, target: Path, *, one_a_day: bool = False) -> None:
    """Writes files by topic and date."""
    attempt = target.with_name(f"{target.name}.{secrets.token_hex(4)}")
    ordered(records, one_a_day=one_a_day).write.partitionBy("topic", "date").parquet(str(attempt))
    attempt.rename(target)


def finalize_staged_files(spark: SparkSession, staged: Path, sequence: int) -> StagedFiles:
    """Gives the staged files their final names and summarises their content (rule 2)."""
    paths = []
    for number, path in enumerate(sorted(staged.glob("topic=*/date=*/*.parquet"))):
        named = path.rename(path.with_name(f"{sequence:012d}-{number:05d}.parquet"))
        paths.append(str(named.relative_to(staged)))
    for leftover in (*staged.glob("_SUCCESS"), *staged.rglob(".*.crc")):
        leftover.unlink()
    found = (
        contents_by_file(read_files(spark, staged, paths, SCHEMA_WITH_ERROR)) if paths else FileContents({}, 0, set())
    )
    sums_of = digests([staged / path for path in paths])
    files = [
        DataFile(path, (staged / path).stat().st_size, tuple(found.contents.get(path, ())), sums_of[staged / path])
        for path in paths
    ]
    return StagedFiles(files, found.malformed)


def contents_by_file(records: DataFrame) -> FileContents:
    """Returns the contents of the files that these records were read from."""
    contents: dict[str, list[Contents]] = {}
    malformed, misplaced = 0, set()
    hashed = records.select(path_inside(), "partition", "offset", "error", is_misplaced(), record_hash().alias("hash"))
    grouped = hashed.groupBy("path", "partition").agg(
        f.min("offset").alias("first"),
        f.max("offset").alias("last"),
        f.count("error").alias("malformed"),
        f.count_if("is_misplaced").alias("misplaced"),
        *sums("hash"),
    )
    for row in sorted(collect_rows(grouped), key=lambda row: (row["path"], row["partition"])):
        part = Contents(row["partition"], row["count"], row["first"], row["last"], combine_sums(row))
        contents.setdefault(row["path"], []).append(part)
        malformed += row["malformed"]
        if row["misplaced"]:
            misplaced.add(row["path"])
    return FileContents(contents, malformed, misplaced)


def path_inside() -> Column:
    """Returns a column with the path of a record's file inside the archive."""
    return f.element_at(f.split(f.col("_metadata.file_path"), "/(?=topic=)"), -1).alias("path")


def is_misplaced() -> Column:
    """Returns a column: whether a record is in the file of another day."""
    return (~f.col("date").eqNullSafe(f.to_date("timestamp"))).alias("is_misplaced")
