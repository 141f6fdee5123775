"""A table of Delta or Iceberg as an audit finds it: the same face as the files of an archive.

RULES    1. What the table holds of a partition, by count and checksum, must be what the manifest's ranges add up to;
            where it is not, the partition is called altered.
         2. What lies behind the manifest's ends is a round under way; when none is, it is looked at like the rest.
NOT HERE The comparison with the topic (`audit.py`); whether `data` is what the value decodes to, which only files are asked
         (`audited_files.py`).
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import DataFrame, SparkSession

from barnabas.pipeline.brokers import Place
from barnabas.pipeline.checksums import add_up, joined, record_hash, sums
from barnabas.pipeline.store.folder import ArchiveFolder
from barnabas.pipeline.store.lakes import committed, is_under_way, open_lake
from barnabas.pipeline.store.manifest import Manifest


class AuditedTable:
    """The table of an archive."""

    def __init__(self, spark: SparkSession, folder: ArchiveFolder, manifest: Manifest, topics: Collection[str]) -> None:
        records = open_lake(spark, folder).records()
        if is_under_way(folder, manifest.next_sequence):
            records = committed(records, manifest.ends())
        self._records = records.where(records["topic"].isin(*topics))
        self._ranges = {place: ranges for place, ranges in manifest.ranges.items() if place.topic in topics}
        self.missing: list[str] = []
        self.unknown: list[str] = []
        self.unreadable: list[str] = []
        self.altered: list[str] = []
        self.readable: list[str] = []
        self.misdecoded = 0

    def check(self) -> None:
        """Hold the table against the manifest (rule 1)."""
        hashed = self._records.select("topic", "partition", record_hash().alias("hash"))
        found = {
            Place(row["topic"], row["partition"]): (row["count"], joined(row))
            for row in hashed.groupBy("topic", "partition").agg(*sums("hash")).collect()
        }
        for place, ranges in sorted(self._ranges.items()):
            wanted = sum(read.count for read in ranges), add_up(read.checksum for read in ranges)
            if found.pop(place, (0, 0)) != wanted:
                self.altered.append(str(place))
        self.unknown += map(str, sorted(found))

    def faults(self) -> list[str]:
        """Every partition that is not as it should be."""
        return [*self.altered, *self.unknown]

    def records(self) -> DataFrame:
        """What a reader finds."""
        return self._records
