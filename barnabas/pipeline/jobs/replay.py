"""A window of an archive or of a topic, sent into a topic again: partitions, keys, headers and timestamps as they were.

RULES    1. A replay is known by its name: unless one is given, by what it reads, its window, and where to. Run again, it sends
            what it has not sent yet, and nothing twice (`barnabas/pipeline/kafka/sender.py`).
         2. A window of time is by each record's own timestamp: at or after its start, before its end.
         3. A target that could not keep the records as they are is refused: too few partitions, timestamps of its own, or a
            retention that would delete them at once. A target that is missing is made, with the source's partitions.
         4. What the target's records say of their age is true: they have the old timestamps.
NOT HERE How records are sent once (`barnabas/pipeline/kafka/sender.py`).
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

from barnabas.pipeline.brokers import Brokers, Place, Span
from barnabas.pipeline.datetimes import moment_ms
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.data_files import own_session
from barnabas.pipeline.kafka.kafka_source import read_spans
from barnabas.pipeline.kafka.sender import Sending, send
from barnabas.pipeline.reporting.reporter import Tell
from barnabas.pipeline.settings import BrokerSettings, setting
from barnabas.pipeline.spark.rows import collected
from barnabas.pipeline.store.archive_reader import read_archive, settled_manifest
from barnabas.pipeline.store.folder import ArchiveFolder


@dataclass(frozen=True, kw_only=True)
class ReplaySettings(BrokerSettings):
    """What `replay` is told."""

    topic: str = setting("The topic whose records are sent again.", metavar="NAME")
    to: str = setting("The topic that they are sent to.", metavar="NAME")
    archive: Path | None = setting("Read from this archive, instead of the topic itself.", None, metavar="FOLDER")
    start_time: str | None = setting("From this moment on: ISO 8601 (UTC unless it says else), or milliseconds.", None)
    end_time: str | None = setting("Up to before this moment.", None)
    start_offset: int | None = setting("From this offset on, in each partition.", None)
    end_offset: int | None = setting("Up to before this offset, in each partition.", None)
    partition: tuple[str, ...] = setting("Only this partition; may be repeated.", (), metavar="NUMBER")
    rate: float | None = setting("The most records a second.", None)
    name: str | None = setting("The name of this replay: another name sends everything again.", None)


@dataclass
class ReplayReport:
    """What a run did."""

    to: str
    name: str
    sent: int
    skipped: int
    seconds: float
    partitions: list[dict[str, int]]


class Window(NamedTuple):
    """Which records are meant; None is no limit."""

    start_ms: int | None
    end_ms: int | None
    start_offset: int | None
    end_offset: int | None
    partitions: tuple[int, ...]


class _Source(NamedTuple):
    """Where records come from, by an id that no other source has."""

    records: DataFrame
    id: str
    partitions: int


def replay(spark: SparkSession, settings: ReplaySettings, tell: Tell = lambda _: None) -> ReplayReport:
    """Send the window; what an earlier run of the same replay has sent is skipped."""
    started = time.monotonic()
    window = window_of(settings)
    brokers = Brokers(settings)
    own = own_session(spark)
    source = _from_archive(own, settings) if settings.archive is not None else _from_topic(own, settings, brokers)
    chosen = in_window(source.records, window)
    _ready_target(brokers, settings.to, source, chosen)
    name = settings.name or _name(source, settings, window)
    lines = len(window.partitions) or source.partitions
    at_once = max(1, min(lines, own.sparkContext.defaultParallelism))
    share = None if settings.rate is None else settings.rate / at_once
    sending = Sending(brokers.client_settings, f"barnabas-replay-{name}", share, settings.to)
    tell({"step": "sending", "to": settings.to, "name": name})
    rows = collected(send(to_be_sent(chosen, settings.to), sending, lines))
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
    """The records that are meant (rule 2)."""
    ms = f.unix_millis("timestamp")
    for limit, condition in (
        (window.start_ms, ms >= f.lit(window.start_ms)),
        (window.end_ms, ms < f.lit(window.end_ms)),
        (window.start_offset, f.col("offset") >= f.lit(window.start_offset)),
        (window.end_offset, f.col("offset") < f.lit(window.end_offset)),
        (window.partitions or None, f.col("partition").isin(list(window.partitions))),
    ):
        if limit is not None:
            records = records.where(condition)
    return records


def to_be_sent(records: DataFrame, target: str) -> DataFrame:
    """Each record with where it goes: to the partition of the same number."""
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
    """The settings' window, or what is wrong with it."""
    if settings.rate is not None and settings.rate <= 0:
        raise JobError("--rate takes more than 0 records a second.")
    try:
        partitions = tuple(sorted({int(number) for number in settings.partition}))
    except ValueError as failure:
        raise JobError(f"--partition takes a number: {failure}.") from failure
    return Window(
        moment_ms(settings.start_time),
        moment_ms(settings.end_time),
        settings.start_offset,
        settings.end_offset,
        partitions,
    )


# --- source and target ------------------------------------------------------------------------------------------------


def _from_archive(spark: SparkSession, settings: ReplaySettings) -> _Source:
    assert settings.archive is not None, "the caller has looked"
    folder = ArchiveFolder(settings.archive)
    records = read_archive(spark, folder.path, [settings.topic])
    partitions = 1 + max(place.partition for place in settled_manifest(folder).ranges if place.topic == settings.topic)
    return _Source(records, f"archive {folder.identity().id}", partitions)


def _from_topic(spark: SparkSession, settings: ReplaySettings, brokers: Brokers) -> _Source:
    if settings.to == settings.topic:
        raise JobError(f"{settings.topic} is not sent into itself: name another topic, or an archive of it.")
    topic = brokers.find_topics([settings.topic])[settings.topic]
    places = [Place(topic.name, number) for number in range(topic.partitions)]
    starts, ends = brokers.starts(places), brokers.ends(places)
    records = read_spans(spark, settings, {place: Span(starts[place], ends[place]) for place in places})
    return _Source(records, f"topic {topic.id}", topic.partitions)


def _ready_target(brokers: Brokers, target: str, source: _Source, records: DataFrame) -> None:
    """Make the target, or see that it can keep the records as they are (rule 3)."""
    if not brokers.exists(target):
        brokers.create_topic(target, source.partitions, -1, {"retention.ms": "-1"})
        return
    partitions = brokers.find_topics([target])[target].partitions
    if partitions < source.partitions:
        raise JobError(f"{target} has {partitions} partitions, and {source.partitions} are needed.")
    said = brokers.topic_settings(target)
    if said["message.timestamp.type"] != "CreateTime":
        raise JobError(f"{target} gives records its own timestamps: set message.timestamp.type=CreateTime.")
    retention_ms = int(said["retention.ms"])
    if "delete" not in said["cleanup.policy"] or retention_ms < 0:
        return
    oldest = records.select(f.min(f.unix_millis("timestamp"))).first()
    if oldest is not None and oldest[0] is not None and oldest[0] < time.time() * 1000 - retention_ms:
        raise JobError(
            f"{target} would delete the oldest records at once: set retention.ms=-1 for the time of the replay."
        )


def _name(source: _Source, settings: ReplaySettings, window: Window) -> str:
    """The replay's name by what it does (rule 1)."""
    said = json.dumps([source.id, settings.topic, settings.to, window])
    return f"{settings.to}-{hashlib.sha256(said.encode()).hexdigest()[:12]}"
