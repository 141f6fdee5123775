"""Records by key, time, header or a path in their JSON, in a live topic and its archive together.

RULES    1. A record is found once: of each partition the archive is asked for what it holds, the topic for what comes after.
            Without an archive the topic is asked for everything; with a log directory its files are read instead.
         2. All conditions must hold. A record whose value is no JSON has no path in it.
         3. What is found is ordered by time, then topic, partition and offset; of more than the limit the first are shown.
         4. A time range is by each record's own timestamp: at or after its start, before its end. Where the broker knows from
            which offset on records are so late, what lies before is not read.
NOT HERE Moments (`barnabas/pipeline/datetimes.py`), the source that reads files (`barnabas/pipeline/sources/`).
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from barnabas.pipeline.brokers import Brokers, Place, Span
from barnabas.pipeline.datetimes import moment_ms
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.data_files import own_session
from barnabas.pipeline.kafka.kafka_source import read_spans
from barnabas.pipeline.reporting.reporter import Tell
from barnabas.pipeline.settings import BrokerSettings, setting
from barnabas.pipeline.sources.segments import NAME, register
from barnabas.pipeline.spark.rows import collected
from barnabas.pipeline.store.archive_reader import COLUMNS, read_archive, settled_manifest
from barnabas.pipeline.store.folder import ArchiveFolder

PATH = re.compile(r"(\$[^=!<>]*)(?:(=|!=|<=|>=|<|>)(.*))?", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class SearchSettings(BrokerSettings):
    """What `search` is told."""

    topic: tuple[str, ...] = setting("A topic; may be repeated.", (), metavar="NAME")
    archive: Path | None = setting("An archive of the topics: what it holds is not asked of the broker.", None)
    log_dir: Path | None = setting("Read the topics' files in this log directory, and leave the broker alone.", None)
    key: str | None = setting("Records with this key.", None, metavar="TEXT")
    key_pattern: str | None = setting("Records whose key holds a match of this regular expression.", None)
    contains: str | None = setting("Records whose value holds this text.", None, metavar="TEXT")
    header: tuple[str, ...] = setting(
        "Records with this header, or with this value in it; may be repeated.", (), metavar="NAME[=VALUE]"
    )
    path: tuple[str, ...] = setting(
        "Records whose JSON has this path, or compares so: $.flight.carrier=UA, $.delay>60; may be repeated.",
        (),
        metavar="$.PATH[=VALUE]",
    )
    start_time: str | None = setting("From this moment on: ISO 8601 (UTC unless it says else), or milliseconds.", None)
    end_time: str | None = setting("Up to before this moment.", None)
    limit: int = setting("The most records shown.", 100)

    @property
    def asks_broker(self) -> bool:
        """Files are read without one."""
        return self.log_dir is None


@dataclass
class SearchReport:
    """What was found."""

    found: int
    """How many are shown."""
    is_all: bool
    lines: list[dict[str, Any]] = field(repr=False)


class Query(NamedTuple):
    """The conditions, understood."""

    key: str | None
    key_pattern: str | None
    contains: str | None
    headers: tuple[tuple[str, str | None], ...]
    paths: tuple[tuple[str, str | None, str], ...]
    start_ms: int | None
    end_ms: int | None


def search(spark: SparkSession, settings: SearchSettings, tell: Tell = lambda _: None) -> SearchReport:
    """Look for records."""
    query = query_of(settings)
    _see_that_it_is_a_pattern(spark, query.key_pattern)
    own = own_session(spark)
    records = _all_records(own, settings, query)
    tell({"step": "searching", "topics": ", ".join(settings.topic)})
    order = ("timestamp", "topic", "partition", "offset")
    found = collected(matching(records, query).orderBy(*order).limit(settings.limit + 1))
    shown = found[: settings.limit]
    return SearchReport(len(shown), len(found) == len(shown), [as_row(record) for record in shown])


def query_of(settings: SearchSettings) -> Query:
    """The settings' conditions, or what is wrong with them."""
    if not settings.topic:
        raise JobError("search needs --topic: where to look.")
    if settings.limit < 1:
        raise JobError("--limit takes at least 1.")
    if settings.archive is not None and settings.log_dir is not None:
        raise JobError("--archive and --log-dir are not searched together: name one of them.")
    headers = [line.partition("=") for line in settings.header]
    return Query(
        settings.key,
        settings.key_pattern,
        settings.contains,
        tuple((name, value if equals else None) for name, equals, value in headers),
        tuple(_path(line) for line in settings.path),
        moment_ms(settings.start_time),
        moment_ms(settings.end_time),
    )


def _see_that_it_is_a_pattern(spark: SparkSession, pattern: str | None) -> None:
    """Java judges it: its expressions are not Python's."""
    if pattern is None:
        return
    try:
        spark.range(1).select(f.lit("").rlike(pattern)).collect()
    except PySparkException as failure:
        raise JobError(f"--key-pattern {pattern!r} is no regular expression of Java's.") from failure


def _path(line: str) -> tuple[str, str | None, str]:
    said = PATH.fullmatch(line.strip())
    if said is None:
        raise JobError(f"--path takes a path like $.flight.carrier or $.delay>60, and {line!r} is none.")
    path, sign, value = said.groups()
    if sign is not None and sign not in {"=", "!="} and not re.fullmatch(r"\s*-?\d+(\.\d*)?([eE][-+]?\d+)?\s*", value):
        raise JobError(f"--path {line!r} compares with {value!r}, and that is no number.")
    return path.strip(), sign, (value or "").strip()


# --- the steps --------------------------------------------------------------------------------------------------------


def matching(records: DataFrame, query: Query) -> DataFrame:
    """The records of which all conditions hold (rule 2)."""
    text, key = f.col("value").cast("string"), f.col("key").cast("string")
    conditions: list[Column] = []
    if query.key is not None:
        conditions.append(f.col("key") == f.lit(query.key).cast("binary"))
    if query.key_pattern is not None:
        conditions.append(key.rlike(query.key_pattern))
    if query.contains is not None:
        conditions.append(text.contains(query.contains))
    conditions += [_has_header(name, value) for name, value in query.headers]
    conditions += [_compares(text, *path) for path in query.paths]
    moment = f.unix_millis("timestamp")
    if query.start_ms is not None:
        conditions.append(moment >= f.lit(query.start_ms))
    if query.end_ms is not None:
        conditions.append(moment < f.lit(query.end_ms))
    for condition in conditions:
        records = records.where(condition)
    return records


def _has_header(name: str, value: str | None) -> Column:
    def is_it(header: Column) -> Column:
        is_named = header["key"] == f.lit(name)
        return is_named if value is None else is_named & (header["value"] == f.lit(value).cast("binary"))

    return f.coalesce(f.exists("headers", is_it), f.lit(False))


def _compares(text: Column, path: str, sign: str | None, value: str) -> Column:
    found = f.get_json_object(text, path)
    if sign is None:
        return found.isNotNull()
    if sign in {"=", "!="}:
        return found == f.lit(value) if sign == "=" else found != f.lit(value)
    number, limit = found.try_cast("double"), f.lit(float(value))
    return {"<": number < limit, "<=": number <= limit, ">": number > limit, ">=": number >= limit}[sign]


def as_row(record: Row) -> dict[str, Any]:
    """A record as JSON can hold it: what is no text is base64, under a name that says so."""
    row: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp.isoformat(timespec="milliseconds"),
    }
    for name in ("key", "value"):
        row.update(_readable(name, record[name]))
    if record.headers:
        row["headers"] = [{"key": one.key, **_readable("value", one.value)} for one in record.headers]
    return row


def _readable(name: str, data: bytearray | bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: bytes(data).decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(bytes(data)).decode()}


# --- where to look ----------------------------------------------------------------------------------------------------


def _all_records(spark: SparkSession, settings: SearchSettings, query: Query) -> DataFrame:
    """Rule 1."""
    if settings.log_dir is not None:
        register(spark)
        options = {"subscribe": ",".join(settings.topic), "includeHeaders": "true"}
        if query.start_ms is not None:
            options["startingTimestamp"] = str(query.start_ms)
            options["startingOffsetsByTimestampStrategy"] = "latest"
        return spark.read.format(NAME).options(**options).load(str(settings.log_dir)).select(*COLUMNS)
    brokers = Brokers(settings)
    topics = brokers.find_topics(settings.topic)
    places = [Place(topic.name, number) for topic in topics.values() for number in range(topic.partitions)]
    starts, ends = brokers.starts(places), brokers.ends(places)
    archived: dict[Place, int] = {}
    if settings.archive is not None:
        manifest = settled_manifest(ArchiveFolder(settings.archive))
        ids = manifest.topic_ids()
        if not ids.keys() & topics.keys():
            raise JobError(f"The archive {settings.archive} holds none of these topics: {', '.join(topics)}.")
        for name in topics.keys() & ids.keys():
            if ids[name] != topics[name].id:
                raise JobError(f"The archive {settings.archive} holds another topic {name}, which was deleted since.")
        archived = manifest.ends()
    spans = {place: Span(max(starts[place], archived.get(place, 0)), ends[place]) for place in places}
    if query.start_ms is not None:
        late = brokers.offsets_at(spans, query.start_ms)
        spans = {place: Span(max(span.start, late.get(place, span.end)), span.end) for place, span in spans.items()}
    records = read_spans(spark, settings, spans)
    held = [name for name in topics if any(place.topic == name for place in archived)]
    if settings.archive is not None and held:
        records = records.unionByName(read_archive(spark, settings.archive, held))
    return records
