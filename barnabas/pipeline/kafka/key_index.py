"""Finds records by key or header in the key index of a topic, so that only the other offsets are read (docs/search.md).

RULES    1. The index is queried if the topic's `barnabas.index.keys` has the field. Without that config, the right to read it,
            or a response, all of the topic is read.
         2. Offsets for which the response is complete are not read again; a partition with a truncated response is read whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from barnabas.client.errors import ClientError
from barnabas.client.search import ALL_TIMES, MAX_RECORDS, FoundRecord, open_cluster, search
from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.brokers import Brokers, Span
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.settings import BrokerSettings
from barnabas.pipeline.store.archive_reader import COLUMNS

_SETTING = "barnabas.index.keys"
_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp long, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)


class IndexedValue(NamedTuple):
    """The key or header value that a search looks up in key indexes, and the time range."""

    field: str
    """`key` or `header:<name>`."""
    value: bytes
    start_ms: int | None
    """Record timestamps from here on, in Unix milliseconds; None is no limit."""
    end_ms: int | None
    """Record timestamps before it; None is no limit."""


def use_index(
    spark: SparkSession,
    settings: BrokerSettings,
    brokers: Brokers,
    wanted: IndexedValue,
    spans: Mapping[TopicPartition, Span],
) -> tuple[DataFrame | None, dict[TopicPartition, Span]]:
    """Returns the records that indexes know, None if there are no indexes; and the offsets that must be read."""
    rest = dict(spans)
    rows: list[tuple[Any, ...]] = []
    is_used = False
    for topic in sorted({tp.topic for tp in spans}):
        if wanted.field not in _indexed_fields(brokers, topic):
            continue
        cluster = open_cluster(settings.bootstrap, settings.client_settings())
        times = (
            ALL_TIMES[0] if wanted.start_ms is None else wanted.start_ms,
            ALL_TIMES[1] if wanted.end_ms is None else wanted.end_ms,
        )
        try:
            answer = search(cluster, topic, wanted.field, wanted.value, times, MAX_RECORDS)
        except ClientError:
            continue
        finally:
            cluster.close()
        is_used = True
        for part in answer.partitions:
            tp = TopicPartition(topic, part.partition)
            span = spans.get(tp)
            if span is not None and not part.is_cut and part.from_offset <= span.end:
                end = min(max(part.to_offset, span.start), span.end)
                rest[tp] = Span(end, span.end)
                known = (record for record in answer.records if record.partition == part.partition)
                rows += [_row(record) for record in known if span.start <= record.offset < end]
    if not is_used:
        return None, rest
    found = spark.createDataFrame(rows, _SCHEMA).withColumn("timestamp", f.timestamp_millis("timestamp"))
    return found.select(*COLUMNS), rest


def _indexed_fields(brokers: Brokers, topic: str) -> list[str]:
    try:
        return (brokers.topic_configs(topic).get(_SETTING) or "").split(",")
    except JobError:  # no right to see it
        return []


def _row(record: FoundRecord) -> tuple[Any, ...]:
    headers = [(name.decode("utf-8", "replace"), value) for name, value in record.headers]
    return (record.key, record.value, *record[:3], record.timestamp, 0, headers or None)
