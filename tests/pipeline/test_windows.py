"""The steps of `aggregate` on literal rows: event times, windows, measures, late records, watermark."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as f

from barnabas.pipeline.datetimes import parse_duration_s
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.aggregate.measures import (
    Measure,
    NamedExpression,
    check_distinct_names,
    parse_column,
    parse_measure,
)
from barnabas.pipeline.jobs.aggregate.watermark import watermark
from barnabas.pipeline.jobs.aggregate.windows import (
    WindowSpec,
    check_expressions,
    classify,
    event_time,
    in_time,
    late,
    merge_sums,
    result_rows,
    sum_round,
)
from tests.pipeline.topics import MINUTE_MS, START_MS

MINUTE_US = MINUTE_MS * 1000
START_US = START_MS * 1000
COLUMNS = "partition int, offset bigint, key binary, timestamp timestamp, data struct<who:string,n:int,at:string>, error string"

pytestmark = pytest.mark.long


def literal(spark: Any, *rows: tuple[int, str | None, float, Any, str | None]) -> Any:
    """Records: partition, key, minutes after the start, data, error."""
    made = [
        (
            partition,
            number,
            key and key.encode(),
            datetime.fromtimestamp(START_MS / 1000 + minutes * 60, UTC),
            data,
            error,
        )
        for number, (partition, key, minutes, data, error) in enumerate(rows)
    ]
    return spark.createDataFrame(made, COLUMNS)


def rows_of(frame: Any, *names: str) -> list[tuple[Any, ...]]:
    """The rows; windows as minutes after the start."""
    found = (
        frame.withColumn("at", (f.unix_micros("window_start") - START_US) / MINUTE_US).select("at", *names).collect()
    )
    return sorted((tuple(row) for row in found), key=str)


def test_records_belong_to_the_windows_of_their_event_time(spark: Any) -> None:
    """The start belongs to a window, the end does not."""
    records = literal(spark, (0, "a", 0, None, None), (0, "a", 9.999, None, None), (1, "b", 10, None, None))
    spec = WindowSpec(10 * MINUTE_US, 10 * MINUTE_US)
    assert rows_of(result_rows(sum_round(classify(records, spec), spec), spec), "records") == [(0.0, 2), (10.0, 1)]
    sliding = WindowSpec(10 * MINUTE_US, 5 * MINUTE_US)
    found = rows_of(
        result_rows(merge_sums([sum_round(classify(records, sliding), sliding)], sliding), sliding),
        "records",
        "window_end",
    )
    assert [row[:2] for row in found] == [(-5.0, 1), (0.0, 2), (10.0, 1), (5.0, 2)]
    assert found[1][2].timestamp() == (START_MS + 10 * MINUTE_MS) / 1000


def test_the_event_time_is_the_timestamp_or_an_expression(spark: Any) -> None:
    minutes = {
        None: 3,
        "timestamp + interval 1 minute": 4,
        "to_date('2026-01-01')": 0,
        "'2026-01-01T02:00:00+01:00'": 60,
        "'2026-01-01 01:00:00'": 60,
        f"{START_MS} + 120000": 2,
        f"double({START_MS})": 0,
        "'soon'": None,
        "string(null)": None,
        "bigint(9223372036854775807)": None,
    }
    records = literal(spark, (0, "a", 3, None, None))
    times = [event_time(records, text).alias(f"time_{number}") for number, text in enumerate(minutes)]
    wanted = [None if minute is None else START_US + minute * MINUTE_US for minute in minutes.values()]
    assert list(records.select(*times).first()) == wanted
    spec = WindowSpec(MINUTE_US, MINUTE_US, time="'soon'")
    [row] = sum_round(classify(records, spec), spec).collect()
    assert (row.outcome, row.start_us, row.records) == ("timeless", None, 1)


@pytest.mark.parametrize("sign", [1, -1])
def test_an_event_time_whose_windows_exceed_64_bits_is_none(spark: Any, sign: int) -> None:
    """One such record would end every run."""
    records = literal(spark, (0, "a", 0, None, None), (0, "a", 0, None, None))
    latest_ms = (1 << 63) // 1000
    spec = WindowSpec(2 * MINUTE_US, MINUTE_US, time=f"{sign * latest_ms} - {sign * 200_000} * offset")
    rows = result_rows(merge_sums([sum_round(classify(records, spec), spec)], spec), spec)
    outcomes = {row.outcome: row.records for row in sum_round(classify(records, spec), spec).collect()}
    assert outcomes == {"counted": 1, "timeless": 1}
    assert rows.where("window_start is not null").count() == 2


def test_every_record_has_one_outcome(spark: Any) -> None:
    """Nothing is computed of a record that is not counted."""
    records = literal(
        spark,
        (0, "a", 0, ("x", 5, "2026-01-01"), None),
        (0, "a", 0, None, "the value is not JSON of the schema"),
        (0, "a", 0, ("y", 5, "2026-01-01"), None),
        (0, "a", 0, ("x", 0, "never"), None),
        (0, "a", 0, None, None),
    )
    spec = WindowSpec(
        MINUTE_US,
        MINUTE_US,
        (NamedExpression("who", "if(data.who = 'x', data.who, raise_error('not wanted'))"),),
        (Measure("inverse", "sum", "10 / data.n"),),
        "data.at",
        "data.who = 'x'",
    )
    outcomes = {row.outcome: row.records for row in sum_round(classify(records, spec), spec).collect()}
    assert outcomes == {"counted": 1, "malformed": 1, "left_out": 2, "timeless": 1}


def test_merged_sums_of_several_rounds_equal_those_of_one(spark: Any) -> None:
    values = [(n % 2, "ab"[n % 2], n // 5, ("ab"[n % 2], n if n % 3 else None, ""), None) for n in range(20)]
    texts = ["count(data.n)", "sum(data.n)", "min(data.n)", "max(data.n)", "avg(data.n) as mean"]
    texts += ["sum(cast(data.n as decimal(6,2))) as exact", "count(*) as everything"]
    spec = WindowSpec(
        2 * MINUTE_US, 2 * MINUTE_US, (NamedExpression("who", "data.who"),), tuple(map(parse_measure, texts))
    )

    def sums(rows: Any) -> Any:
        return sum_round(classify(literal(spark, *rows), spec), spec)

    once = merge_sums([sums(values)], spec)
    parts = merge_sums([sums(values[:7]), merge_sums([sums(values[7:8]), sums(values[8:])], spec)], spec)
    assert parts.schema == once.schema
    names = ("who", "records", "count_n", "sum_n", "min_n", "max_n", "mean", "everything", "exact")
    in_one = rows_of(result_rows(once, spec), *names)
    assert rows_of(result_rows(parts, spec), *names) == in_one
    counted = [n for n in range(0, 10, 2) if n % 3]
    figures = (5, len(counted), sum(counted), 2, 8, sum(counted) / len(counted), 5, Decimal(sum(counted)))
    assert [row for row in in_one if row[:2] == (0.0, "a")] == [(0.0, "a", *figures)]
    nothing = sums([(0, "a", 0, ("a", None, ""), None)])
    assert rows_of(result_rows(nothing, spec), "count_n", "sum_n", "mean") == [(0.0, 0, None, None)]


def test_a_record_of_a_final_window_is_late(spark: Any) -> None:
    records = literal(spark, (0, "a", 9, None, None), (0, "a", 10, None, None), (1, "a", 0, None, None))
    spec = WindowSpec(10 * MINUTE_US, 10 * MINUTE_US)
    sums = sum_round(classify(records, spec), spec)
    mark = START_US + 10 * MINUTE_US
    for part, count in (
        (late(sums, spec, mark), 2),
        (in_time(sums, spec, mark), 1),
        (in_time(sums, spec, mark - 1), 3),
    ):
        assert [row[0] for row in part.agg(f.sum("records")).collect()] == [count]


def test_the_watermark_follows_the_slowest_partition() -> None:
    assert watermark(None, {}, [], 10, 1000) is None
    assert watermark(None, {0: 500, 1: 300}, [], 10, 1000) == 490
    assert watermark(None, {0: 500, 1: 300}, [0, 1], 10, 1000) == 290
    assert watermark(None, {0: 500, 1: 300}, [0], 10, 1000) == 490
    assert watermark(200, {0: 500}, [0, 1], 10, 1000) == 200, "of 1 nothing is known yet"
    assert watermark(400, {0: 100}, [], 10, 1000) == 400
    assert watermark(None, {0: 5000}, [], 10, 1000) == 990


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("median(data.n)", "--compute takes count, sum, min, max, avg of something"),
        ("avg()", "--compute takes count"),
        ("avg(data.n) + 1", "--compute takes count"),
        ("sum(data.n + 1)", "needs a name"),
    ],
)
def test_an_invalid_measure_is_refused(text: str, words: str) -> None:
    with pytest.raises(JobError, match=words):
        parse_measure(text)


def test_column_names_are_unique_and_expressions_valid(spark: Any) -> None:
    assert parse_column("--by", "data.who") == NamedExpression("who", "data.who")
    assert parse_column("--by", " cast(key as string) AS k ") == NamedExpression("k", "cast(key as string)")
    assert parse_measure("SUM(data.n)") == Measure("sum_n", "sum", "data.n")
    with pytest.raises(JobError, match=r"needs a name for its column: hour\(timestamp\) as NAME"):
        parse_column("--by", "hour(timestamp)")
    with pytest.raises(JobError, match="would be called Records"):
        check_distinct_names(["a", "Records"], ["records"])
    records = literal(spark)
    for spec, words in (
        (
            WindowSpec(1, 1, (NamedExpression("whom", "data.whom"),)),
            r"--by 'data.whom' is not understood: .*UNRESOLVED|FIELD_NOT_FOUND",
        ),
        (WindowSpec(1, 1, where="data.who ="), "--where 'data.who =' is not understood"),
        (WindowSpec(1, 1, (NamedExpression("n", "count(1)"),)), "is not understood"),
        (WindowSpec(1, 1, time="data"), "--time 'data' has the type struct"),
    ):
        with pytest.raises(JobError, match=words):
            check_expressions(records, spec)


def test_only_durations_are_accepted_as_windows() -> None:
    for text, seconds in (
        ("15 minutes", 900),
        ("1 hour 30 minutes", 5400),
        ("90s", 90),
        ("2 Days", 172_800),
        ("1w", 604_800),
    ):
        assert parse_duration_s("--window", text) == seconds
    for text in ("", "soon", "1 month", "5", "1 hour or so", "-1 hour"):
        with pytest.raises(JobError, match="--window takes a duration"):
            parse_duration_s("--window", text)
    for text in ("900000 weeks", "99999999999 days 1 s"):
        with pytest.raises(JobError, match="--window takes at most 100,000,000,000 seconds"):
            parse_duration_s("--window", text)
    with pytest.raises(JobError, match="--window takes a duration"):
        parse_duration_s("--window", f"{'9' * 5000} days")
