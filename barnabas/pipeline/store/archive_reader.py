"""Reads an archive as a DataFrame of committed records, with the columns of Spark's Kafka source.

RULES    1. The manifest names the data files. Other files in the folder are not read.
         2. If the last entry's files are not all in place, the reader waits for the writer to move them. If no job holds the
            lock, the reader moves them itself.
         3. Column names and types equal those of the Kafka source.
         4. A compaction deletes the files that it merges. If files are missing and the manifest has a new entry, it is read
            again. A query whose files are deleted later fails, and can be repeated.
NOT HERE What other readers of the folder see (`publish.py`, rule 4).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import cast

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from barnabas.pipeline.errors import JobError
from barnabas.pipeline.store.folder import PARQUET, ArchiveFolder
from barnabas.pipeline.store.lakes import committed_records, open_lake
from barnabas.pipeline.store.manifest import DataFile, Manifest
from barnabas.pipeline.store.publish import recover

MOVE_TIMEOUT_S = 30.0
RETRY_PAUSE_S = 0.2
STORED = (
    "key binary, value binary, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)
SCHEMA = f"{STORED}, topic string, date date"
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
"""The Kafka source's columns, in its order."""


def read_archive(spark: SparkSession, path: Path | str, topics: Collection[str] | None = None) -> DataFrame:
    """Returns the records of an archive, of all topics or of these. Raises JobError if a topic or a file is missing."""
    folder = ArchiveFolder(Path(path))
    while True:
        manifest = complete_manifest(folder)
        records = _read(spark, folder, manifest, topics)
        if records is not None:
            return records.select(*COLUMNS)
        if folder.manifest().next_sequence == manifest.next_sequence:
            raise _missing(folder, manifest)


def _read(
    spark: SparkSession, folder: ArchiveFolder, manifest: Manifest, topics: Collection[str] | None
) -> DataFrame | None:
    """Returns the records, or None if a file is missing: a job may have compacted it since the manifest was read (rule 4)."""
    topics_held = set(manifest.topic_ids())
    for topic in topics or ():
        if topic not in topics_held:
            raise JobError(f"The archive {folder.path} holds no topic {topic}.")
    if folder.metadata().sink != PARQUET:
        records = (
            committed_records(open_lake(spark, folder).records(), manifest.end_offsets())
            if manifest.ranges
            else no_records(spark)
        )
        return records if topics is None else records.where(f.col("topic").isin(*topics))
    files = [file for file in manifest.files.values() if topics is None or file.topic in topics]
    if missing_files(folder, files):
        return None
    try:
        return read_files(spark, folder.path, [file.path for file in files])
    except AnalysisException as failure:
        if failure.getCondition() != "PATH_NOT_FOUND":
            raise
        return None


def _missing(folder: ArchiveFolder, manifest: Manifest) -> JobError:
    missing = missing_files(folder, manifest.files.values())
    example = f", for example {missing[0].path}" if missing else ""
    return JobError(
        f"{len(missing)} files of the archive {folder.path} are missing{example}: restore them from a backup."
    )


def read_files(spark: SparkSession, base: Path, paths: Iterable[str], schema: str = SCHEMA) -> DataFrame:
    """Reads data files below a folder, with the columns topic and date."""
    chosen = [str(base / path) for path in paths]
    if not chosen:
        return no_records(spark, schema)
    return spark.read.schema(schema).option("basePath", str(base)).parquet(*chosen)


def no_records(spark: SparkSession, schema: str = SCHEMA) -> DataFrame:
    """Returns an empty DataFrame with these columns; no Python runs on the workers for it."""
    fields = cast("StructType", StructType.fromDDL(schema)).fields
    return spark.range(0).select(*(f.lit(None).cast(field.dataType).alias(field.name) for field in fields))


def complete_manifest(folder: ArchiveFolder) -> Manifest:
    """Returns the manifest once all files of its last entry are in place (rule 2)."""
    deadline = time.monotonic() + MOVE_TIMEOUT_S
    while True:
        manifest = folder.manifest()
        last = manifest.last
        if last is None or not missing_files(folder, last.files):
            return manifest
        try:
            with folder.lock():
                return recover(folder)
        except JobError:
            if time.monotonic() > deadline:
                raise
        time.sleep(RETRY_PAUSE_S)


def missing_files(folder: ArchiveFolder, files: Iterable[DataFile]) -> list[DataFile]:
    """Returns those of these files that do not exist."""
    return [file for file in files if not (folder.path / file.path).exists()]
