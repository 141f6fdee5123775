"""Maintains the latest value of each key of a topic as a Parquet table: the content of a compacted topic.

FORMAT   current/*.parquet       the table
         current/_deleted/       deleted keys, while more rounds follow (rule 4); readers ignore it
         _barnabas/table.json    the current version, its topic and its end offsets
RULES    1. Version and offsets are committed together (`store/versions.py`).
         2. The record with the highest offset of a partition wins; between partitions the later timestamp.
         3. A record without a value deletes its key. A record without a key is counted and skipped.
         4. Deleted keys are kept until the table has caught up, since an older record of another partition may follow.
NOT HERE Decoding: the table holds bytes.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.brokers import Brokers, Span, Topic
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.data_files import isolated_session
from barnabas.pipeline.jobs.rounds import RoundSettings, plan_round, start_positions
from barnabas.pipeline.kafka.kafka_source import read_spans
from barnabas.pipeline.reporting.reporter import OnStep
from barnabas.pipeline.settings import setting
from barnabas.pipeline.store.archive_reader import no_records
from barnabas.pipeline.store.versions import Versions, open_versions

DELETED = "_deleted"
COLUMNS = "key binary, value binary, partition int, offset bigint, timestamp timestamp"


@dataclass(frozen=True, kw_only=True)
class TableSettings(RoundSettings):
    """Settings of `table`."""

    topic: str = setting("The topic.", metavar="NAME")
    into: Path = setting("The folder of the table.", metavar="FOLDER")
    max_offsets_per_trigger: int = setting(
        "The largest number of offsets that a round reads; each round rewrites the table.", 10_000_000
    )
    group: str | None = setting("The consumer group that shows the progress.  [default: barnabas-table-<topic>]", None)


@dataclass
class TableReport:
    """The result of a run."""

    table: str
    rounds: int
    records: int
    without_key: int
    rows: int
    version: int
    seconds: float = 0.0


@dataclass
class _State:
    """The content of table.json."""

    cluster: str
    topic: str
    topic_id: str
    version: int
    rows: int
    ends: dict[str, int]


def table(spark: SparkSession, settings: TableSettings, on_step: OnStep = lambda _: None) -> TableReport:
    """Updates the table to the topic's current end."""
    started = time.monotonic()
    brokers = Brokers(settings)
    topic = brokers.find_topics([settings.topic])[settings.topic]
    with open_versions(settings.into, "table") as versions:
        state = _state(versions, brokers.cluster_id(), topic)
        report = _Run(isolated_session(spark), settings, versions, state, on_step).catch_up(brokers, topic)
    report.seconds = round(time.monotonic() - started, 1)
    return report


@dataclass
class _Run:
    """One run."""

    spark: SparkSession
    settings: TableSettings
    versions: Versions
    state: _State
    on_step: OnStep

    def __post_init__(self) -> None:
        self._group = self.settings.group or f"barnabas-table-{self.state.topic}"
        self._rounds = self._records = self._without_key = 0

    def catch_up(self, brokers: Brokers, topic: Topic) -> TableReport:
        """Runs rounds up to the topic's current end."""
        partitions = dict.fromkeys(topic.topic_partitions(), topic)
        ends = brokers.end_offsets(partitions)
        while True:
            read = self._next_offsets()
            ids = {topic.name: self.state.topic_id}
            positions = start_positions(
                self.settings, partitions, read, ids, brokers.beginning_offsets(partitions), ends
            )
            if read:
                brokers.commit(self._group, read)  # also after a crash of the run that read them
            spans = plan_round(positions, ends, self.settings.max_offsets_per_trigger)
            if not spans:
                return self._report()
            began = time.monotonic()
            is_last = all(span.end == ends[tp] for tp, span in spans.items())
            records = self._round(spans, drop_deleted=is_last or topic.partitions == 1)
            read = self._next_offsets()
            step = {"version": self.state.version, "records": records, "rows": self.state.rows}
            behind = sum(end - read.get(tp, positions[tp].start) for tp, end in ends.items())
            self.on_step({**step, "seconds": round(time.monotonic() - began, 3), "behind": behind})

    def _report(self) -> TableReport:
        folder, state = str(self.versions.folder), self.state
        return TableReport(folder, self._rounds, self._records, self._without_key, state.rows, state.version)

    def _next_offsets(self) -> dict[TopicPartition, int]:
        """The start offsets of the next round."""
        return {TopicPartition(self.state.topic, int(number)): end for number, end in self.state.ends.items()}

    def _round(self, spans: dict[TopicPartition, Span], *, drop_deleted: bool) -> int:
        """Runs one round; returns its number of records."""
        records = read_spans(self.spark, self.settings, spans)
        version = self.state.version + 1
        staged = self.versions.stage()
        self._write(merge(self._known(), latest_by_key(records)), staged, drop_deleted=drop_deleted)
        counted = records.select(f.count("*").alias("all"), f.count("key").alias("keyed")).first()
        assert counted is not None, "an aggregate has one row"
        rows = self.spark.read.schema(COLUMNS).parquet(str(staged)).count()
        ends = self.state.ends | {str(tp.partition): span.end for tp, span in spans.items()}
        state = dataclasses.replace(self.state, version=version, rows=rows, ends=ends)
        self.versions.commit(staged, version, dataclasses.asdict(state))
        self.state = state
        self._rounds += 1
        self._records += counted["all"]
        self._without_key += counted["all"] - counted["keyed"]
        return int(counted["all"])

    def _write(self, latest: DataFrame, staged: Path, *, drop_deleted: bool) -> None:
        """Writes the table, and the deleted keys if more rounds follow (rule 4)."""
        try:
            if not drop_deleted:
                latest.persist(StorageLevel.DISK_ONLY)  # written twice, read once
                latest.where("value is null").write.parquet(str(staged / DELETED))
            latest.where("value is not null").write.mode("append").parquet(str(staged))
        finally:
            latest.unpersist()

    def _known(self) -> DataFrame:
        """The latest record of each key, including deletions (rule 4)."""
        if not self.state.version:
            return no_records(self.spark, COLUMNS)
        version = self.versions.path(self.state.version)
        read = self.spark.read.schema(COLUMNS)
        rows = read.parquet(str(version))
        return rows.union(read.parquet(str(version / DELETED))) if (version / DELETED).exists() else rows


# --- the steps --------------------------------------------------------------------------------------------------------


def latest_by_key(records: DataFrame) -> DataFrame:
    """Returns the winning record of each key (rules 2 and 3)."""
    fields = f.struct("timestamp", "offset", "value")
    keyed = records.where("key is not null")
    last_of_partition = keyed.groupBy("key", "partition").agg(f.max_by(fields, "offset").alias("last"))
    record = f.struct(
        f.col("last.timestamp").alias("timestamp"),
        f.col("last.offset").alias("offset"),
        "partition",
        f.col("last.value").alias("value"),
    )
    order = f.struct("last.timestamp", "last.offset", "partition")
    winner = last_of_partition.groupBy("key").agg(f.max_by(record, order).alias("last"))
    return winner.select("key", "last.value", "last.partition", "last.offset", "last.timestamp")


def merge(rows: DataFrame, latest: DataFrame) -> DataFrame:
    """Merges rows with newer records; a record without a value also replaces its row (rule 3)."""
    columns = ("key", "value", "partition", "offset", "timestamp")
    old = rows.select(f.struct(*columns).alias("old"), "key")
    new = latest.select(f.struct(*columns).alias("new"), "key")
    is_newer = f.col("new").isNotNull() & (
        f.col("old").isNull()
        | (f.col("old.partition") == f.col("new.partition"))
        | (f.col("old.timestamp") <= f.col("new.timestamp"))
    )
    row = f.when(is_newer, f.col("new")).otherwise(f.col("old"))
    return old.join(new, "key", "full_outer").select(row.alias("row")).select("row.*")


def _state(versions: Versions, cluster: str, topic: Topic) -> _State:
    """The table's state; it belongs to one topic of one cluster."""
    state = versions.state(_State)
    if state is None:
        return _State(cluster, topic.name, topic.id, 0, 0, {})
    if (state.cluster, state.topic) != (cluster, topic.name):
        raise JobError(f"{versions.folder} is the table of the topic {state.topic} of the cluster {state.cluster}.")
    return state
