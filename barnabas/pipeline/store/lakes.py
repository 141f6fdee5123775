"""The records of an archive as a Delta or Iceberg table: each round is appended once, however often it is retried.

FORMAT   records/                  the table, partitioned by topic and date
         _barnabas/round.json      the plan of the current round: its number, and its end offsets
RULES    1. The plan is written before the append: a retry reads the same offsets.
         2. The table rejects a round that it already has: Delta by application id and transaction version, Iceberg by the
            WAP id of a staged snapshot. Late writes of a killed driver are therefore harmless. A round without offsets
            only writes a manifest entry: the next round may use its number.
         3. The manifest entry is written last and commits the round. Our readers ignore records at or above the manifest's
            end offsets.
         4. The session must have the format's jars and settings (`spark/jars.py`).
NOT HERE Parquet files (`publish.py`), the content of a round (`jobs/archive/sinks.py`). Compaction is the format's: OPTIMIZE,
         rewrite_data_files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.brokers import Span
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.spark.rows import in_spans
from barnabas.pipeline.store.durable_files import read_json, write_durably
from barnabas.pipeline.store.folder import PARQUET, ArchiveFolder
from barnabas.pipeline.store.manifest import Entry, Manifest, write_entry

PARTITION_COLUMNS = ("topic", "date")
WAP_ID_SETTING = "spark.wap.id"
DUPLICATE_WAP_ID = "DuplicateWAPCommitException"
CATALOG = "barnabas_archive"


class Delta:
    """A Delta table."""

    def __init__(self, spark: SparkSession, path: Path, archive: str) -> None:
        self._spark = spark
        self._path = str(path)
        self._archive = archive

    def create(self, records: DataFrame) -> None:
        """Creates the table, unless it exists."""
        records.limit(0).write.format("delta").mode("ignore").partitionBy(*PARTITION_COLUMNS).save(self._path)

    def append(self, records: DataFrame, number: int) -> None:
        """Appends a round; Delta skips a transaction version that it has."""
        transaction = {"txnAppId": self._archive, "txnVersion": str(number)}
        records.write.format("delta").mode("append").partitionBy(*PARTITION_COLUMNS).options(**transaction).save(
            self._path
        )

    def records(self) -> DataFrame:
        """Returns all records of the table."""
        return self._spark.read.format("delta").load(self._path)


class Iceberg:
    """An Iceberg table, in a Hadoop catalog whose warehouse is the archive's folder."""

    def __init__(self, spark: SparkSession, path: Path, archive: str) -> None:
        self._spark = spark
        self._path = path
        self._archive = archive

    def append(self, records: DataFrame, number: int) -> None:
        """Stages a snapshot under the round's WAP id and publishes it; Iceberg rejects a WAP id that is published."""
        self.create(records)
        wap_id = f"{self._archive}-{number}"
        self._spark.conf.set(WAP_ID_SETTING, wap_id)
        try:
            records.write.format("iceberg").mode("append").save(str(self._path))
        finally:
            self._spark.conf.unset(WAP_ID_SETTING)
        snapshots = self._spark.read.format("iceberg").load(f"{self._path}#snapshots")
        staged = snapshots.where(f.col("summary")["wap.id"] == wap_id).orderBy(f.desc("committed_at")).first()
        assert staged is not None, "a snapshot was staged"
        try:
            self._spark.sql(f"CALL {CATALOG}.system.cherrypick_snapshot('{self._path.name}', {staged['snapshot_id']})")
        except (Py4JJavaError, PySparkException) as failure:
            if DUPLICATE_WAP_ID not in str(failure):
                raise

    def records(self) -> DataFrame:
        """Returns all records of the table."""
        return self._spark.read.format("iceberg").load(str(self._path))

    def create(self, records: DataFrame) -> None:
        """Creates the table, unless it exists."""
        catalog = f"spark.sql.catalog.{CATALOG}"
        catalog_settings = {catalog: "org.apache.iceberg.spark.SparkCatalog", f"{catalog}.type": "hadoop"}
        for name, value in {**catalog_settings, f"{catalog}.warehouse": str(self._path.parent)}.items():
            self._spark.conf.set(name, value)
        table = f"{CATALOG}.{self._path.name}"
        if not self._spark.catalog.tableExists(table):
            records.limit(0).writeTo(table).using("iceberg").tableProperty("write.wap.enabled", "true").partitionedBy(
                *map(f.col, PARTITION_COLUMNS)
            ).create()


Lake = Delta | Iceberg
LAKES: dict[str, type[Lake]] = {"delta": Delta, "iceberg": Iceberg}
SINK_FORMATS = (PARQUET, *LAKES)


def open_lake(spark: SparkSession, folder: ArchiveFolder) -> Lake:
    """Returns the table of an archive. Raises JobError for an unknown format."""
    metadata = folder.metadata()
    if metadata.sink not in LAKES:
        raise JobError(f"The archive {folder.path} has the unknown format {metadata.sink}.")
    return LAKES[metadata.sink](spark, folder.path / "records", metadata.id)


def committed_records(records: DataFrame, ends: Mapping[TopicPartition, int]) -> DataFrame:
    """Returns the records below the manifest's end offsets (rule 3)."""
    return in_spans(records, {tp: Span(0, end) for tp, end in ends.items()})


# --- the plan of the current round -----------------------------------------------------------------------------------


def write_plan(folder: ArchiveFolder, number: int, ends: Mapping[TopicPartition, int]) -> None:
    """Writes the end offsets of a round (rule 1)."""
    end_rows = [[*tp, end] for tp, end in sorted(ends.items())]
    write_durably(folder.round_file, json.dumps({"round": number, "ends": end_rows}) + "\n")


def read_plan(folder: ArchiveFolder, number: int) -> dict[TopicPartition, int]:
    """Returns the planned end offsets of this round; empty if it was not planned."""
    planned, ends = _plan(folder)
    if planned > number:
        raise _missing_entries(folder, planned, number)
    return ends if planned == number else {}


def is_under_way(folder: ArchiveFolder, number: int) -> bool:
    """Returns whether this round or a later one was planned. Raises JobError if manifest entries are missing."""
    planned, _ = _plan(folder)
    if planned > (next_sequence := folder.manifest().next_sequence):
        raise _missing_entries(folder, planned, next_sequence)
    return planned >= number


def _plan(folder: ArchiveFolder) -> tuple[int, dict[TopicPartition, int]]:
    """Returns the number and the end offsets of the last planned round; -1 if there is none."""

    def parse(plan: Any) -> tuple[int, dict[TopicPartition, int]]:
        ends = {TopicPartition(str(topic), int(partition)): int(end) for topic, partition, end in plan["ends"]}
        return int(plan["round"]), ends

    try:
        return read_json(folder.round_file, parse)
    except FileNotFoundError:
        return -1, {}


def _missing_entries(folder: ArchiveFolder, planned: int, next_sequence: int) -> JobError:
    return JobError(
        f"The manifest of {folder.path} ends before entry {next_sequence}, but round {planned} was started: "
        "entries are missing; restore them from a backup."
    )


def commit(folder: ArchiveFolder, manifest: Manifest, entry: Entry) -> None:
    """Writes the manifest entry of an appended round (rule 3)."""
    os.sync()  # Spark's writers do not sync the table's files
    write_entry(folder.manifest_folder, entry)
    manifest.add(entry)
