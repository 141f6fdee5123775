"""A table of Delta or Iceberg as an audit finds it: the same face as the files of an archive.

RULES    1. What the table holds of a partition, by count, first offset and checksum, must be what the manifest's ranges add up
            to; where it is not, the partition is called altered. So it is where a record lies under another day than its
            own, or what is decoded is not what the value decodes to.
         2. Partitions that the manifest does not name are unknown; records without a topic, partition or offset are unreadable.
            A table that cannot be read is one sentence, which names what is missing.
         3. What lies behind the manifest's ends is a round under way; when none is, it is looked at like the rest.
NOT HERE The comparison with the topic (`audit.py`), decoding once more (`decoding_check.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from barnabas.pipeline.brokers import Place
from barnabas.pipeline.checksums import add_up, joined, record_hash, sums
from barnabas.pipeline.errors import JobError, sentence_of
from barnabas.pipeline.jobs.audit.decoding_check import misdecoded
from barnabas.pipeline.jobs.data_files import is_elsewhere
from barnabas.pipeline.spark.value_decoding import Decoding
from barnabas.pipeline.store.folder import ArchiveFolder
from barnabas.pipeline.store.lakes import committed, is_under_way, open_lake
from barnabas.pipeline.store.manifest import Manifest

PLACE = ("topic", "partition", "offset")


class AuditedTable:
    """The table of an archive."""

    def __init__(
        self, spark: SparkSession, folder: ArchiveFolder, manifest: Manifest, topics: Collection[str], *, is_all: bool
    ) -> None:
        self._folder = folder
        with self._readable():
            records = open_lake(spark, folder).records()
        if is_under_way(folder, manifest.next_sequence):
            records = committed(records, manifest.ends())
        self._found = records if is_all else records.where(records["topic"].isin(*topics))
        self._decoding = Decoding(**folder.identity().decoding)
        self._ranges = {place: ranges for place, ranges in manifest.ranges.items() if place.topic in topics}
        self.missing: list[str] = []
        self.unknown: list[str] = []
        self.unreadable: list[str] = []
        self.altered: list[str] = []
        self.readable: list[str] = []
        self.misdecoded = 0

    def check(self) -> None:
        """Hold the table against the manifest (rules 1 and 2)."""
        with self._readable():
            self._check()

    def _check(self) -> None:
        found_at = [f.min("offset").alias("first"), f.count_if("is_elsewhere").alias("elsewhere")]
        hashed = self.records().select(*PLACE, is_elsewhere(), record_hash().alias("hash"))
        rows = hashed.groupBy("topic", "partition").agg(*found_at, *sums("hash")).collect()
        found = {Place(row["topic"], row["partition"]): row for row in rows}
        wrong = self._misdecoded()
        self.misdecoded = sum(wrong.values())
        for place, ranges in sorted(self._ranges.items()):
            wanted = sum(read.count for read in ranges), add_up(read.checksum for read in ranges)
            row = found.pop(place, None)
            if row is None:
                is_altered = wanted != (0, 0)
            else:
                is_before = row["first"] < ranges[0].start
                is_altered = (
                    (row["count"], joined(row)) != wanted or is_before or row["elsewhere"] > 0 or place in wrong
                )
            if is_altered:
                self.altered.append(str(place))
        self.unknown += map(str, sorted(found))
        if nowhere := self._found.where(~_has_place()).count():
            self.unreadable.append(f"{nowhere:,} records without topic, partition or offset")

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        """What Spark says of a table that somebody damaged (rule 2)."""
        try:
            yield
        except (PySparkException, Py4JJavaError) as failure:
            raise JobError(f"The table of {self._folder.path} cannot be read: {sentence_of(failure)}") from failure

    def faults(self) -> list[str]:
        """Every partition that is not as it should be."""
        return [*self.altered, *self.unknown, *self.unreadable]

    def records(self) -> DataFrame:
        """What a reader finds."""
        return self._found.where(_has_place())

    def malformed(self) -> DataFrame:
        """The records that could not be decoded."""
        return self.records().where("error is not null" if "error" in self._found.columns else "false")

    def _misdecoded(self) -> dict[Place, int]:
        """In which partitions, and how often, what is decoded is not what the value says."""
        if self._decoding.format == "raw":
            return {}
        rows = misdecoded(self.records(), self._decoding).groupBy("topic", "partition").count().collect()
        return {Place(row["topic"], row["partition"]): row["count"] for row in rows}


def _has_place() -> Column:
    return f.col("topic").isNotNull() & f.col("partition").isNotNull() & f.col("offset").isNotNull()
