"""Search: every condition on literal rows, then a topic with its archive."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as f

from barnabas.client.search import open_cluster
from barnabas.client.search import search as ask
from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline import ArchiveSettings, SearchSettings, archive, search
from barnabas.pipeline.brokers import Brokers, Span
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs import search as search_job
from barnabas.pipeline.jobs.search import as_row, check_settings, matching, with_time_text
from barnabas.pipeline.kafka.kafka_source import read_spans
from barnabas.pipeline.reporting.reporter import Reporter
from barnabas.pipeline.settings import BrokerSettings
from barnabas.pipeline.store.archive_reader import complete_manifest
from barnabas.pipeline.store.folder import ArchiveFolder
from tests.pipeline.topics import MINUTE_MS, START_MS, create, minutes, send
from tests.support.waiting import until

pytestmark = pytest.mark.long

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)


def literal(spark: Any, *records: tuple[bytes | None, bytes | None, Any]) -> Any:
    rows = [
        (key, value, "t", 0, offset, datetime.fromtimestamp(START_MS / 1000 + offset, UTC), 0, headers)
        for offset, (key, value, headers) in enumerate(records)
    ]
    return spark.createDataFrame(rows, SCHEMA)


@pytest.mark.parametrize(
    ("conditions", "offsets"),
    [
        ({"key": "ab"}, [0]),
        ({"key_pattern": r"^\p{Lower}[bc]"}, [0, 1]),
        ({"contains": "delay"}, [0, 1, 2]),
        ({"header": ("kind",)}, [1, 2]),
        ({"header": ("kind=late",)}, [1]),
        ({"header": ("kind", "other=1")}, [2]),
        ({"path": ("$.delay",)}, [0, 1, 2]),
        ({"path": ("$.delay>9",)}, [1]),
        ({"path": ("$.delay<=9", "$.from.code=EWR")}, [0]),
        ({"path": ("$.from.code!=EWR",)}, [1]),
        ({"path": ("$.list[1]=b",)}, [2]),
        ({"start_time": str(START_MS + 1000), "end_time": str(START_MS + 3000)}, [1, 2]),
        ({"key_pattern": "a", "path": ("$.delay=90",)}, [1]),
        ({}, [0, 1, 2, 3]),
    ],
)
def test_all_conditions_must_hold(spark: Any, conditions: dict[str, Any], offsets: list[int]) -> None:
    """Nulls and values that are not JSON fulfil no condition on them."""
    records = literal(
        spark,
        (b"ab", b'{"delay": 5, "from": {"code": "EWR"}}', None),
        (b"ac", b'{"delay": 90, "from": {"code": "JFK"}}', [("kind", b"late")]),
        (None, b'{"delay": "soon", "list": ["a", "b"]}', [("other", b"1"), ("kind", None)]),
        (b"b", None, []),
    )
    settings = SearchSettings(topic=("t",), **conditions)
    assert sorted(row.offset for row in matching(records, settings).collect()) == offsets


def test_a_record_in_topic_and_archive_is_found_once(spark: Any, archiving: ArchiveSettings, topic: str) -> None:
    send(archiving.bootstrap, topic, minutes(100))
    archive(spark, archiving)
    Brokers(archiving).delete_records({TopicPartition(topic, 0): 20})
    send(archiving.bootstrap, topic, minutes(60, start=100))
    everywhere = SearchSettings(bootstrap=archiving.bootstrap, topic=(topic,), archive=archiving.into, key="key 3")
    report = search(spark, everywhere)
    expected = [row for row in minutes(160) if row["key"] == b"key 3"]
    moments = [
        datetime.fromtimestamp(row["timestamp"] / 1000, UTC).isoformat(timespec="milliseconds") for row in expected
    ]
    assert [line["timestamp"][:23] for line in report.lines] == [moment[:23] for moment in moments]
    assert report.is_all
    few = search(spark, replace(everywhere, limit=5))
    assert (few.lines, few.is_all, few.found) == (report.lines[:5], False, 5)
    live = search(spark, replace(everywhere, archive=None))
    assert 0 < live.found < report.found, "20 records of partition 0 are gone there"
    with pytest.raises(JobError, match="not a regular expression"):
        search(spark, replace(everywhere, key_pattern="(a"))
    create(archiving.bootstrap, f"other-{topic}")
    with pytest.raises(JobError, match="holds none of these topics"):
        search(spark, replace(everywhere, topic=(f"other-{topic}",)))
    late = search(spark, replace(everywhere, start_time=str(START_MS + 130 * MINUTE_MS)))
    assert late.found == sum(row["timestamp"] >= START_MS + 130 * MINUTE_MS for row in expected)


@pytest.mark.parametrize("start_time", ["0001-01-01", "1969-12-31T23:59:59.999"])
def test_a_time_before_1970_is_before_all_records(spark: Any, kafka_broker: Any, topic: str, start_time: str) -> None:
    """-1 and -2 are the end and the start of a log for ListOffsets, and librdkafka refuses other negative times."""
    send(kafka_broker.bootstrap, topic, minutes(4))
    settings = SearchSettings(bootstrap=kafka_broker.bootstrap, topic=(topic,), start_time=start_time)
    assert search(spark, settings).found == 4


def test_a_round_that_is_archived_during_a_search_is_found_once(
    spark: Any, archiving: ArchiveSettings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search knows the archive's end from an earlier manifest than the one that names the files."""
    send(archiving.bootstrap, topic, minutes(40))
    archive(spark, archiving)
    earlier_manifest = complete_manifest(ArchiveFolder(archiving.into))
    send(archiving.bootstrap, topic, minutes(40, start=40))
    archive(spark, archiving)
    monkeypatch.setattr(search_job, "complete_manifest", lambda _: earlier_manifest)
    report = search(spark, SearchSettings(bootstrap=archiving.bootstrap, topic=(topic,), archive=archiving.into))
    assert report.found == 80


def test_what_a_key_index_knows_is_not_read_from_the_topic(
    spark: Any, kafka_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap = kafka_broker.bootstrap
    for name, fields in (("indexed", "key,header:a"), ("plain", "")):
        settings: dict[str, Any] = {"barnabas_index_keys": fields} if fields else {}
        create(bootstrap, name, **settings)
        send(bootstrap, name, minutes(160))
    cluster = open_cluster(bootstrap)
    until(
        lambda: all(one.to_offset == one.end_offset > 0 for one in ask(cluster, "indexed", "key", b"").partitions),
        "a complete index",
    )
    reads: list[dict[TopicPartition, Span]] = []

    def counted(spark: Any, settings: BrokerSettings, spans: dict[TopicPartition, Span]) -> Any:
        reads.append(spans)
        return read_spans(spark, settings, spans)

    monkeypatch.setattr(search_job, "read_spans", counted)
    for conditions in (
        {"key": "key 3"},
        {"header": ("a=31",)},
        {"key": "key 3", "start_time": str(START_MS + 9 * MINUTE_MS)},
    ):
        by_topic = [
            search(spark, SearchSettings(bootstrap=bootstrap, topic=(name,), **conditions)).lines
            for name in ("indexed", "plain")
        ]
        indexed, plain = ([{**line, "topic": ""} for line in lines] for lines in by_topic)
        assert indexed == plain != []
        assert all(span.start == span.end for span in reads[-2].values())
        assert any(span.start < span.end for span in reads[-1].values())


def test_a_record_is_shown_as_text_or_base64(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON lines with --json, otherwise a table."""
    records = literal(spark, (b"k", b"\xff\x00", [("h", b"x"), ("n", None)]), (None, b"[bold]", None))
    lines = [as_row(record) for record in with_time_text(records.orderBy("offset")).collect()]
    assert lines[0]["key"] == "k"
    assert lines[0]["value_base64"] == "/wA="
    assert lines[0]["headers"] == [{"key": "h", "value": "x"}, {"key": "n", "value": None}]
    assert lines[1]["key"] is None
    reporter = Reporter("search", as_json=True)
    reporter._lines(lines)
    assert [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()] == ["line", "line"]
    Reporter("search", as_json=False)._lines(lines)
    output = capsys.readouterr().out
    assert "h=x n=null" in output
    assert "[bold]" in output


def test_a_record_with_a_time_in_microseconds_is_shown(spark: Any) -> None:
    """Python has no year after 9999."""
    records = literal(spark, (b"k", b"v", None)).withColumn("timestamp", f.timestamp_millis(f.lit(START_MS * 1000)))
    [line] = [as_row(record) for record in with_time_text(records).collect()]
    assert line["timestamp"] == "+57971-02-25T00:00:00.000"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"topic": ()}, "needs --topic"),
        ({"limit": 0}, "--limit takes at least 1"),
        ({"limit": (1 << 31) - 1}, "and at most 2,147,483,646"),
        ({"path": ("delay>5",)}, "--path takes a path"),
        ({"path": ("$.delay>soon",)}, "which is not a number"),
        ({"start_time": "yesterday"}, "is not a time"),
        ({"archive": Path("a"), "log_dir": Path("b")}, "exclude each other"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(JobError, match=sentence):
        check_settings(SearchSettings(**{"topic": ("t",), **settings}))


def test_an_internal_topic_is_refused(spark: Any, kafka_broker: Any, tmp_path: Path) -> None:
    brokers = create(kafka_broker.bootstrap, tmp_path.name, partitions=1)
    brokers.commit("a-group", {TopicPartition(tmp_path.name, 0): 0})
    with pytest.raises(
        JobError, match="__consumer_offsets is an internal topic, which Spark's Kafka source does not read"
    ):
        search(spark, SearchSettings(bootstrap=kafka_broker.bootstrap, topic=("__consumer_offsets",)))
