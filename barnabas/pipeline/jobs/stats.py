"""Rates, sizes, key skew, and consumer lag over time: as a table and as plots.

RULES    1. Each figure is a function from DataFrame to DataFrame, over the Kafka source's records.
         2. Time is the records' timestamps, in windows of the given width; by default about WINDOWS windows.
         3. Lag is computed from `__consumer_offsets` (committed offset and time of each group) and the topic's timestamps.
            Commits that compaction removed are unknown; the newest commit of each group and partition remains.
         4. With a log directory everything is read from files, without a broker.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from barnabas.pipeline.brokers import Brokers
from barnabas.pipeline.datetimes import parse_timestamp_ms
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.data_files import isolated_session
from barnabas.pipeline.kafka.kafka_source import read_spans
from barnabas.pipeline.reporting.reporter import OnStep
from barnabas.pipeline.settings import BrokerSettings, setting
from barnabas.pipeline.sources.segments import read_segments
from barnabas.pipeline.spark.rows import ISO, between, collect_rows

OFFSETS_TOPIC = "__consumer_offsets"
WINDOWS = 120
SECOND_MS = 1000
TOP_KEYS = 20
LONGEST_WINDOW_S = 10**10
"""Three centuries."""


@dataclass(frozen=True, kw_only=True)
class StatsSettings(BrokerSettings):
    """Settings of `stats`."""

    topic: tuple[str, ...] = setting("A topic; may be repeated.", (), metavar="NAME")
    group: tuple[str, ...] = setting("The lag of this group; may be repeated.  [default: of every group]", ())
    log_dir: Path | None = setting("Read the files in this log directory, without a broker.", None)
    start_time: str | None = setting(
        "Only records at or after this time: ISO 8601 (UTC by default), or milliseconds.", None
    )
    end_time: str | None = setting("Only records before this time.", None)
    window: float | None = setting(
        "The width of a window in seconds.  [default: a 120th of the time range of the records]", None
    )
    into: Path = setting("The folder of the plots.", Path("barnabas-stats"), metavar="FOLDER")

    @property
    def needs_broker(self) -> bool:
        """Whether a broker is read; a log directory needs none."""
        return self.log_dir is None


@dataclass
class StatsReport:
    """All figures."""

    window_s: float
    plots: str
    lines: list[dict[str, Any]] = field(repr=False)
    """One line per topic."""
    rates: list[dict[str, Any]] = field(repr=False, default_factory=list)
    keys: list[dict[str, Any]] = field(repr=False, default_factory=list)
    partitions: list[dict[str, Any]] = field(repr=False, default_factory=list)
    lags: list[dict[str, Any]] = field(repr=False, default_factory=list)


def stats(spark: SparkSession, settings: StatsSettings, on_step: OnStep = lambda _: None) -> StatsReport:
    """Computes the figures and draws the plots."""
    from barnabas.pipeline.jobs.stats_plots import draw

    if not settings.topic:
        raise JobError("stats needs --topic.")
    if settings.window is not None and not 0 < settings.window <= LONGEST_WINDOW_S:
        raise JobError(f"--window takes more than 0 seconds, and at most {LONGEST_WINDOW_S:,}.")
    session = isolated_session(spark)
    records, commits = _sources(session, settings)
    records = between(records, parse_timestamp_ms(settings.start_time), parse_timestamp_ms(settings.end_time))
    records = records.select("topic", "partition", "offset", "timestamp", "key", "value").persist()
    try:
        on_step({"step": "counting", "topics": ", ".join(settings.topic)})
        width_ms = _width_ms(records, settings)
        report = StatsReport(
            width_ms / SECOND_MS,
            str(settings.into),
            _rows(totals(records).orderBy("topic")),
            _rows(rates(records, width_ms).orderBy("topic", "window_ms")),
            _rows(top_keys(records).orderBy("topic", "rank")),
            _rows(partition_shares(records).orderBy("topic", "partition")),
        )
        if commits is not None:
            chosen = _of_groups(parse_offset_commits(commits), settings)
            report.lags = _rows(lags(records, chosen, width_ms).orderBy("group", "topic", "window_ms"))
    finally:
        records.unpersist()
    draw(report, settings.into)
    return report


# --- the steps --------------------------------------------------------------------------------------------------------


def _size() -> Column:
    return f.coalesce(f.octet_length("key"), f.lit(0)) + f.coalesce(f.octet_length("value"), f.lit(0))


def _timestamp_ms() -> Column:
    return f.unix_millis("timestamp")


def _window_of(timestamp_ms: Column, width_ms: int) -> Column:
    return f.floor(timestamp_ms / f.lit(width_ms)) * f.lit(width_ms)


def totals(records: DataFrame) -> DataFrame:
    """Counts, sizes and time range of each topic."""
    sized = records.withColumn("size", _size())
    quantiles = {"median": 0.5, "p99": 0.99}
    return sized.groupBy("topic").agg(
        f.count("*").alias("records"),
        f.sum("size").alias("bytes"),
        f.sum(f.col("value").isNull().cast("long")).alias("tombstones"),
        f.approx_count_distinct("key").alias("keys"),
        *(f.percentile_approx("size", share).alias(f"{name}_bytes") for name, share in quantiles.items()),
        f.max("size").alias("largest_bytes"),
        f.date_format(f.min("timestamp"), ISO).alias("first"),
        f.date_format(f.max("timestamp"), ISO).alias("last"),
    )


def rates(records: DataFrame, width_ms: int) -> DataFrame:
    """Records and bytes per second, by topic and window."""
    seconds = width_ms / SECOND_MS
    found = records.groupBy("topic", _window_of(_timestamp_ms(), width_ms).cast("long").alias("window_ms"))
    counted = found.agg(f.count("*").alias("records"), f.sum(_size()).alias("bytes"))
    return counted.select(
        "topic",
        "window_ms",
        "records",
        "bytes",
        (f.col("records") / seconds).alias("records_per_s"),
        (f.col("bytes") / seconds).alias("bytes_per_s"),
    )


def top_keys(records: DataFrame, count: int = TOP_KEYS) -> DataFrame:
    """The most common keys of each topic, with their share of its records with a key."""
    counted = records.where("key is not null").groupBy("topic", "key").agg(f.count("*").alias("records"))
    by_topic = Window.partitionBy("topic")
    ranked = counted.select(
        "topic",
        "key",
        "records",
        (f.col("records") / f.sum("records").over(by_topic)).alias("share"),
        f.row_number().over(by_topic.orderBy(f.desc("records"), "key")).alias("rank"),
    )
    text = f.col("key").cast("string")
    readable = f.when(f.is_valid_utf8(text), text).otherwise(f.concat(f.lit("0x"), f.hex("key")))
    return ranked.where(f.col("rank") <= count).withColumn("key", readable)


def partition_shares(records: DataFrame) -> DataFrame:
    """The records of each partition, and their share of the topic's."""
    counted = records.groupBy("topic", "partition").agg(f.count("*").alias("records"))
    share = f.col("records") / f.sum("records").over(Window.partitionBy("topic"))
    return counted.withColumn("share", share)


def parse_offset_commits(offsets: DataFrame) -> DataFrame:
    """Parses the records of `__consumer_offsets`: group, topic, partition, committed offset, time.

    A key is i16 version (0 or 1), string group, string topic, i32 partition, a string being i16 length and UTF-8; a value is
    i16 version and i64 offset, followed by other fields. Keys of other versions are group metadata.
    """
    group_end = f.lit(5) + _number("key", f.lit(3), 2)
    topic_end = group_end + 2 + _number("key", group_end, 2)
    return offsets.where((_number("key", f.lit(1), 2) <= 1) & f.col("value").isNotNull()).select(
        f.decode(f.substr("key", f.lit(5), group_end - 5), "utf-8").alias("group"),
        f.decode(f.substr("key", group_end + 2, topic_end - group_end - 2), "utf-8").alias("topic"),
        _number("key", topic_end, 4).cast("int").alias("partition"),
        _number("value", f.lit(3), 8).cast("long").alias("committed"),
        _timestamp_ms().alias("ms"),
        f.col("offset").alias("order"),
    )


def _number(column: str, begin: Column, size: int) -> Column:
    """A non-negative big-endian number; positions start at 1."""
    digits = f.hex(f.substr(column, begin.cast("int"), f.lit(size)))
    return f.conv(digits, 16, 10).cast("int" if size < 4 else "long")


def lags(records: DataFrame, commits: DataFrame, width_ms: int) -> DataFrame:
    """The lag of each group, topic and window, at the window's end, over all partitions (rule 3)."""
    partition_key = ["topic", "partition"]
    window = _window_of(_timestamp_ms(), width_ms).cast("long")
    grouped = records.groupBy(*partition_key, window.alias("window_ms"))
    ends = grouped.agg((f.max("offset") + 1).alias("end"), f.min("offset").alias("first"))
    last = f.max_by("committed", f.struct("ms", "order")).alias("committed")
    when = _window_of(f.col("ms"), width_ms).cast("long").alias("window_ms")
    group_commits = commits.groupBy("group", *partition_key, when).agg(last)
    members = group_commits.select("group", *partition_key).distinct()
    moments = ends.select("topic", "window_ms").unionByName(group_commits.select("topic", "window_ms")).distinct()
    grid = members.join(moments, "topic")
    so_far = Window.partitionBy("group", *partition_key).orderBy("window_ms").rowsBetween(Window.unboundedPreceding, 0)
    # Before its first record a log's end is unknown, unless the log starts at offset 0.
    firsts = ends.groupBy(*partition_key).agg(f.when(f.min("first") == 0, 0).alias("begin"))
    filled = (
        grid.join(firsts, partition_key, "left")
        .join(ends, [*partition_key, "window_ms"], "left")
        .join(group_commits, ["group", *partition_key, "window_ms"], "left")
        .withColumn("end", f.coalesce(f.max("end").over(so_far), "begin"))
        .withColumn("committed", f.last("committed", ignorenulls=True).over(so_far))
    )
    behind = f.greatest(f.col("end") - f.col("committed"), f.lit(0))
    known = filled.where("committed is not null and end is not null").groupBy("group", "topic", "window_ms")
    return known.agg(f.sum(behind).alias("lag"))


# --- input -----------------------------------------------------------------------------------------------------------


def _sources(spark: SparkSession, settings: StatsSettings) -> tuple[DataFrame, DataFrame | None]:
    """The records, and the committed offsets if there are any."""
    if settings.log_dir is not None:
        has_commits = any(settings.log_dir.glob(f"{OFFSETS_TOPIC}-*"))
        commits = read_segments(spark, settings.log_dir, [OFFSETS_TOPIC]) if has_commits else None
        return read_segments(spark, settings.log_dir, settings.topic), commits
    brokers = Brokers(settings)
    found = brokers.find_topics(settings.topic).values()
    records = read_spans(spark, settings, brokers.spans(found))
    return records, _commits(spark, brokers) if brokers.exists(OFFSETS_TOPIC) else None


def _commits(spark: SparkSession, brokers: Brokers) -> DataFrame:
    """Reads `__consumer_offsets` with a consumer: Spark's Kafka source excludes internal topics."""
    topic = brokers.find_topics([OFFSETS_TOPIC])[OFFSETS_TOPIC]
    rows = [
        (message.key(), message.value(), message.offset(), datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC))
        for message in brokers.consume(brokers.spans([topic]))
    ]
    return spark.createDataFrame(rows, "key binary, value binary, offset bigint, timestamp timestamp")


def _width_ms(records: DataFrame, settings: StatsSettings) -> int:
    if settings.window is not None:
        return max(1, round(settings.window * SECOND_MS))
    first, last = records.select(f.min(_timestamp_ms()), f.max(_timestamp_ms())).collect()[0]
    if first is None:
        raise JobError(f"{', '.join(settings.topic)}: there are no records.")
    seconds: int = max(1, round((last - first) / WINDOWS / SECOND_MS))
    return seconds * SECOND_MS


def _of_groups(commits: DataFrame, settings: StatsSettings) -> DataFrame:
    chosen = commits.where(f.col("topic").isin(list(settings.topic)))
    if (end_ms := parse_timestamp_ms(settings.end_time)) is not None:
        chosen = chosen.where(f.col("ms") < end_ms)
    return chosen.where(f.col("group").isin(list(settings.group))) if settings.group else chosen


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in collect_rows(frame)]
