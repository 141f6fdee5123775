"""What a job reads round by round: a topic, or an archive of it; the offsets are the same.

RULES    1. Both have a cluster, a topic with its id, and a span of offsets for each partition: a job that began with the
            archive can go on with the topic.
         2. Only a topic has brokers who show how far the job is, as a consumer group.
NOT HERE Which offsets a round takes (`rounds.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from barnabas.pipeline.brokers import Brokers, Place, Span, Topic
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.kafka.kafka_source import read_spans
from barnabas.pipeline.settings import BrokerSettings
from barnabas.pipeline.store.archive_reader import COLUMNS, no_records, read_archive, settled_manifest
from barnabas.pipeline.store.folder import ArchiveFolder


class Origin(Protocol):
    """Where a topic's records are read."""

    cluster: str
    topic: Topic

    def starts(self) -> dict[Place, int]:
        """The first offset of each partition that is there."""
        ...

    def ends(self) -> dict[Place, int]:
        """Up to where each partition can be read now."""
        ...

    def read(self, spark: SparkSession, spans: Mapping[Place, Span]) -> DataFrame:
        """The records of these offsets."""
        ...

    def show(self, group: str, ends: Mapping[Place, int]) -> None:
        """Let tools see how far the job is."""
        ...


class OfTopic:
    """A live topic."""

    def __init__(self, settings: BrokerSettings, name: str) -> None:
        self._settings = settings
        self._name = name
        self._brokers = Brokers(settings)
        self.cluster = self._brokers.cluster_id()
        self.topic = self._look()

    def starts(self) -> dict[Place, int]:
        """The log start offsets."""
        return self._brokers.starts(self._places())

    def ends(self) -> dict[Place, int]:
        """The last stable offsets; the topic may have got partitions, or be another one."""
        self.topic = self._look()
        return self._brokers.ends(self._places())

    def read(self, spark: SparkSession, spans: Mapping[Place, Span]) -> DataFrame:
        """The committed records."""
        return read_spans(spark, self._settings, spans)

    def show(self, group: str, ends: Mapping[Place, int]) -> None:
        """Commit for the group."""
        self._brokers.commit(group, ends)

    def _look(self) -> Topic:
        return self._brokers.find_topics([self._name])[self._name]

    def _places(self) -> list[Place]:
        return [Place(self.topic.name, number) for number in range(self.topic.partitions)]


class OfArchive:
    """A topic as an archive holds it."""

    def __init__(self, path: Path, name: str) -> None:
        self._folder = ArchiveFolder(path)
        self.cluster = self._folder.identity().cluster
        manifest = settled_manifest(self._folder)
        held = [place.partition for place in manifest.ranges if place.topic == name]
        if not held:
            raise JobError(f"The archive {self._folder.path} holds no topic {name}.")
        self.topic = Topic(name, manifest.topic_ids()[name], 1 + max(held), 0)

    def starts(self) -> dict[Place, int]:
        """Where the archive begins."""
        ranges = settled_manifest(self._folder).ranges
        return {place: read[0].start for place, read in ranges.items() if place.topic == self.topic.name}

    def ends(self) -> dict[Place, int]:
        """Where the archive ends."""
        ends = settled_manifest(self._folder).ends()
        return {place: end for place, end in ends.items() if place.topic == self.topic.name}

    def read(self, spark: SparkSession, spans: Mapping[Place, Span]) -> DataFrame:
        """The archived records."""
        wanted = [
            (f.col("partition") == place.partition) & f.col("offset").between(span.start, span.end - 1)
            for place, span in spans.items()
        ]
        if not wanted:
            return no_records(spark).select(*COLUMNS)
        records = read_archive(spark, self._folder.path, [self.topic.name])
        return records.where(reduce(lambda one, other: one | other, wanted))

    def show(self, group: str, ends: Mapping[Place, int]) -> None:
        """There is nobody to show it to."""
