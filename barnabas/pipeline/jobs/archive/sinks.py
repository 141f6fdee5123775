"""What a round of an archive writes, and where: files of Parquet, or a table of Delta or Iceberg.

RULES    1. What was written is read back: the counts and checksums that go into the manifest are those of what is there.
         2. Nothing is committed by `keep`; `commit` is one step, and the last.
NOT HERE The steps of a commit (`store/publish.py`, `store/lakes.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from barnabas.pipeline.brokers import Place, Span
from barnabas.pipeline.checksums import add_up, joined, record_hash, sums
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.data_files import JUDGED, ordered, take_stock, write_files
from barnabas.pipeline.jobs.rounds import Waiting
from barnabas.pipeline.spark.rows import collected
from barnabas.pipeline.store.archive_reader import read_files
from barnabas.pipeline.store.folder import PARQUET, ArchiveFolder
from barnabas.pipeline.store.lakes import commit, open_lake, read_plan, within_round, write_plan
from barnabas.pipeline.store.manifest import DataFile, Entry, Manifest
from barnabas.pipeline.store.publish import publish, staging_of


class Total(NamedTuple):
    """How many records of a partition, and their checksum."""

    records: int = 0
    checksum: int = 0


class Kept(NamedTuple):
    """What a round has written."""

    totals: dict[Place, Total]
    malformed: int
    records: DataFrame
    files: tuple[DataFile, ...] = ()


class Keeper(Protocol):
    """Where rounds go."""

    def resumed(self, waiting: Mapping[Place, Waiting], number: int, /) -> dict[Place, Span]:
        """The spans of a round that was cut and must be done again as it was; nothing when there is none."""
        ...

    def keep(self, records: DataFrame, number: int, spans: Mapping[Place, Span], /) -> Kept:
        """Write the records of a round (rule 1)."""
        ...

    def commit(self, manifest: Manifest, entry: Entry) -> None:
        """Make the round count."""
        ...


def keeper_of(spark: SparkSession, folder: ArchiveFolder) -> Keeper:
    """What keeps the rounds of this archive."""
    return Files(spark, folder) if folder.identity().sink == PARQUET else Table(spark, folder)


class Files:
    """Files of Parquet: a round that was cut left nothing."""

    def __init__(self, spark: SparkSession, folder: ArchiveFolder) -> None:
        self._spark = spark
        self._folder = folder

    def resumed(self, _waiting: Mapping[Place, Waiting], _number: int) -> dict[Place, Span]:
        """None."""
        return {}

    def keep(self, records: DataFrame, number: int, _spans: Mapping[Place, Span]) -> Kept:
        """Stage files."""
        staged = staging_of(self._folder, number)
        write_files(records, staged)
        stock = take_stock(self._spark, staged, number)
        totals: dict[Place, Total] = {}
        for file in stock.files:
            for part in file.contents:
                place = Place(file.topic, part.partition)
                before = totals.get(place, Total())
                totals[place] = Total(before.records + part.count, add_up((before.checksum, part.checksum)))
        written = read_files(self._spark, staged, [file.path for file in stock.files], JUDGED)
        return Kept(totals, stock.malformed, written, tuple(stock.files))

    def commit(self, manifest: Manifest, entry: Entry) -> None:
        """Publish the files."""
        publish(self._folder, manifest, entry)


class Table:
    """A table: it may have a round that the manifest has not."""

    def __init__(self, spark: SparkSession, folder: ArchiveFolder) -> None:
        self._folder = folder
        self._lake = open_lake(spark, folder)

    def resumed(self, waiting: Mapping[Place, Waiting], number: int) -> dict[Place, Span]:
        """As it was planned; a table that has it already takes nothing of it again."""
        ends = read_plan(self._folder, number)
        if absent := sorted(ends.keys() - waiting.keys()):
            raise JobError(f"A round of {self._folder.path} was cut that holds {absent[0].topic}: name that topic too.")
        return {place: Span(min(waiting[place].start, end), end) for place, end in ends.items()}

    def keep(self, records: DataFrame, number: int, spans: Mapping[Place, Span]) -> Kept:
        """Append, and read the round back."""
        if not spans:
            self._lake.create(records)  # readers find it; its number is not spent, since other records may come with it
            return Kept({}, 0, records)
        starts = {place: span.start for place, span in spans.items()}
        ends = {place: span.end for place, span in spans.items()}
        write_plan(self._folder, number, ends)
        self._lake.append(ordered(records), number)
        written = within_round(self._lake.records(), starts, ends)
        if "error" not in written.columns:
            written = written.withColumn("error", f.lit(None).cast("string"))
        hashed = written.select("topic", "partition", "error", record_hash().alias("hash"))
        grouped = hashed.groupBy("topic", "partition")
        found = collected(grouped.agg(f.count("error").alias("malformed"), *sums("hash")))
        totals = {Place(row["topic"], row["partition"]): Total(row["count"], joined(row)) for row in found}
        return Kept(totals, sum(row["malformed"] for row in found), written)

    def commit(self, manifest: Manifest, entry: Entry) -> None:
        """Enter the round into the manifest."""
        commit(self._folder, manifest, entry)
