"""Sends records of an archive or a topic to a topic again, with unchanged partitions, keys, headers and timestamps.

RULES    1. A replay is identified by its name; the default name is a hash of source, window and target. A repeated replay
            sends only what is missing (`barnabas/pipeline/kafka/sender.py`).
         2. A time window uses each record's timestamp: at or after its start, before its end.
         3. A target that would change or delete the records is refused: too few partitions, LogAppendTime, or a retention
            that deletes them at once. A missing target is created with the source's partitions.
         4. Records keep their old timestamps in the target.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from barnabas.pipeline.brokers import Brokers
from barnabas.pipeline.datetimes import parse_timestamp_ms
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.data_files import isolated_session
from barnabas.pipeline.kafka.kafka_source import read_spans
from barnabas.pipeline.kafka.sender import SendOptions, send
from barnabas.pipeline.reporting.reporter import OnStep
from barnabas.pipeline.settings import BrokerSettings, setting
from barnabas.pipeline.spark.rows import between, collect_rows
from barnabas.pipeline.store.archive_reader import complete_manifest, read_archive
from barnabas.pipeline.store.folder import ArchiveFolder


@dataclass(frozen=True, kw_only=True)
class ReplaySettings(BrokerSettings):
    """Settings of `replay`."""

    topic: str = setting("The topic whose records are sent again.", metavar="NAME")
    to: str = setting("The topic to which they are sent.", metavar="NAME")
    archive: Path | None = setting("Read from this archive, instead of the topic itself.", None, metavar="FOLDER")
    start_time: str | None = setting(
        "Only records at or after this time: ISO 8601 (UTC by default), or milliseconds.", None
    )
    end_time: str | None = setting("Only records before this time.", None)
    start_offset: int | None = setting("Only records at or after this offset, in each partition.", None)
    end_offset: int | None = setting("Only records before this offset, in each partition.", None)
    partition: tuple[str, ...] = setting("Only this partition; may be repeated.", (), metavar="NUMBER")
    rate: float | None = setting("The largest number of records per second.", None)
    name: str | None = setting("The name of this replay: another name sends everything again.", None)


@dataclass
class ReplayReport:
    """The result of a run."""

    to: str
    name: str
    sent: int
    skipped: int
    seconds: float
    partitions: list[dict[str, int]]


class Window(NamedTuple):
    """The records to replay; None is no limit."""

    start_ms: int | None
    end_ms: int | None
    start_offset: int | None
    end_offset: int | None
    partitions: tuple[int, ...]


class _Input(NamedTuple):
    """The records of the source, its unique id and its number of partitions."""

    records: DataFrame
    id: str
    partitions: int


def replay(spark: SparkSession, settings: ReplaySettings, on_step: OnStep = lambda _: None) -> ReplayReport:
    """Sends the window; skips records that an earlier run has sent."""
    started = time.monotonic()
    window = window_of(settings)
    brokers = Brokers(settings)
    session = isolated_session(spark)
    source = (
        _from_archive(session, settings) if settings.archive is not None else _from_topic(session, settings, brokers)
    )
    _check_partitions(window, source, settings.topic)
    selected = in_window(source.records, window)
    _prepare_target(brokers, settings.to, source, selected)
    name = settings.name or _name(source, settings, window)
    task_count = len(window.partitions) or source.partitions
    parallel_tasks = max(1, min(task_count, session.sparkContext.defaultParallelism))
    task_rate = None if settings.rate is None else settings.rate / parallel_tasks
    sending = SendOptions(brokers.client_settings, f"barnabas-replay-{name}", task_rate, settings.to)
    brokers.check_group_access(sending.group)
    on_step({"step": "sending", "to": settings.to, "name": name})
    rows = collect_rows(send(to_be_sent(selected, settings.to), sending, task_count))
    return ReplayReport(
        to=settings.to,
        name=name,
        sent=sum(row["sent"] for row in rows),
        skipped=sum(row["skipped"] for row in rows),
        seconds=round(time.monotonic() - started, 1),
        partitions=sorted((row.asDict() for row in rows), key=lambda row: int(row["partition"])),
    )


# --- the steps --------------------------------------------------------------------------------------------------------


def in_window(records: DataFrame, window: Window) -> DataFrame:
    """Returns the records in the window (rule 2)."""
    records = between(records, window.start_ms, window.end_ms)
    for limit, condition in (
        (window.start_offset, f.col("offset") >= f.lit(window.start_offset)),
        (window.end_offset, f.col("offset") < f.lit(window.end_offset)),
        (window.partitions or None, f.col("partition").isin(list(window.partitions))),
    ):
        if limit is not None:
            records = records.where(condition)
    return records


def to_be_sent(records: DataFrame, target: str) -> DataFrame:
    """Adds the target: the partition of the same number."""
    return records.select(
        "topic",
        "partition",
        "offset",
        f.lit(target).alias("to_topic"),
        f.col("partition").alias("to_partition"),
        "key",
        "value",
        "headers",
        f.unix_millis("timestamp").alias("ms"),
    )


def window_of(settings: ReplaySettings) -> Window:
    """Returns the settings' window. Raises JobError."""
    if settings.rate is not None and settings.rate <= 0:
        raise JobError("--rate takes more than 0 records a second.")
    try:
        partitions = tuple(sorted({int(number) for number in settings.partition}))
    except ValueError as failure:
        raise JobError(f"--partition takes a number: {failure}.") from failure
    return Window(
        parse_timestamp_ms(settings.start_time),
        parse_timestamp_ms(settings.end_time),
        settings.start_offset,
        settings.end_offset,
        partitions,
    )


# --- source and target ------------------------------------------------------------------------------------------------


def _from_archive(spark: SparkSession, settings: ReplaySettings) -> _Input:
    assert settings.archive is not None, "the caller has checked"
    folder = ArchiveFolder(settings.archive)
    records = read_archive(spark, folder.path, [settings.topic])
    partitions = 1 + max(tp.partition for tp in complete_manifest(folder).ranges if tp.topic == settings.topic)
    return _Input(records, f"archive {folder.metadata().id}", partitions)


def _from_topic(spark: SparkSession, settings: ReplaySettings, brokers: Brokers) -> _Input:
    if settings.to == settings.topic:
        raise JobError(
            f"{settings.topic} cannot be replayed into itself: name another topic with --to, or an archive with --archive."
        )
    topic = brokers.find_topics([settings.topic])[settings.topic]
    records = read_spans(spark, settings, brokers.spans([topic]))
    return _Input(records, f"topic {topic.id}", topic.partitions)


def _check_partitions(window: Window, source: _Input, topic: str) -> None:
    """Refuses partitions that the source does not have: nothing would be sent, without a word."""
    unknown = [number for number in window.partitions if not 0 <= number < source.partitions]
    if unknown:
        last = source.partitions - 1
        raise JobError(f"{topic} has no partition {unknown[0]} in the source: --partition takes 0 to {last}.")


def _prepare_target(brokers: Brokers, target: str, source: _Input, records: DataFrame) -> None:
    """Creates the target, or checks that it keeps the records unchanged (rule 3)."""
    if not brokers.exists(target):
        brokers.create_topic(target, source.partitions, -1, {"retention.ms": "-1"})
        return
    partitions = brokers.find_topics([target])[target].partitions
    if partitions < source.partitions:
        raise JobError(f"{target} has {partitions} partitions, but {source.partitions} are needed.")
    config = brokers.topic_configs(target)
    if config["message.timestamp.type"] != "CreateTime":
        raise JobError(f"{target} replaces the records' timestamps: set message.timestamp.type=CreateTime.")
    retention_ms = int(config["retention.ms"])
    if "delete" not in config["cleanup.policy"] or retention_ms < 0:
        return
    oldest = records.select(f.min(f.unix_millis("timestamp"))).first()
    if oldest is not None and oldest[0] is not None and oldest[0] < time.time() * 1000 - retention_ms:
        raise JobError(
            f"{target} would delete the oldest records at once: set retention.ms=-1 until the replay is complete."
        )


def _name(source: _Input, settings: ReplaySettings, window: Window) -> str:
    """The default name of the replay (rule 1)."""
    identity = json.dumps([source.id, settings.topic, settings.to, window])
    return f"{settings.to}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
