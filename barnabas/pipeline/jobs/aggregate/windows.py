"""Aggregates records by windows of event time: the steps of `aggregate`, each from DataFrame to DataFrame.

RULES    1. A record belongs to each window [start, start + length) that contains its event time. Windows start at multiples of
            the slide since 1970, UTC.
         2. The event time is the record's timestamp, or an expression: a timestamp, a date, a number (milliseconds since 1970),
            or a text (ISO 8601, UTC by default).
         3. Each record has one outcome, and outcomes are counted: *counted*; *malformed*, the value does not fit the schema;
            *left out* by `where`; *timeless*, without event time or with one whose windows 64 bits cannot hold.
         4. The sums of a round are kept by partition and can be merged with others (`measures.py`).
         5. Records of a final window are *late*: they form separate rows, and the window does not change. With sliding windows
            a record is late once for each final window.
NOT HERE When a window is final (`watermark.py`), rounds and files (`aggregate.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, DateType, NumericType, StringType, TimestampNTZType, TimestampType

from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.aggregate.measures import Measure, NamedExpression

COUNTED, MALFORMED, LEFT_OUT, TIMELESS = "counted", "malformed", "left_out", "timeless"
ARRIVAL, FORMER_ARRIVAL = "arrival_version", "came_in"
"""The column of late rows with the version in which they arrived, and its name until 2026-11-28."""
OWN_COLUMNS = ("window_start", "window_end", "records", "is_final", ARRIVAL, FORMER_ARRIVAL)
MAX_TIME_US = (1 << 63) - 1
"""The end of the last window must not be later, nor the start of the first one earlier."""
_START, _OUTCOME, _TIME = "start_us", "outcome", "time_us"


@dataclass(frozen=True)
class WindowSpec:
    """The windows, groups and measures; durations in microseconds."""

    length: int
    slide: int
    by: tuple[NamedExpression, ...] = ()
    measures: tuple[Measure, ...] = ()
    time: str | None = None
    where: str | None = None

    @property
    def groups(self) -> list[str]:
        """The internal names of the group columns."""
        return [f"group_{number}" for number in range(len(self.by))]

    @property
    def inputs(self) -> list[str]:
        """The internal names of the measures' input columns."""
        return [f"input_{number}" for number in range(len(self.measures))]


def classify(records: DataFrame, spec: WindowSpec) -> DataFrame:
    """Adds outcome, event time, groups and inputs (rules 2 and 3); the last three only for counted records."""
    fits = f.lit(True) if "error" not in records.columns else f.col("error").isNull()
    chosen = f.lit(True) if spec.where is None else f.coalesce(f.expr(spec.where), f.lit(False))
    selected = records.withColumn(
        _OUTCOME, f.when(~fits, f.lit(MALFORMED)).when(~chosen, f.lit(LEFT_OUT)).otherwise(f.lit(COUNTED))
    )
    time, limit = event_time(records, spec.time), MAX_TIME_US - spec.length
    timed = selected.withColumn(_TIME, f.when((f.col(_OUTCOME) == COUNTED) & time.between(-limit, limit), time))
    outcome = f.when((f.col(_OUTCOME) == COUNTED) & f.col(_TIME).isNull(), f.lit(TIMELESS)).otherwise(f.col(_OUTCOME))
    with_outcome = timed.withColumn(_OUTCOME, outcome)
    expressions = [*(column.expression for column in spec.by), *(measure.expression for measure in spec.measures)]
    names = [*spec.groups, *spec.inputs]
    is_counted = f.col(_OUTCOME) == COUNTED
    columns = [f.when(is_counted, _expression(text)).alias(name) for name, text in zip(names, expressions, strict=True)]
    return with_outcome.select("partition", _OUTCOME, _TIME, *columns)


def event_time(records: DataFrame, expression: str | None) -> Column:
    """Returns the event time in microseconds since 1970, or null (rule 2)."""
    if expression is None:
        return f.when(f.col("timestamp") >= f.timestamp_millis(f.lit(0)), f.unix_micros("timestamp"))
    kind = records.select(f.expr(expression).alias("time")).schema["time"].dataType
    return _in_us(f.expr(expression), kind, expression)


def _in_us(time: Column, kind: DataType, expression: str) -> Column:
    if isinstance(kind, StringType):
        return f.unix_micros(time.try_cast("timestamp"))
    if isinstance(kind, (TimestampType, TimestampNTZType, DateType)):
        return f.unix_micros(time.cast("timestamp"))
    if isinstance(kind, NumericType):
        return f.try_multiply(time.try_cast("bigint"), f.lit(1000))
    raise JobError(f"--time {expression!r} has the type {kind.simpleString()}, which is not a time.")


def sum_round(classified: DataFrame, spec: WindowSpec) -> DataFrame:
    """Returns the sums of a round, by partition, outcome, window and groups (rules 1 and 4)."""
    newest = f.col(_TIME) - f.pmod(f.col(_TIME), f.lit(spec.slide))
    starts = f.array(*(newest - f.lit(back) for back in range(0, spec.length, spec.slide)))
    by_window = classified.withColumn(
        _START, f.explode(f.when(f.col(_OUTCOME) == COUNTED, starts).otherwise(f.array(f.lit(None).cast("bigint"))))
    )
    parts = [
        part for measure, column in zip(spec.measures, spec.inputs, strict=True) for part in measure.partials(column)
    ]
    return by_window.groupBy("partition", _OUTCOME, _START, *spec.groups).agg(
        f.count(f.lit(1)).alias("records"), f.max(_TIME).alias("latest_us"), *parts
    )


def late(sums: DataFrame, spec: WindowSpec, watermark_us: int | None) -> DataFrame:
    """Returns the sums of final windows (rule 5)."""
    return sums.where(f.col(_OUTCOME) == COUNTED).where(is_final_at(spec, watermark_us))


def in_time(sums: DataFrame, spec: WindowSpec, watermark_us: int | None) -> DataFrame:
    """Returns the sums of open windows."""
    return sums.where(f.col(_OUTCOME) == COUNTED).where(~is_final_at(spec, watermark_us))


def kept_columns(sums: DataFrame, spec: WindowSpec) -> list[str]:
    """Returns the columns of sums that are stored between rounds."""
    return [_START, *spec.groups, "records", *(name for name in sums.columns if name.startswith("input_"))]


def merge_sums(parts: Sequence[DataFrame], spec: WindowSpec) -> DataFrame:
    """Merges sums of the same windows and groups; keeps their types."""
    merge = [part for measure, column in zip(spec.measures, spec.inputs, strict=True) for part in measure.merge(column)]
    keys = [_START, *spec.groups]
    schema = parts[0].select(*kept_columns(parts[0], spec)).schema
    all_parts = reduce(DataFrame.unionByName, [part.select(*schema.names) for part in parts])
    merged = all_parts.groupBy(*keys).agg(f.sum("records").alias("records"), *merge)
    return merged.select(*(f.col(field.name).cast(field.dataType).alias(field.name) for field in schema.fields))


def is_final_at(spec: WindowSpec, watermark_us: int | None) -> Column:
    """Returns a column: whether the window is final at this watermark."""
    if watermark_us is None:
        return f.lit(False)
    return f.col(_START) + f.lit(spec.length) <= f.lit(watermark_us)


def result_rows(sums: DataFrame, spec: WindowSpec, **more: Column) -> DataFrame:
    """Returns the sums as result rows, with additional columns."""
    groups = [f.col(column).alias(group.name) for column, group in zip(spec.groups, spec.by, strict=True)]
    results = [measure.result(column) for measure, column in zip(spec.measures, spec.inputs, strict=True)]
    return sums.select(
        f.timestamp_micros(_START).alias("window_start"),
        f.timestamp_micros(f.col(_START) + f.lit(spec.length)).alias("window_end"),
        *groups,
        "records",
        *results,
        *(column.alias(name) for name, column in more.items()),
    )


def check_expressions(records: DataFrame, spec: WindowSpec) -> None:
    """Checks every expression before any record is read. Raises JobError."""
    options = [
        *(("--by", group.expression) for group in spec.by),
        *(("--compute", measure.expression) for measure in spec.measures),
        *(("--time", text) for text in [spec.time] if text is not None),
        *(("--where", text) for text in [spec.where] if text is not None),
    ]
    for option, text in options:
        try:
            records.withColumn("understood", _expression(text))
        except PySparkException as failure:
            raise JobError(f"{option} {text!r} is not understood: {_first_sentence(failure)}") from failure
    try:
        result_rows(merge_sums([sum_round(classify(records, spec), spec)], spec), spec)
    except PySparkException as failure:
        raise JobError(f"This cannot be computed: {_first_sentence(failure)}") from failure


def _expression(text: str) -> Column:
    """A Spark SQL expression; `*`, as in count(*), is true for every record."""
    return f.lit(True) if text == "*" else f.expr(text)


def _first_sentence(failure: PySparkException) -> str:
    return str(failure).strip().splitlines()[0].partition("SQLSTATE")[0].strip()
