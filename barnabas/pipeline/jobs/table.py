"""The latest value of each key of a topic, as a Parquet table that is brought up to date: what a compacted topic means.

FORMAT   versions/<number>/*.parquet   the table, whole; the one before it stays until the next
         current                       a link to the version that counts, for any reader
         _barnabas/table.json          which version counts, of which topic, and up to which offsets
RULES    1. table.json is renamed into place: version and offsets count together or not at all. `current` follows it, and is set
            right by the next run.
         2. The record with the highest offset of a partition wins. Where a key has records in several partitions, the later
            timestamp does.
         3. A record without a value deletes its key; a record without a key is counted, and left out.
NOT HERE Decoding values: the table has bytes.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from barnabas.pipeline.brokers import Brokers, Place, Span, Topic
from barnabas.pipeline.jobs.rounds import plan_round, where_to_start
from barnabas.pipeline.jobs.writing import own_session
from barnabas.pipeline.kafka_source import read_spans
from barnabas.pipeline.settings import BrokerSettings, setting
from barnabas.pipeline.store.holding import held, local_folder
from barnabas.pipeline.store.manifest import write_durably
from barnabas.pipeline.store.reading import no_records
from barnabas.pipeline.trouble import JobError

Tell = Callable[[dict[str, Any]], None]
COLUMNS = "key binary, value binary, partition int, offset bigint, timestamp timestamp"


@dataclass(frozen=True, kw_only=True)
class TableSettings(BrokerSettings):
    """What `table` is told."""

    topic: str = setting("The topic.", metavar="NAME")
    into: Path = setting("The folder of the table.", metavar="FOLDER")
    max_offsets_per_trigger: int = setting(
        "The most offsets that a round takes; each round writes the table anew.", 10_000_000
    )
    fail_on_data_loss: bool = setting("Stop where the broker has forgotten what was not read.", True)


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
    if settings.max_offsets_per_trigger < 1:
        raise JobError("--max-offsets-per-trigger takes at least 1.")
    brokers = Brokers(settings)
    topic = brokers.find_topics([settings.topic])[settings.topic]
    folder = local_folder(settings.into)
    with held(folder / "_barnabas"):
        run = _Run(own_session(spark), settings, folder, _state(folder, brokers.cluster_id(), topic), tell)
        report = run.catch_up(brokers, topic)
    report.seconds = round(time.monotonic() - started, 1)
    return report


class _Run:
    """One run, round by round."""

    def __init__(self, spark: SparkSession, settings: TableSettings, folder: Path, state: _State, tell: Tell) -> None:
        self._spark = spark
        self._settings = settings
        self._folder = folder
        self._state = state
        self._tell = tell
        self._report = TableReport(str(folder), 0, 0, 0, state.rows, state.version)

    def catch_up(self, brokers: Brokers, topic: Topic) -> TableReport:
        """Rounds up to what the topic holds now."""
        places = {Place(topic.name, number): topic for number in range(topic.partitions)}
        ends = brokers.ends(places)
        self._tidy()
        while True:
            read = {Place(topic.name, int(number)): end for number, end in self._state.ends.items()}
            waiting = where_to_start(
                places,
                read,
                {topic.name: self._state.topic_id},
                brokers.starts(places),
                ends,
                fail_on_data_loss=self._settings.fail_on_data_loss,
            )
            spans = plan_round(waiting, ends, self._settings.max_offsets_per_trigger)
            if not spans:
                return self._report
            self._round(spans)

    def _round(self, spans: dict[Place, Span]) -> None:
        records = read_spans(self._spark, self._settings, spans)
        version = self._state.version + 1
        target = self._version(version)
        shutil.rmtree(target, ignore_errors=True)  # of a run that was killed
        merge(self._table(), latest_by_key(records)).write.parquet(str(target))
        counted = records.select(f.count("*").alias("all"), f.count("key").alias("keyed")).first()
        assert counted is not None, "an aggregate has one row"
        rows = self._spark.read.schema(COLUMNS).parquet(str(target)).count()
        ends = self._state.ends | {str(place.partition): span.end for place, span in spans.items()}
        self._state = dataclasses.replace(self._state, version=version, rows=rows, ends=ends)
        write_durably(self._folder / "_barnabas" / "table.json", json.dumps(dataclasses.asdict(self._state)) + "\n")
        self._tidy()
        self._report.rounds += 1
        self._report.records += counted["all"]
        self._report.without_key += counted["all"] - counted["keyed"]
        self._report.rows, self._report.version = rows, version
        self._tell({"version": version, "records": counted["all"], "rows": rows})

    def _table(self) -> DataFrame:
        if not self._state.version:
            return no_records(self._spark, COLUMNS)
        return self._spark.read.schema(COLUMNS).parquet(str(self._version(self._state.version)))

    def _version(self, number: int) -> Path:
        return self._folder / "versions" / f"{number:08d}"

    def _tidy(self) -> None:
        """Point `current` at the version that counts, and remove those before the one before it (rule 1)."""
        if not self._state.version:
            return
        link = self._folder / ".current.new"
        link.unlink(missing_ok=True)
        link.symlink_to(Path("versions") / self._version(self._state.version).name)
        link.replace(self._folder / "current")
        for path in (self._folder / "versions").iterdir():
            if int(path.name) < self._state.version - 1:
                shutil.rmtree(path)


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
    """The table with what is new: a key's newer record replaces its row, one without a value removes it."""
    columns = ("key", "value", "partition", "offset", "timestamp")
    old = rows.select(f.struct(*columns).alias("old"), "key")
    new = news.select(f.struct(*columns).alias("new"), "key")
    is_newer = f.col("new").isNotNull() & (
        f.col("old").isNull()
        | (f.col("old.partition") == f.col("new.partition"))
        | (f.col("old.timestamp") <= f.col("new.timestamp"))
    )
    row = f.when(is_newer, f.col("new")).otherwise(f.col("old"))
    both = old.join(new, "key", "full_outer").select(row.alias("row"))
    return both.where("row.value is not null").select("row.*")


def _state(folder: Path, cluster: str, topic: Topic) -> _State:
    """What the table is now; it is of one topic of one cluster for ever."""
    file = folder / "_barnabas" / "table.json"
    if not file.exists():
        strangers = [path.name for path in folder.iterdir() if path.name not in {"_barnabas", "versions"}]
        if strangers:
            raise JobError(f"{folder} is no table and not empty ({strangers[0]}): name a folder of its own.")
        return _State(cluster, topic.name, topic.id, 0, 0, {})
    try:
        state = _State(**json.loads(file.read_text()))
    except (ValueError, TypeError) as failure:
        raise JobError(f"{file} is damaged: {failure}.") from failure
    if (state.cluster, state.topic) != (cluster, topic.name):
        raise JobError(f"{folder} is the table of the topic {state.topic} of the cluster {state.cluster}.")
    return state
