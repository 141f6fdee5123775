"""An archive as a DataFrame: the committed records, with the columns of Spark's Kafka source.

RULES    1. The manifest says which files there are; what else lies in the folder is not read.
         2. Files that a cut or running round has still to move are waited for; when nobody writes, they are moved here.
         3. The columns have the same names and kinds as on a topic, so that a step serves both.
NOT HERE What a foreign reader sees (`publish.py`, rule 4).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from barnabas.pipeline.errors import JobError
from barnabas.pipeline.store.folder import PARQUET, ArchiveFolder
from barnabas.pipeline.store.lakes import committed, open_lake
from barnabas.pipeline.store.manifest import DataFile, Manifest
from barnabas.pipeline.store.publish import recover

WAIT_S = 30.0
LOOK_EVERY_S = 0.2
STORED = (
    "key binary, value binary, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)
SCHEMA = f"{STORED}, topic string, date date"
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
"""The Kafka source's columns, in its order."""


def read_archive(spark: SparkSession, path: Path | str, topics: Collection[str] | None = None) -> DataFrame:
    """The records of an archive, of all topics or of these."""
    folder = ArchiveFolder(Path(path))
    manifest = settled_manifest(folder)
    held = set(manifest.topic_ids())
    for topic in topics or ():
        if topic not in held:
            raise JobError(f"The archive {folder.path} holds no topic {topic}.")
    if folder.identity().sink != PARQUET:
        records = (
            committed(open_lake(spark, folder).records(), manifest.ends()) if manifest.ranges else no_records(spark)
        )
        return (records if topics is None else records.where(f.col("topic").isin(*topics))).select(*COLUMNS)
    files = [file for file in manifest.files.values() if topics is None or file.topic in topics]
    missing = missing_files(folder, files)
    if missing:
        raise JobError(f"{len(missing)} files of the archive {folder.path} are gone, {missing[0].path} among them.")
    return read_files(spark, folder.path, [file.path for file in files]).select(*COLUMNS)


def read_files(spark: SparkSession, base: Path, paths: Iterable[str], schema: str = SCHEMA) -> DataFrame:
    """Data files below a folder, with their topic and date."""
    chosen = [str(base / path) for path in paths]
    if not chosen:
        return no_records(spark, schema)
    return spark.read.schema(schema).option("basePath", str(base)).parquet(*chosen)


def no_records(spark: SparkSession, schema: str = SCHEMA) -> DataFrame:
    """A DataFrame of these columns without a row, made by the JVM alone."""
    fields = cast("StructType", StructType.fromDDL(schema)).fields
    return spark.range(0).select(*(f.lit(None).cast(field.dataType).alias(field.name) for field in fields))


def settled_manifest(folder: ArchiveFolder) -> Manifest:
    """The manifest, once all its files are in place or nobody is there who would move them (rule 2)."""
    deadline = time.monotonic() + WAIT_S
    while True:
        manifest = folder.manifest()
        last = manifest.last
        if last is None or not missing_files(folder, last.files):
            return manifest
        try:
            with folder.held():
                return recover(folder)
        except JobError:
            if time.monotonic() > deadline:
                raise
        time.sleep(LOOK_EVERY_S)


def missing_files(folder: ArchiveFolder, files: Iterable[DataFile]) -> list[DataFile]:
    """Which of these files are not there."""
    return [file for file in files if not (folder.path / file.path).exists()]
