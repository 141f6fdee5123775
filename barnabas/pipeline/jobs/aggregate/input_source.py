"""The input of an aggregate: a topic, or an archive of it, with the same offsets.

RULES    1. Both have a cluster id, a topic with its id, and start and end offsets. A job may start with the archive and
            continue with the topic.
         2. Only a topic can show the job's progress, as a consumer group.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.brokers import Brokers, Span, Topic
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.round_changes import check_not_replaced
from barnabas.pipeline.kafka.kafka_source import read_spans
from barnabas.pipeline.settings import BrokerSettings
from barnabas.pipeline.spark.rows import in_spans
from barnabas.pipeline.store.archive_reader import complete_manifest, read_archive
from barnabas.pipeline.store.folder import ArchiveFolder


class TopicInput:
    """A topic on its brokers."""

    def __init__(self, settings: BrokerSettings, name: str) -> None:
        self._settings = settings
        self._name = name
        self._brokers = Brokers(settings)
        self.cluster = self._brokers.cluster_id()
        self.topic = self._describe()

    def beginning_offsets(self) -> dict[TopicPartition, int]:
        """Returns the log start offsets."""
        return self._brokers.beginning_offsets(self.topic.topic_partitions())

    def end_offsets(self) -> dict[TopicPartition, int]:
        """Refreshes the topic's metadata and returns the last stable offsets."""
        self.topic = self._describe()
        return self._brokers.end_offsets(self.topic.topic_partitions())

    def read(self, spark: SparkSession, spans: Mapping[TopicPartition, Span]) -> DataFrame:
        """Returns the committed records."""
        return read_spans(spark, self._settings, spans)

    def publish_progress(self, group: str, ends: Mapping[TopicPartition, int]) -> None:
        """Commits the offsets for the group."""
        self._brokers.commit(group, ends)

    def check_not_replaced(self) -> None:
        """Raises JobError if the topic was created again since it was described."""
        check_not_replaced(self._brokers, [self.topic])

    def _describe(self) -> Topic:
        return self._brokers.find_topics([self._name])[self._name]


class ArchiveInput:
    """A topic in an archive."""

    def __init__(self, path: Path, name: str) -> None:
        self._folder = ArchiveFolder(path)
        self.cluster = self._folder.metadata().cluster
        manifest = complete_manifest(self._folder)
        partitions = [tp.partition for tp in manifest.ranges if tp.topic == name]
        if not partitions:
            raise JobError(f"The archive {self._folder.path} holds no topic {name}.")
        self.topic = Topic(name, manifest.topic_ids()[name], 1 + max(partitions))

    def beginning_offsets(self) -> dict[TopicPartition, int]:
        """Returns the archive's start offsets."""
        ranges = complete_manifest(self._folder).ranges
        return {tp: read[0].start for tp, read in ranges.items() if tp.topic == self.topic.name}

    def end_offsets(self) -> dict[TopicPartition, int]:
        """Returns the archive's end offsets."""
        ends = complete_manifest(self._folder).end_offsets()
        return {tp: end for tp, end in ends.items() if tp.topic == self.topic.name}

    def read(self, spark: SparkSession, spans: Mapping[TopicPartition, Span]) -> DataFrame:
        """Returns the archived records."""
        return in_spans(read_archive(spark, self._folder.path, [self.topic.name]), spans)

    def publish_progress(self, group: str, ends: Mapping[TopicPartition, int]) -> None:
        """Does nothing."""

    def check_not_replaced(self) -> None:
        """Does nothing: an archive has one topic of a name."""


InputSource = TopicInput | ArchiveInput
