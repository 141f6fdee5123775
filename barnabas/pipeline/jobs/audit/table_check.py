"""Checks a Delta or Iceberg table against the manifest. Same interface as `AuditedFiles`.

RULES    1. A partition's count, first offset and checksum must equal those of the manifest's ranges; otherwise the partition is
            altered. It is also altered if a record has another day than its own or wrongly decoded data.
         2. Partitions that are not in the manifest are unknown. Records without topic, partition or offset are unreadable. A
            table that Spark cannot read is a JobError.
         3. Records above the manifest's ends belong to the current round, if one is planned; otherwise they are checked too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.checksums import add_checksums, combine_sums, record_hash, sums
from barnabas.pipeline.errors import JobError, describe_failure
from barnabas.pipeline.jobs.data_files import is_misplaced
from barnabas.pipeline.spark.value_decoding import Decoding, misdecoded
from barnabas.pipeline.store.folder import ArchiveFolder
from barnabas.pipeline.store.lakes import committed_records, is_under_way, open_lake
from barnabas.pipeline.store.manifest import Manifest

POSITION = ("topic", "partition", "offset")


class AuditedTable:
    """The table of an archive."""

    def __init__(
        self, spark: SparkSession, folder: ArchiveFolder, manifest: Manifest, topics: Collection[str], *, is_all: bool
    ) -> None:
        self._folder = folder
        with self._spark_errors():
            records = open_lake(spark, folder).records()
        if is_under_way(folder, manifest.next_sequence):
            records = committed_records(records, manifest.end_offsets())
        self._found = records if is_all else records.where(records["topic"].isin(*topics))
        self._decoding = Decoding(**folder.metadata().decoding)
        self._ranges = {tp: ranges for tp, ranges in manifest.ranges.items() if tp.topic in topics}
        self.missing: list[str] = []
        self.unknown: list[str] = []
        self.unreadable: list[str] = []
        self.altered: list[str] = []
        self.readable: list[str] = []
        self.misdecoded = 0

    def check(self) -> None:
        """Compares the table with the manifest (rules 1 and 2)."""
        with self._spark_errors():
            self._check()

    def _check(self) -> None:
        found_at = [f.min("offset").alias("first"), f.count_if("is_misplaced").alias("misplaced")]
        hashed = self.records().select(*POSITION, is_misplaced(), record_hash().alias("hash"))
        rows = hashed.groupBy("topic", "partition").agg(*found_at, *sums("hash")).collect()
        found = {TopicPartition.of(row): row for row in rows}
        misdecoded_counts = self._misdecoded()
        self.misdecoded = sum(misdecoded_counts.values())
        for tp, ranges in sorted(self._ranges.items()):
            expected = sum(read.count for read in ranges), add_checksums(read.checksum for read in ranges)
            row = found.pop(tp, None)
            if row is None:
                is_altered = expected != (0, 0)
            else:
                is_before = row["first"] < ranges[0].start
                is_altered = (
                    (row["count"], combine_sums(row)) != expected
                    or is_before
                    or row["misplaced"] > 0
                    or tp in misdecoded_counts
                )
            if is_altered:
                self.altered.append(str(tp))
        self.unknown += map(str, sorted(found))
        if incomplete := self._found.where(~_has_position()).count():
            self.unreadable.append(f"{incomplete:,} records without topic, partition or offset")

    @contextlib.contextmanager
    def _spark_errors(self) -> Iterator[None]:
        """Turns Spark's errors about a damaged table into a JobError (rule 2)."""
        try:
            yield
        except (PySparkException, Py4JJavaError) as failure:
            raise JobError(f"The table of {self._folder.path} cannot be read: {describe_failure(failure)}") from failure

    def faults(self) -> list[str]:
        """Returns the partitions with a fault."""
        return [*self.altered, *self.unknown, *self.unreadable]

    def records(self) -> DataFrame:
        """Returns the records that have topic, partition and offset."""
        return self._found.where(_has_position())

    def malformed(self) -> DataFrame:
        """Returns the records with a decoding error."""
        return self.records().where("error is not null" if "error" in self._found.columns else "false")

    def _misdecoded(self) -> dict[TopicPartition, int]:
        """The number of records whose decoded data is wrong, by partition."""
        if self._decoding.format == "raw":
            return {}
        rows = misdecoded(self.records(), self._decoding).groupBy("topic", "partition").count().collect()
        return {TopicPartition.of(row): row["count"] for row in rows}


def _has_position() -> Column:
    return f.col("topic").isNotNull() & f.col("partition").isNotNull() & f.col("offset").isNotNull()
