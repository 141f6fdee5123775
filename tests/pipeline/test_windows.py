"""The steps of `aggregate` on literal rows: event times, windows, measures, what is late, and when a window is final."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as f

from barnabas.pipeline.datetimes import duration_s
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.aggregate.measures import Measure, Named, distinct, measure, named
from barnabas.pipeline.jobs.aggregate.watermark import watermark
from barnabas.pipeline.jobs.aggregate.windows import (
    Shape,
    event_time,
    in_time,
    joined,
    judged,
    late,
    shown,
    summed,
    understand,
)
from tests.pipeline.topics import MINUTE_MS, START_MS

MINUTE_US = MINUTE_MS * 1000
START_US = START_MS * 1000
COLUMNS = "partition int, offset bigint, key binary, timestamp timestamp, data struct<who:string,n:int,at:string>, error string"

pytestmark = pytest.mark.turn(0)


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
    """The rows, windows as minutes after the start."""
    found = (
        frame.withColumn("at", (f.unix_micros("window_start") - START_US) / MINUTE_US).select("at", *names).collect()
    )
    return sorted((tuple(row) for row in found), key=str)


def test_records_fall_into_the_windows_of_their_time(spark: Any) -> None:
    """windows.py rule 1: the start belongs to a window, the end does not; one that slides has a record in several."""
    records = literal(spark, (0, "a", 0, None, None), (0, "a", 9.999, None, None), (1, "b", 10, None, None))
    shape = Shape(10 * MINUTE_US, 10 * MINUTE_US)
    assert rows_of(shown(summed(judged(records, shape), shape), shape), "records") == [(0.0, 2), (10.0, 1)]
    sliding = Shape(10 * MINUTE_US, 5 * MINUTE_US)
    found = rows_of(
        shown(joined([summed(judged(records, sliding), sliding)], sliding), sliding), "records", "window_end"
    )
    assert [row[:2] for row in found] == [(-5.0, 1), (0.0, 2), (10.0, 1), (5.0, 2)]
    assert found[1][2].timestamp() == (START_MS + 10 * MINUTE_MS) / 1000


def test_the_event_time_is_the_timestamp_or_what_an_expression_says(spark: Any) -> None:
    """windows.py rules 2 and 3: what is no time makes the record timeless, and that is counted."""
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
    shape = Shape(MINUTE_US, MINUTE_US, time="'soon'")
    [row] = summed(judged(records, shape), shape).collect()
    assert (row.fate, row.start_us, row.records) == ("timeless", None, 1)


def test_every_record_has_a_fate(spark: Any) -> None:
    """windows.py rule 3: nothing is computed of a record that does not count."""
    records = literal(
        spark,
        (0, "a", 0, ("x", 5, "2026-01-01"), None),
        (0, "a", 0, None, "the value is not JSON of the schema"),
        (0, "a", 0, ("y", 5, "2026-01-01"), None),
        (0, "a", 0, ("x", 0, "never"), None),
        (0, "a", 0, None, None),
    )
    shape = Shape(
        MINUTE_US,
        MINUTE_US,
        (Named("who", "if(data.who = 'x', data.who, raise_error('not wanted'))"),),
        (Measure("inverse", "sum", "10 / data.n"),),
        "data.at",
        "data.who = 'x'",
    )
    fates = {row.fate: row.records for row in summed(judged(records, shape), shape).collect()}
    assert fates == {"counted": 1, "malformed": 1, "left out": 2, "timeless": 1}


def test_sums_of_several_rounds_come_to_those_of_one(spark: Any) -> None:
    """measures.py rule 2, windows.py rule 4: an average of averages would be wrong; the types stay as they are."""
    values = [(n % 2, "ab"[n % 2], n // 5, ("ab"[n % 2], n if n % 3 else None, ""), None) for n in range(20)]
    texts = ("count(data.n)", "sum(data.n)", "min(data.n)", "max(data.n)", "avg(data.n) as mean")
    texts += ("sum(cast(data.n as decimal(6,2))) as exact", "count(*) as everything")
    shape = Shape(2 * MINUTE_US, 2 * MINUTE_US, (Named("who", "data.who"),), tuple(map(measure, texts)))

    def sums(rows: Any) -> Any:
        return summed(judged(literal(spark, *rows), shape), shape)

    once = joined([sums(values)], shape)
    parts = joined([sums(values[:7]), joined([sums(values[7:8]), sums(values[8:])], shape)], shape)
    assert parts.schema == once.schema
    names = ("who", "records", "count_n", "sum_n", "min_n", "max_n", "mean", "everything", "exact")
    in_one = rows_of(shown(once, shape), *names)
    assert rows_of(shown(parts, shape), *names) == in_one
    counted = [n for n in range(0, 10, 2) if n % 3]
    figures = (5, len(counted), sum(counted), 2, 8, sum(counted) / len(counted), 5, Decimal(sum(counted)))
    assert [row for row in in_one if row[:2] == (0.0, "a")] == [(0.0, "a", *figures)]
    nothing = sums([(0, "a", 0, ("a", None, ""), None)])
    assert rows_of(shown(nothing, shape), "count_n", "sum_n", "mean") == [(0.0, 0, None, None)]


def test_what_comes_for_a_final_window_is_late(spark: Any) -> None:
    """windows.py rule 5: judged by the end of the window, and kept with its sums."""
    records = literal(spark, (0, "a", 9, None, None), (0, "a", 10, None, None), (1, "a", 0, None, None))
    shape = Shape(10 * MINUTE_US, 10 * MINUTE_US)
    sums = summed(judged(records, shape), shape)
    mark = START_US + 10 * MINUTE_US
    for part, count in (
        (late(sums, shape, mark), 2),
        (in_time(sums, shape, mark), 1),
        (in_time(sums, shape, mark - 1), 3),
    ):
        assert part.agg(f.sum("records")).first()[0] == count


def test_the_watermark_waits_for_the_partition_that_is_least_far() -> None:
    """watermark.py rules 1 to 4."""
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
def test_a_measure_that_is_none_is_refused(text: str, words: str) -> None:
    """measures.py rules 1 and 3."""
    with pytest.raises(JobError, match=words):
        measure(text)


def test_columns_have_names_of_their_own(spark: Any) -> None:
    """measures.py rule 3; and an expression that means nothing is one sentence, before anything is read."""
    assert named("--by", "data.who") == Named("who", "data.who")
    assert named("--by", " cast(key as string) AS k ") == Named("k", "cast(key as string)")
    assert measure("SUM(data.n)") == Measure("sum_n", "sum", "data.n")
    with pytest.raises(JobError, match=r"needs a name for its column: hour\(timestamp\) as NAME"):
        named("--by", "hour(timestamp)")
    with pytest.raises(JobError, match="would be called Records"):
        distinct(["a", "Records"], ["records"])
    records = literal(spark)
    for shape, words in (
        (
            Shape(1, 1, (Named("whom", "data.whom"),)),
            r"--by 'data.whom' is not understood: .*UNRESOLVED|FIELD_NOT_FOUND",
        ),
        (Shape(1, 1, where="data.who ="), "--where 'data.who =' is not understood"),
        (Shape(1, 1, (Named("n", "count(1)"),)), "is not understood"),
        (Shape(1, 1, time="data"), "--time 'data' is of the type struct"),
    ):
        with pytest.raises(JobError, match=words):
            understand(records, shape)


def test_durations_are_words() -> None:
    """moments.py."""
    for text, seconds in (
        ("15 minutes", 900),
        ("1 hour 30 minutes", 5400),
        ("90s", 90),
        ("2 Days", 172_800),
        ("1w", 604_800),
    ):
        assert duration_s("--window", text) == seconds
    for text in ("", "soon", "1 month", "5", "1 hour or so", "-1 hour"):
        with pytest.raises(JobError, match="--window takes a duration"):
            duration_s("--window", text)
