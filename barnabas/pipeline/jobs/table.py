"""The latest value of each key of a topic, as a Parquet table that is brought up to date: what a compacted topic means.

FORMAT   current/*.parquet       the table, whole
         current/_deleted/       keys that are deleted, while rounds are to follow (rule 4); readers pass it by
         _barnabas/table.json    which version counts, of which topic, and up to which offsets
RULES    1. Version and offsets count together or not at all (`store/versions.py`).
         2. The record with the highest offset of a partition wins. Where a key has records in several partitions, the later
            timestamp does.
         3. A record without a value deletes its key; a record without a key is counted, and left out.
         4. What a round deleted is known to those that follow in catching up: a record of another partition may come
            later though it is older. Whoever has caught up forgets it.
NOT HERE Decoding values: the table has bytes.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from barnabas.pipeline.brokers import Brokers, Place, Span, Topic
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.data_files import own_session
from barnabas.pipeline.jobs.rounds import RoundSettings, plan_round, where_to_start
from barnabas.pipeline.kafka.kafka_source import read_spans
from barnabas.pipeline.reporting.reporter import Tell
from barnabas.pipeline.settings import setting
from barnabas.pipeline.store.archive_reader import no_records
from barnabas.pipeline.store.folder_lock import held, local_folder
from barnabas.pipeline.store.versions import OWN, Versions

DELETED = "_deleted"
COLUMNS = "key binary, value binary, partition int, offset bigint, timestamp timestamp"


@dataclass(frozen=True, kw_only=True)
class TableSettings(RoundSettings):
    """What `table` is told."""

    topic: str = setting("The topic.", metavar="NAME")
    into: Path = setting("The folder of the table.", metavar="FOLDER")
    max_offsets_per_trigger: int = setting(
        "The most offsets that a round takes; each round writes the table anew.", 10_000_000
    )
    group: str | None = setting("The consumer group that shows the progress.  [default: barnabas-table-<topic>]", None)


@dataclass
class TableReport:
    """What a run did."""

    table: str
    rounds: int
    records: int
    without_key: int
    rows: int
    version: int
    seconds: float = 0.0


@dataclass
class _State:
    """What table.json says."""

    cluster: str
    topic: str
    topic_id: str
    version: int
    rows: int
    ends: dict[str, int]


def table(spark: SparkSession, settings: TableSettings, tell: Tell = lambda _: None) -> TableReport:
    """Bring the table up to what the topic holds now."""
    started = time.monotonic()
    brokers = Brokers(settings)
    topic = brokers.find_topics([settings.topic])[settings.topic]
    folder = local_folder(settings.into)
    with held(folder / OWN):
        versions = Versions(folder, "table")
        run = _Run(own_session(spark), settings, versions, _state(versions, brokers.cluster_id(), topic), tell)
        try:
            report = run.catch_up(brokers, topic)
        except BaseException:
            versions.settle()  # a full disk gets its room back at once
            raise
    report.seconds = round(time.monotonic() - started, 1)
    return report


class _Run:
    """One run, round by round."""

    def __init__(
        self, spark: SparkSession, settings: TableSettings, versions: Versions, state: _State, tell: Tell
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._versions = versions
        self._state = state
        self._tell = tell
        self._group = settings.group or f"barnabas-table-{state.topic}"
        self._report = TableReport(str(versions.folder), 0, 0, 0, state.rows, state.version)

    def catch_up(self, brokers: Brokers, topic: Topic) -> TableReport:
        """Rounds up to what the topic holds now."""
        places = {Place(topic.name, number): topic for number in range(topic.partitions)}
        ends = brokers.ends(places)
        self._versions.settle()
        while True:
            read = self._ends()
            waiting = where_to_start(
                places,
                read,
                {topic.name: self._state.topic_id},
                brokers.starts(places),
                ends,
                fail_on_data_loss=self._settings.fail_on_data_loss,
            )
            if read:
                brokers.commit(self._group, read)  # also when the run that read it was killed at once
            spans = plan_round(waiting, ends, self._settings.max_offsets_per_trigger)
            if not spans:
                return self._report
            began = time.monotonic()
            is_last = all(span.end == ends[place] for place, span in spans.items())
            records = self._round(spans, may_forget=is_last or topic.partitions == 1)
            held = self._ends()
            said = {"version": self._state.version, "records": records, "rows": self._state.rows}
            behind = sum(end - held.get(place, waiting[place].start) for place, end in ends.items())
            self._tell({**said, "seconds": round(time.monotonic() - began, 3), "behind": behind})

    def _ends(self) -> dict[Place, int]:
        """Where the next round starts."""
        return {Place(self._state.topic, int(number)): end for number, end in self._state.ends.items()}

    def _round(self, spans: dict[Place, Span], *, may_forget: bool) -> int:
        """One round; how many records it had."""
        records = read_spans(self._spark, self._settings, spans)
        version = self._state.version + 1
        staged = self._versions.stage()
        self._write(merge(self._known(), latest_by_key(records)), staged, may_forget=may_forget)
        counted = records.select(f.count("*").alias("all"), f.count("key").alias("keyed")).first()
        assert counted is not None, "an aggregate has one row"
        rows = self._spark.read.schema(COLUMNS).parquet(str(staged)).count()
        ends = self._state.ends | {str(place.partition): span.end for place, span in spans.items()}
        state = dataclasses.replace(self._state, version=version, rows=rows, ends=ends)
        self._versions.commit(staged, version, dataclasses.asdict(state))
        self._state = state
        self._report.rounds += 1
        self._report.records += counted["all"]
        self._report.without_key += counted["all"] - counted["keyed"]
        self._report.rows, self._report.version = rows, version
        return int(counted["all"])

    def _write(self, latest: DataFrame, staged: Path, *, may_forget: bool) -> None:
        """The table, and what is deleted if that must be known (rule 4)."""
        try:
            if not may_forget:
                latest.persist(StorageLevel.DISK_ONLY)  # written twice, read once
                latest.where("value is null").write.parquet(str(staged / DELETED))
            latest.where("value is not null").write.mode("append").parquet(str(staged))
        finally:
            latest.unpersist()

    def _known(self) -> DataFrame:
        """The latest record of each key so far, those that delete theirs among them (rule 4)."""
        if not self._state.version:
            return no_records(self._spark, COLUMNS)
        version = self._versions.path(self._state.version)
        read = self._spark.read.schema(COLUMNS)
        rows = read.parquet(str(version))
        return rows.union(read.parquet(str(version / DELETED))) if (version / DELETED).exists() else rows


# --- the steps --------------------------------------------------------------------------------------------------------


def latest_by_key(records: DataFrame) -> DataFrame:
    """The record of each key that wins (rules 2 and 3)."""
    place = f.struct("timestamp", "offset", "value")
    last_of_partition = (
        records.where("key is not null").groupBy("key", "partition").agg(f.max_by(place, "offset").alias("last"))
    )
    whole = f.struct(
        f.col("last.timestamp").alias("timestamp"),
        f.col("last.offset").alias("offset"),
        "partition",
        f.col("last.value").alias("value"),
    )
    order = f.struct("last.timestamp", "last.offset", "partition")
    winner = last_of_partition.groupBy("key").agg(f.max_by(whole, order).alias("last"))
    return winner.select("key", "last.value", "last.partition", "last.offset", "last.timestamp")


def merge(rows: DataFrame, news: DataFrame) -> DataFrame:
    """What is known with what is new: a key's newer record replaces its row, one without a value too (rule 3)."""
    columns = ("key", "value", "partition", "offset", "timestamp")
    old = rows.select(f.struct(*columns).alias("old"), "key")
    new = news.select(f.struct(*columns).alias("new"), "key")
    is_newer = f.col("new").isNotNull() & (
        f.col("old").isNull()
        | (f.col("old.partition") == f.col("new.partition"))
        | (f.col("old.timestamp") <= f.col("new.timestamp"))
    )
    row = f.when(is_newer, f.col("new")).otherwise(f.col("old"))
    return old.join(new, "key", "full_outer").select(row.alias("row")).select("row.*")


def _state(versions: Versions, cluster: str, topic: Topic) -> _State:
    """What the table is now; it is of one topic of one cluster for ever."""
    said = versions.state()
    if said is None:
        return _State(cluster, topic.name, topic.id, 0, 0, {})
    try:
        state = _State(**said)
    except TypeError as failure:
        raise JobError(f"{versions.state_file} is damaged: {failure}.") from failure
    if (state.cluster, state.topic) != (cluster, topic.name):
        raise JobError(f"{versions.folder} is the table of the topic {state.topic} of the cluster {state.cluster}.")
    return state
