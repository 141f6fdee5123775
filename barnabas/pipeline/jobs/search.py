"""Finds records by key, time, header or JSON path, in a topic and its archive together.

RULES    1. Each record is found once: the archive is read up to its end, the topic from there on. Without an archive only the
            topic is read; with a log directory only its files.
         2. All conditions must hold. A value that is not JSON has no path.
         3. Results are ordered by time, topic, partition and offset, and cut at the limit.
         4. A time range uses each record's timestamp: at or after its start, before its end. The broker's time index gives the
            first offset to read.
         5. For a key, or else the value of a header, a topic's key index is used; only what it does not know is read.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.brokers import Brokers, Span, Topic
from barnabas.pipeline.datetimes import parse_timestamp_ms
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.data_files import isolated_session
from barnabas.pipeline.kafka.kafka_source import read_spans
from barnabas.pipeline.kafka.key_index import IndexedValue, use_index
from barnabas.pipeline.reporting.reporter import OnStep
from barnabas.pipeline.settings import BrokerSettings, setting
from barnabas.pipeline.sources.segments import read_segments
from barnabas.pipeline.spark.rows import ISO, between, collect_rows, in_spans
from barnabas.pipeline.store.archive_reader import COLUMNS, complete_manifest, read_archive
from barnabas.pipeline.store.folder import ArchiveFolder

MAX_LIMIT = (1 << 31) - 2
"""Spark takes a 32-bit number, and one record more shows whether there are more."""
PATH = re.compile(r"(\$[^=!<>]*)(?:(=|!=|<=|>=|<|>)(.*))?", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class SearchSettings(BrokerSettings):
    """Settings of `search`."""

    topic: tuple[str, ...] = setting("A topic; may be repeated.", (), metavar="NAME")
    archive: Path | None = setting("An archive of the topics: archived records are not read from the broker.", None)
    log_dir: Path | None = setting("Read the topics' files in this log directory, without a broker.", None)
    key: str | None = setting("Records with this key.", None, metavar="TEXT")
    key_pattern: str | None = setting("Records whose key contains a match of this regular expression.", None)
    contains: str | None = setting("Records whose value contains this text.", None, metavar="TEXT")
    header: tuple[str, ...] = setting(
        "Records with this header, or with this value in it; may be repeated.", (), metavar="NAME[=VALUE]"
    )
    path: tuple[str, ...] = setting(
        "Records whose JSON has this path, or compares so: $.flight.carrier=UA, $.delay>60; may be repeated.",
        (),
        metavar="$.PATH[=VALUE]",
    )
    start_time: str | None = setting(
        "Only records at or after this time: ISO 8601 (UTC by default), or milliseconds.", None
    )
    end_time: str | None = setting("Only records before this time.", None)
    limit: int = setting("The largest number of records shown.", 100)

    @property
    def needs_broker(self) -> bool:
        """Whether a broker is read; a log directory needs none."""
        return self.log_dir is None


@dataclass
class SearchReport:
    """The result of a search."""

    found: int
    """The number of records shown."""
    is_all: bool
    lines: list[dict[str, Any]] = field(repr=False)


def search(spark: SparkSession, settings: SearchSettings, on_step: OnStep = lambda _: None) -> SearchReport:
    """Finds records."""
    check_settings(settings)
    _check_pattern(spark, settings.key_pattern)
    session = isolated_session(spark)
    records = _all_records(session, settings)
    on_step({"step": "searching", "topics": ", ".join(settings.topic)})
    order = ("timestamp", "topic", "partition", "offset")
    found = collect_rows(with_time_text(matching(records, settings).orderBy(*order).limit(settings.limit + 1)))
    shown = found[: settings.limit]
    return SearchReport(len(shown), len(found) == len(shown), [as_row(record) for record in shown])


def check_settings(settings: SearchSettings) -> None:
    """Raises JobError for conditions that contradict each other or cannot be parsed."""
    if not settings.topic:
        raise JobError("search needs --topic.")
    if not 1 <= settings.limit <= MAX_LIMIT:
        raise JobError(f"--limit takes at least 1, and at most {MAX_LIMIT:,}.")
    if settings.archive is not None and settings.log_dir is not None:
        raise JobError("--archive and --log-dir exclude each other.")
    for line in settings.path:
        _path(line)
    for moment in (settings.start_time, settings.end_time):
        parse_timestamp_ms(moment)


def _check_pattern(spark: SparkSession, pattern: str | None) -> None:
    """Compiles the pattern in Java, whose regular expressions differ from Python's."""
    if pattern is None:
        return
    try:
        spark.range(1).select(f.lit("").rlike(pattern)).collect()
    except PySparkException as failure:
        raise JobError(f"--key-pattern {pattern!r} is not a regular expression of Java's.") from failure


def _path(line: str) -> tuple[str, str | None, str]:
    match = PATH.fullmatch(line.strip())
    if match is None:
        raise JobError(f"--path takes a path like $.flight.carrier or $.delay>60, not {line!r}.")
    path, operator, value = match.groups()
    if (
        operator is not None
        and operator not in {"=", "!="}
        and not re.fullmatch(r"\s*-?\d+(\.\d*)?([eE][-+]?\d+)?\s*", value)
    ):
        raise JobError(f"--path {line!r} compares with {value!r}, which is not a number.")
    return path.strip(), operator, (value or "").strip()


# --- the steps --------------------------------------------------------------------------------------------------------


def matching(records: DataFrame, settings: SearchSettings) -> DataFrame:
    """Returns the records for which all conditions hold (rule 2)."""
    text, key = f.col("value").cast("string"), f.col("key").cast("string")
    conditions: list[Column] = []
    if settings.key is not None:
        conditions.append(f.col("key") == f.lit(settings.key).cast("binary"))
    if settings.key_pattern is not None:
        conditions.append(key.rlike(settings.key_pattern))
    if settings.contains is not None:
        conditions.append(text.contains(settings.contains))
    conditions += [_has_header(line) for line in settings.header]
    conditions += [_compares(text, *_path(line)) for line in settings.path]
    records = between(records, parse_timestamp_ms(settings.start_time), parse_timestamp_ms(settings.end_time))
    for condition in conditions:
        records = records.where(condition)
    return records


def _has_header(line: str) -> Column:
    name, equals, value = line.partition("=")

    def matches(header: Column) -> Column:
        is_named = header["key"] == f.lit(name)
        return is_named & (header["value"] == f.lit(value).cast("binary")) if equals else is_named

    return f.coalesce(f.exists("headers", matches), f.lit(False))


def _compares(text: Column, path: str, operator: str | None, value: str) -> Column:
    found = f.get_json_object(text, path)
    if operator is None:
        return found.isNotNull()
    if operator in {"=", "!="}:
        return found == f.lit(value) if operator == "=" else found != f.lit(value)
    number, limit = found.try_cast("double"), f.lit(float(value))
    return {"<": number < limit, "<=": number <= limit, ">": number > limit, ">=": number >= limit}[operator]


def with_time_text(records: DataFrame) -> DataFrame:
    """Returns the records with their timestamps as text."""
    return records.withColumn("timestamp", f.date_format("timestamp", ISO))


def as_row(record: Row) -> dict[str, Any]:
    """Returns a record, its timestamp as text, as JSON values; bytes that are not UTF-8 are base64, in `..._base64`."""
    row: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }
    for name in ("key", "value"):
        row.update(_readable(name, record[name]))
    if record.headers:
        row["headers"] = [{"key": header.key, **_readable("value", header.value)} for header in record.headers]
    return row


def _readable(name: str, data: bytearray | bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: bytes(data).decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(bytes(data)).decode()}


# --- input ------------------------------------------------------------------------------------------------------------


def _all_records(spark: SparkSession, settings: SearchSettings) -> DataFrame:
    """The records of topic, archive or log directory (rule 1)."""
    start_ms = parse_timestamp_ms(settings.start_time)
    if settings.log_dir is not None:
        options = {"includeHeaders": "true"}
        if start_ms is not None:
            options["startingTimestamp"] = str(start_ms)
            options["startingOffsetsByTimestampStrategy"] = "latest"
        return read_segments(spark, settings.log_dir, settings.topic, options).select(*COLUMNS)
    brokers = Brokers(settings)
    topics = brokers.find_topics(settings.topic)
    archived = {} if settings.archive is None else _archived_spans(settings.archive, topics)
    spans = {
        tp: Span(max(span.start, archived[tp].end) if tp in archived else span.start, span.end)
        for tp, span in brokers.spans(topics.values()).items()
    }
    if start_ms is not None and start_ms > 0:  # in requests, negative times have other meanings
        starts = brokers.offsets_for_time(spans, start_ms)
        spans = {tp: Span(max(span.start, starts.get(tp, span.end)), span.end) for tp, span in spans.items()}
    wanted = _indexed_value(settings)
    indexed, spans = (None, spans) if wanted is None else use_index(spark, settings, brokers, wanted, spans)
    records = read_spans(spark, settings, spans)
    if indexed is not None:
        records = records.unionByName(indexed)
    if settings.archive is not None and archived:
        archived_records = read_archive(spark, settings.archive, {tp.topic for tp in archived})
        records = records.unionByName(in_spans(archived_records, archived))  # another round may be archived meanwhile
    return records


def _archived_spans(path: Path, topics: Mapping[str, Topic]) -> dict[TopicPartition, Span]:
    """The offsets below the ends of an archive. Raises JobError if it holds none of the topics, or an earlier one."""
    manifest = complete_manifest(ArchiveFolder(path))
    archived_ids = manifest.topic_ids()
    if not archived_ids.keys() & topics.keys():
        raise JobError(f"The archive {path} holds none of these topics: {', '.join(topics)}.")
    for name in topics.keys() & archived_ids.keys():
        if archived_ids[name] != topics[name].id:
            raise JobError(f"The archive {path} holds an earlier topic {name}, which was deleted and created again.")
    return {tp: Span(0, end) for tp, end in manifest.end_offsets().items() if tp.topic in topics}


def _indexed_value(settings: SearchSettings) -> IndexedValue | None:
    """The condition that a key index may know (rule 5)."""
    times = parse_timestamp_ms(settings.start_time), parse_timestamp_ms(settings.end_time)
    if settings.key is not None:
        return IndexedValue("key", settings.key.encode(), *times)
    for line in settings.header:
        name, equals, value = line.partition("=")
        if equals:
            return IndexedValue(f"header:{name}", value.encode(), *times)
    return None
