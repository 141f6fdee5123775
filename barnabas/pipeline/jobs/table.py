"""Maintains the latest value of each key of a topic as a Parquet table: the content of a compacted topic.

FORMAT   current/*.parquet       the table
         current/_hidden/        last records of a key and a partition that the table does not show (rule 4); readers ignore it
                                 (`_deleted` in versions written before 2026-11-28: deleted keys)
         _barnabas/table.json    the current version, its topic and its end offsets
RULES    1. Version and offsets are committed together (`store/versions.py`).
         2. The record with the highest offset of a partition wins; between partitions the later timestamp.
         3. A record without a value deletes its key. A record without a key is counted and skipped.
         4. Of a key in several partitions the last record of each is kept: the winner's partition may get an older timestamp,
            and then the record of another partition wins. A deletion that is the key's only record is kept until the table
            has caught up, since an older record of another partition may follow.
NOT HERE Decoding: the table holds bytes.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.brokers import Brokers, Span, Topic
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.data_files import isolated_session
from barnabas.pipeline.jobs.round_changes import check_not_replaced, skipping_deleted_records
from barnabas.pipeline.jobs.rounds import RoundSettings, plan_round, start_positions
from barnabas.pipeline.kafka.kafka_source import read_spans
from barnabas.pipeline.reporting.reporter import OnStep
from barnabas.pipeline.settings import setting
from barnabas.pipeline.store.archive_reader import no_records
from barnabas.pipeline.store.versions import Versions, open_versions

HIDDEN, FORMER_HIDDEN = "_hidden", "_deleted"
COLUMNS = "key binary, value binary, partition int, offset bigint, timestamp timestamp"
KEPT = ("key", "value", "partition", "offset", "timestamp")


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
            with skipping_deleted_records(
                self.settings, spans, partial(brokers.beginning_offsets, partitions), self.versions.clean_up
            ):
                records = self._round(brokers, topic, spans, drop_deleted=is_last or topic.partitions == 1)
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

    def _round(self, brokers: Brokers, topic: Topic, spans: dict[TopicPartition, Span], *, drop_deleted: bool) -> int:
        """Runs one round; returns its number of records."""
        records = read_spans(self.spark, self.settings, spans)
        version = self.state.version + 1
        staged = self.versions.stage()
        last = ranked(last_of_partitions(self._known().unionByName(records.select(*KEPT))))
        self._write(last, staged, drop_deleted=drop_deleted)
        counted = records.select(f.count("*").alias("all"), f.count("key").alias("keyed")).first()
        assert counted is not None, "an aggregate has one row"
        rows = self.spark.read.schema(COLUMNS).parquet(str(staged)).count()
        ends = self.state.ends | {str(tp.partition): span.end for tp, span in spans.items()}
        state = dataclasses.replace(self.state, version=version, rows=rows, ends=ends)
        check_not_replaced(brokers, [topic])
        self.versions.commit(staged, version, dataclasses.asdict(state))
        self.state = state
        self._rounds += 1
        self._records += counted["all"]
        self._without_key += counted["all"] - counted["keyed"]
        return int(counted["all"])

    def _write(self, last: DataFrame, staged: Path, *, drop_deleted: bool) -> None:
        """Writes the table, and the records that it does not show (rule 4)."""
        last.persist(StorageLevel.DISK_ONLY)  # used several times, computed once
        try:
            hidden = last.where(~is_shown())
            if drop_deleted:
                hidden = hidden.where("partitions > 1")
            if not hidden.isEmpty():
                hidden.select(*KEPT).write.parquet(str(staged / HIDDEN))
            last.where(is_shown()).select(*KEPT).write.mode("append").parquet(str(staged))
        finally:
            last.unpersist()

    def _known(self) -> DataFrame:
        """The last record of each key and partition."""
        if not self.state.version:
            return no_records(self.spark, COLUMNS)
        version = self.versions.path(self.state.version)
        read = self.spark.read.schema(COLUMNS)
        folders = [version, *(path for name in (HIDDEN, FORMER_HIDDEN) if (path := version / name).exists())]
        return reduce(DataFrame.unionByName, [read.parquet(str(folder)) for folder in folders])


# --- the steps --------------------------------------------------------------------------------------------------------


def last_of_partitions(records: DataFrame) -> DataFrame:
    """Returns the last record of each key in each partition."""
    record = f.struct("value", "offset", "timestamp")
    last = records.where("key is not null").groupBy("key", "partition").agg(f.max_by(record, "offset").alias("last"))
    return last.select("key", "last.value", "partition", "last.offset", "last.timestamp")


def ranked(last: DataFrame) -> DataFrame:
    """Adds the record's `place` among those of its key, 1 for the winner (rule 2), and the number of its `partitions`."""
    of_key = Window.partitionBy("key")
    newest_first = of_key.orderBy(*(f.desc(name) for name in ("timestamp", "offset", "partition")))
    return last.withColumn("place", f.row_number().over(newest_first)).withColumn(
        "partitions", f.count("*").over(of_key)
    )


def is_shown() -> Column:
    """Returns a column: whether the table shows a ranked record (rules 2 and 3)."""
    return (f.col("place") == 1) & f.col("value").isNotNull()


def _state(versions: Versions, cluster: str, topic: Topic) -> _State:
    """The table's state; it belongs to one topic of one cluster."""
    state = versions.state(_State)
    if state is None:
        return _State(cluster, topic.name, topic.id, 0, 0, {})
    if (state.cluster, state.topic) != (cluster, topic.name):
        raise JobError(f"{versions.folder} is the table of the topic {state.topic} of the cluster {state.cluster}.")
    return state
