"""Writes a round of an archive: Parquet files, or a Delta or Iceberg table.

RULES    1. Counts and checksums for the manifest are computed from the written records, read back.
         2. `write` commits nothing. `commit` is one atomic step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.brokers import Span
from barnabas.pipeline.checksums import combine_sums, record_hash, sums
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.data_files import SCHEMA_WITH_ERROR, finalize_staged_files, ordered, write_files
from barnabas.pipeline.jobs.rounds import StartPosition
from barnabas.pipeline.spark.rows import collect_rows, in_spans
from barnabas.pipeline.store.archive_reader import read_files
from barnabas.pipeline.store.folder import PARQUET, ArchiveFolder
from barnabas.pipeline.store.lakes import commit, open_lake, read_plan, write_plan
from barnabas.pipeline.store.manifest import DataFile, Entry, Manifest, Total, totals_of
from barnabas.pipeline.store.publish import publish, staging_of


class WrittenRound(NamedTuple):
    """The written records of a round."""

    totals: dict[TopicPartition, Total]
    malformed: int
    records: DataFrame
    files: tuple[DataFile, ...] = ()


class ParquetSink:
    """Parquet files. An interrupted round leaves nothing to repeat."""

    def __init__(self, spark: SparkSession, folder: ArchiveFolder) -> None:
        self._spark = spark
        self._folder = folder

    def interrupted_round(
        self, _positions: Mapping[TopicPartition, StartPosition], _number: int
    ) -> dict[TopicPartition, Span]:
        """Returns nothing."""
        return {}

    def write(self, records: DataFrame, number: int, _spans: Mapping[TopicPartition, Span]) -> WrittenRound:
        """Stages the files."""
        staged = staging_of(self._folder, number)
        write_files(records, staged)
        staged_files = finalize_staged_files(self._spark, staged, number)
        written = read_files(self._spark, staged, [file.path for file in staged_files.files], SCHEMA_WITH_ERROR)
        return WrittenRound(totals_of(staged_files.files), staged_files.malformed, written, tuple(staged_files.files))

    def commit(self, manifest: Manifest, entry: Entry) -> None:
        """Publishes the files."""
        publish(self._folder, manifest, entry)


class TableSink:
    """A table. It may hold a round that is not in the manifest yet."""

    def __init__(self, spark: SparkSession, folder: ArchiveFolder) -> None:
        self._folder = folder
        self._lake = open_lake(spark, folder)

    def interrupted_round(
        self, positions: Mapping[TopicPartition, StartPosition], number: int
    ) -> dict[TopicPartition, Span]:
        """Returns the planned offsets; the table ignores a round that it already has."""
        ends = read_plan(self._folder, number)
        if unnamed := sorted(ends.keys() - positions.keys()):
            raise JobError(
                f"An interrupted round of {self._folder.path} holds {unnamed[0].topic}: name that topic too."
            )
        return {tp: Span(min(positions[tp].start, end), end) for tp, end in ends.items()}

    def write(self, records: DataFrame, number: int, spans: Mapping[TopicPartition, Span]) -> WrittenRound:
        """Appends the round and reads it back."""
        if not spans:
            self._lake.create(records)  # for readers; the round's number stays unused: other records may come with it
            return WrittenRound({}, 0, records)
        write_plan(self._folder, number, {tp: span.end for tp, span in spans.items()})
        self._lake.append(ordered(records), number)
        written = in_spans(self._lake.records(), spans)
        if "error" not in written.columns:
            written = written.withColumn("error", f.lit(None).cast("string"))
        hashed = written.select("topic", "partition", "error", record_hash().alias("hash"))
        grouped = hashed.groupBy("topic", "partition")
        found = collect_rows(grouped.agg(f.count("error").alias("malformed"), *sums("hash")))
        totals = {TopicPartition.of(row): Total(row["count"], combine_sums(row)) for row in found}
        return WrittenRound(totals, sum(row["malformed"] for row in found), written)

    def commit(self, manifest: Manifest, entry: Entry) -> None:
        """Writes the manifest entry."""
        commit(self._folder, manifest, entry)


Sink = ParquetSink | TableSink


def open_sink(spark: SparkSession, folder: ArchiveFolder) -> Sink:
    """Returns the sink of this archive."""
    return ParquetSink(spark, folder) if folder.metadata().sink == PARQUET else TableSink(spark, folder)
