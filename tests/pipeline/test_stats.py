"""Statistics compared with figures counted by hand, on literal rows; test_log_dirs.py has a topic with a lagging group."""

from __future__ import annotations

import struct
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from barnabas.pipeline import StatsSettings, stats
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.stats import (
    StatsReport,
    _width_ms,
    lags,
    parse_offset_commits,
    partition_shares,
    rates,
    top_keys,
    totals,
)
from barnabas.pipeline.jobs.stats_plots import draw
from tests.pipeline.topics import START_MS

pytestmark = pytest.mark.long

SCHEMA = "topic string, partition int, offset long, timestamp timestamp, key binary, value binary"


def literal(spark: Any, *rows: tuple[int, int, int, bytes | None, bytes | None]) -> Any:
    """Rows: partition, offset, second, key, value."""
    return spark.createDataFrame(
        [("t", p, o, datetime.fromtimestamp(START_MS / 1000 + s, UTC), k, v) for p, o, s, k, v in rows], SCHEMA
    )


def commit(group: bytes, topic: bytes, partition: int, offset: int) -> tuple[bytes, bytes]:
    """A record of __consumer_offsets."""
    key = struct.pack(f">hh{len(group)}sh{len(topic)}si", 1, len(group), group, len(topic), topic, partition)
    return key, struct.pack(">hqihq", 3, offset, -1, 0, 0)


def test_stats_have_sizes_rates_and_shares(spark: Any) -> None:
    records = literal(
        spark,
        (0, 0, 0, b"aa", b"12345678"),
        (0, 1, 5, b"aa", None),
        (1, 0, 9, b"b", b"1"),
        (1, 1, 10, None, b"x" * 100),
        (1, 2, 25, b"aa", b""),
    )
    total = totals(records).collect()[0].asDict()
    expected = {"records": 5, "bytes": 116, "tombstones": 1, "keys": 2, "median_bytes": 2, "largest_bytes": 100}
    assert {name: total[name] for name in expected} == expected
    assert (total["first"], total["last"]) == ("2026-01-01T00:00:00.000", "2026-01-01T00:00:25.000")
    windows = {row.window_ms - START_MS: (row.records, row.bytes_per_s) for row in rates(records, 10_000).collect()}
    assert windows == {0: (3, 1.4), 10_000: (1, 10.0), 20_000: (1, 0.2)}
    keys = top_keys(records, 1).collect()
    assert [(row.key, row.records, row.share, row["rank"]) for row in keys] == [("aa", 3, 0.75, 1)]
    assert {row.partition: row.share for row in partition_shares(records).collect()} == {0: 0.4, 1: 0.6}


def test_commits_are_parsed_from_the_offsets_topic(spark: Any) -> None:
    """Long and non-ASCII names; other records and tombstones are ignored."""
    name = "größe-" + "x" * 300
    rows = [
        (0, 0, 0, *commit(name.encode(), b"t", 7, 1 << 40)),
        (0, 1, 1, commit(b"g", b"t", 0, 0)[0], None),
        (0, 2, 2, struct.pack(">hh1s", 2, 1, b"g"), b"\0\3members"),
    ]
    found = parse_offset_commits(literal(spark, *rows)).collect()
    assert [(row.group, row.topic, row.partition, row.committed) for row in found] == [(name, "t", 7, 1 << 40)]


def test_lag_is_the_end_offset_minus_the_committed_offset(spark: Any) -> None:
    """Over all partitions, carried through windows without events, unknown before the first commit."""
    records = literal(
        spark, *((partition, offset, 10 * offset, b"k", b"v") for partition in (0, 1) for offset in range(5))
    )
    offsets = parse_offset_commits(
        literal(
            spark,
            (0, 0, 10, *commit(b"g", b"t", 0, 1)),
            (0, 1, 15, *commit(b"g", b"t", 0, 2)),
            (0, 2, 30, *commit(b"g", b"t", 1, 4)),
            (0, 3, 50, *commit(b"g", b"t", 0, 5)),
        )
    )
    found = lags(records, offsets, 10_000).orderBy("window_ms").collect()
    assert [((row.window_ms - START_MS) // 1000, row.lag) for row in found] == [
        (10, 0),
        (20, 1),
        (30, 2),
        (40, 4),
        (50, 1),
    ]


def test_lag_is_unknown_before_the_first_remaining_record(spark: Any) -> None:
    records = literal(spark, *((0, offset, 10 * offset, b"k", b"v") for offset in (5, 6, 7)))
    commits = [(0, 0, 10, *commit(b"g", b"t", 0, 1)), (0, 1, 60, *commit(b"g", b"t", 0, 6))]
    found = lags(records, parse_offset_commits(literal(spark, *commits)), 10_000).orderBy("window_ms").collect()
    assert [((row.window_ms - START_MS) // 1000, row.lag) for row in found] == [(50, 5), (60, 1), (70, 2)]


def test_the_default_window_is_a_120th_of_the_time(spark: Any) -> None:
    records = literal(spark, *((0, offset, 7140 * offset, b"k", b"v") for offset in range(2)))
    assert _width_ms(records, StatsSettings(topic=("t",))) == 60_000  # 59.5 s, in whole seconds


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"topic": ()}, "needs --topic"),
        ({"window": 0.0}, "--window takes more than 0"),
        ({"window": float("nan")}, "--window takes more than 0"),
        ({"window": float("inf")}, "--window takes more than 0"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(JobError, match=sentence):
        stats(None, StatsSettings(**{"topic": ("t",), **settings}))


def test_records_with_a_time_in_microseconds_are_not_drawn_over_time(tmp_path: Path) -> None:
    """matplotlib has no year after 9999."""
    times = [START_MS, START_MS + 60_000, START_MS * 1000]
    report = StatsReport(60, str(tmp_path), [])
    report.rates = [{"topic": "t", "window_ms": ms, "records_per_s": 1.0} for ms in times]
    assert draw(report, tmp_path) == [tmp_path / "rates.png"]
    wrong = [row for row in report.rates if row["window_ms"] > START_MS * 10]
    assert draw(replace(report, rates=wrong), tmp_path) == [tmp_path / "rates.png"]


def test_names_of_groups_and_topics_are_drawn_as_they_are(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """Dollar signs begin a formula in matplotlib, here one with an error; a legend leaves out labels that begin with `_`."""
    report = StatsReport(60, str(tmp_path), [])
    report.lags = [{"group": "$x_$", "topic": "_t", "window_ms": START_MS, "lag": 1}]
    report.rates = [{"topic": "_t", "window_ms": START_MS, "records_per_s": 1.0}]
    assert draw(report, tmp_path) == [tmp_path / "rates.png", tmp_path / "lag.png"]
    assert not recwarn.list
