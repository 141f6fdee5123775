"""The records of an archive as a table of Delta or of Iceberg: a round is appended once, however often it is tried.

FORMAT   records/                  the table, partitioned by topic and date
         _barnabas/round.json      the round that is under way: its number, and the offsets where it ends
RULES    1. Where a round ends is written down before it is appended, so that one that was cut is done again as it was.
         2. The table itself refuses a round that it has: Delta by its transaction's application and version, Iceberg by the id
            under which a snapshot is staged and then published. What a killed driver still writes does no harm, then. A round
            without offsets is no more than an entry of the manifest: its number is not spent on nothing.
         3. The manifest's entry comes last and commits the round for us: what the table holds behind the manifest's ends is a
            round under way, and our readers leave it out.
         4. What Spark can do with a table is Spark's: this session must have the format's jars and settings (`jars.py`).
NOT HERE Parquet (`publish.py`), what a round holds (`jobs/archive/sinks.py`). Small files are the format's: OPTIMIZE,
         rewrite_data_files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from barnabas.pipeline.brokers import Place
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.store.durable_write import write_durably
from barnabas.pipeline.store.folder import PARQUET, ArchiveFolder
from barnabas.pipeline.store.manifest import Entry, Manifest, write_entry

BY = ("topic", "date")
STAGED_AS = "spark.wap.id"
PUBLISHED = "DuplicateWAPCommitException"
CATALOG = "barnabas_archive"


class Lake(Protocol):
    """A table."""

    def create(self, records: DataFrame) -> None:
        """Have a table of these columns, if there is none."""
        ...

    def append(self, records: DataFrame, number: int) -> None:
        """Add a round, unless it is there (rule 2)."""
        ...

    def records(self) -> DataFrame:
        """All that is there."""
        ...


class Delta:
    """A table of Delta."""

    def __init__(self, spark: SparkSession, path: Path, archive: str) -> None:
        self._spark = spark
        self._path = str(path)
        self._archive = archive

    def create(self, records: DataFrame) -> None:
        """Have a table of these columns, if there is none."""
        records.limit(0).write.format("delta").mode("ignore").partitionBy(*BY).save(self._path)

    def append(self, records: DataFrame, number: int) -> None:
        """Add a round; Delta leaves out a version that it has."""
        once = {"txnAppId": self._archive, "txnVersion": str(number)}
        records.write.format("delta").mode("append").partitionBy(*BY).options(**once).save(self._path)

    def records(self) -> DataFrame:
        """All that is there."""
        return self._spark.read.format("delta").load(self._path)


class Iceberg:
    """A table of Iceberg, in a catalog that is the archive's folder."""

    def __init__(self, spark: SparkSession, path: Path, archive: str) -> None:
        self._spark = spark
        self._path = path
        self._archive = archive

    def append(self, records: DataFrame, number: int) -> None:
        """Stage a round, and publish it; Iceberg refuses an id that was published."""
        self.create(records)
        mark = f"{self._archive}-{number}"
        self._spark.conf.set(STAGED_AS, mark)
        try:
            records.write.format("iceberg").mode("append").save(str(self._path))
        finally:
            self._spark.conf.unset(STAGED_AS)
        snapshots = self._spark.read.format("iceberg").load(f"{self._path}#snapshots")
        staged = snapshots.where(f.col("summary")["wap.id"] == mark).orderBy(f.desc("committed_at")).first()
        assert staged is not None, "a snapshot was staged"
        try:
            self._spark.sql(f"CALL {CATALOG}.system.cherrypick_snapshot('{self._path.name}', {staged['snapshot_id']})")
        except (Py4JJavaError, PySparkException) as failure:
            if PUBLISHED not in str(failure):
                raise

    def records(self) -> DataFrame:
        """All that is there."""
        return self._spark.read.format("iceberg").load(str(self._path))

    def create(self, records: DataFrame) -> None:
        """Have a table of these columns, if there is none."""
        catalog = f"spark.sql.catalog.{CATALOG}"
        said = {catalog: "org.apache.iceberg.spark.SparkCatalog", f"{catalog}.type": "hadoop"}
        for name, value in {**said, f"{catalog}.warehouse": str(self._path.parent)}.items():
            self._spark.conf.set(name, value)
        table = f"{CATALOG}.{self._path.name}"
        if not self._spark.catalog.tableExists(table):
            records.limit(0).writeTo(table).using("iceberg").tableProperty("write.wap.enabled", "true").partitionedBy(
                *map(f.col, BY)
            ).create()


LAKES: dict[str, Callable[[SparkSession, Path, str], Lake]] = {"delta": Delta, "iceberg": Iceberg}
SINKS = (PARQUET, *LAKES)


def open_lake(spark: SparkSession, folder: ArchiveFolder) -> Lake:
    """The table of an archive that is kept in one."""
    identity = folder.identity()
    if identity.sink not in LAKES:
        raise JobError(f"The archive {folder.path} is kept in {identity.sink}, and there is no such format.")
    return LAKES[identity.sink](spark, folder.path / "records", identity.id)


def committed(records: DataFrame, ends: Mapping[Place, int]) -> DataFrame:
    """What a table holds before the manifest's ends (rule 3)."""
    if not ends:
        return records.where("false")
    known = f.create_map(*(f.lit(part) for place, end in sorted(ends.items()) for part in (str(place), end)))
    return records.where(f.col("offset") < known[_place()])


def within_round(records: DataFrame, starts: Mapping[Place, int], ends: Mapping[Place, int]) -> DataFrame:
    """What a table holds of a round."""
    later = f.create_map(*(f.lit(part) for place in sorted(ends) for part in (str(place), starts[place])))
    topics = sorted({place.topic for place in ends})
    return committed(records.where(f.col("topic").isin(topics) & (f.col("offset") >= later[_place()])), ends)


def _place() -> Column:
    return f.concat_ws("-", "topic", f.col("partition").cast("string"))


# --- the round that is under way --------------------------------------------------------------------------------------


def write_plan(folder: ArchiveFolder, number: int, ends: Mapping[Place, int]) -> None:
    """Say where a round will end (rule 1)."""
    said = [[*place, end] for place, end in sorted(ends.items())]
    write_durably(folder.round_file, json.dumps({"round": number, "ends": said}) + "\n")


def read_plan(folder: ArchiveFolder, number: int) -> dict[Place, int]:
    """Where the round of this number was to end; nothing when it was not begun."""
    begun, ends = _plan(folder)
    if begun > number:
        raise _entries_are_missing(folder, begun, number)
    return ends if begun == number else {}


def is_under_way(folder: ArchiveFolder, number: int) -> bool:
    """Whether a round of this number, or a later one, was begun.

    A later one may have been by now, and then the rounds before it are in the manifest.
    """
    begun, _ = _plan(folder)
    if begun > (entered := folder.manifest().next_sequence):
        raise _entries_are_missing(folder, begun, entered)
    return begun >= number


def _plan(folder: ArchiveFolder) -> tuple[int, dict[Place, int]]:
    """The round that was begun last, and where it was to end; -1 when none was."""
    try:
        said = json.loads(folder.round_file.read_text())
        ends = {Place(str(topic), int(partition)): int(end) for topic, partition, end in said["ends"]}
        return int(said["round"]), ends
    except FileNotFoundError:
        return -1, {}
    except OSError as failure:
        raise JobError(f"{folder.round_file} cannot be read: {failure.strerror}.") from failure
    except (ValueError, KeyError, TypeError) as failure:
        raise JobError(f"{folder.round_file} is damaged: {failure}.") from failure


def _entries_are_missing(folder: ArchiveFolder, begun: int, entered: int) -> JobError:
    return JobError(
        f"The manifest of {folder.path} ends before entry {entered}, and round {begun} was begun: entries are missing."
    )


def commit(folder: ArchiveFolder, manifest: Manifest, entry: Entry) -> None:
    """Commit a round that is appended (rule 3)."""
    os.sync()  # the table's files are written by others, who do not wait for the disk
    write_entry(folder.manifest_folder, entry)
    manifest.add(entry)
