"""Records counted by windows of event time: the steps of `aggregate`, each from DataFrame to DataFrame.

RULES    1. A record is in each window [start, start + length) that its event time falls into; windows begin at multiples of the
            slide since 1970, UTC.
         2. The event time is the record's timestamp, or an expression: of a timestamp or a date, of a number (milliseconds
            since 1970), or of a text (ISO 8601, UTC unless it says else).
         3. Every record has a fate, and all fates are counted: *counted*; *malformed*, the value does not fit the schema;
            *left out* by `where`; *timeless*, without an event time.
         4. Sums of a round are kept by partition and can be put together with others' (`measures.py`).
         5. What falls into a window that is final is *late*: it makes rows of the same kind, of their own, and the window
            stays as it is. In windows that are shifted against each other a record is late once for each final one.
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
from barnabas.pipeline.jobs.aggregate.measures import Measure, Named

COUNTED, MALFORMED, LEFT_OUT, TIMELESS = "counted", "malformed", "left out", "timeless"
OWN_COLUMNS = ("window_start", "window_end", "records", "is_final", "came_in")
_START, _FATE, _TIME = "start_us", "fate", "time_us"


@dataclass(frozen=True)
class Shape:
    """What is computed; durations in microseconds."""

    length: int
    slide: int
    by: tuple[Named, ...] = ()
    measures: tuple[Measure, ...] = ()
    time: str | None = None
    where: str | None = None

    @property
    def groups(self) -> list[str]:
        """The groups' columns, as they are called until the result."""
        return [f"group_{number}" for number in range(len(self.by))]

    @property
    def inputs(self) -> list[str]:
        """The columns of what the measures are computed from."""
        return [f"input_{number}" for number in range(len(self.measures))]


def judged(records: DataFrame, shape: Shape) -> DataFrame:
    """Each record's fate, event time, groups and inputs (rules 2 and 3); nothing is computed of what is not counted."""
    fits = f.lit(True) if "error" not in records.columns else f.col("error").isNull()
    chosen = f.lit(True) if shape.where is None else f.coalesce(f.expr(shape.where), f.lit(False))
    is_wanted = records.withColumn(
        _FATE, f.when(~fits, f.lit(MALFORMED)).when(~chosen, f.lit(LEFT_OUT)).otherwise(f.lit(COUNTED))
    )
    timed = is_wanted.withColumn(_TIME, f.when(f.col(_FATE) == COUNTED, event_time(records, shape.time)))
    fate = f.when((f.col(_FATE) == COUNTED) & f.col(_TIME).isNull(), f.lit(TIMELESS)).otherwise(f.col(_FATE))
    fated = timed.withColumn(_FATE, fate)
    expressions = [*(one.expression for one in shape.by), *(one.expression for one in shape.measures)]
    names = [*shape.groups, *shape.inputs]
    is_counted = f.col(_FATE) == COUNTED
    columns = [f.when(is_counted, _expression(text)).alias(name) for name, text in zip(names, expressions, strict=True)]
    return fated.select("partition", _FATE, _TIME, *columns)


def event_time(records: DataFrame, expression: str | None) -> Column:
    """The event time in microseconds since 1970, or null (rule 2)."""
    if expression is None:
        return f.when(f.col("timestamp") >= f.timestamp_millis(f.lit(0)), f.unix_micros("timestamp"))
    kind = records.select(f.expr(expression).alias("time")).schema["time"].dataType
    return _in_us(f.expr(expression), kind, expression)


def _in_us(time: Column, kind: DataType, words: str) -> Column:
    if isinstance(kind, StringType):
        return f.unix_micros(time.try_cast("timestamp"))
    if isinstance(kind, (TimestampType, TimestampNTZType, DateType)):
        return f.unix_micros(time.cast("timestamp"))
    if isinstance(kind, NumericType):
        return f.try_multiply(time.try_cast("bigint"), f.lit(1000))
    raise JobError(f"--time {words!r} is of the type {kind.simpleString()}, and that is no time.")


def summed(judgements: DataFrame, shape: Shape) -> DataFrame:
    """The round's sums, by partition, fate, window and groups (rules 1 and 4)."""
    newest = f.col(_TIME) - f.pmod(f.col(_TIME), f.lit(shape.slide))
    starts = f.array(*(newest - f.lit(back) for back in range(0, shape.length, shape.slide)))
    fallen = judgements.withColumn(
        _START, f.explode(f.when(f.col(_FATE) == COUNTED, starts).otherwise(f.array(f.lit(None).cast("bigint"))))
    )
    parts = [part for one, column in zip(shape.measures, shape.inputs, strict=True) for part in one.first(column)]
    return fallen.groupBy("partition", _FATE, _START, *shape.groups).agg(
        f.count(f.lit(1)).alias("records"), f.max(_TIME).alias("latest_us"), *parts
    )


def late(sums: DataFrame, shape: Shape, watermark_us: int | None) -> DataFrame:
    """Of a round's sums those of windows that are final (rule 5)."""
    return sums.where(f.col(_FATE) == COUNTED).where(is_over(shape, watermark_us))


def in_time(sums: DataFrame, shape: Shape, watermark_us: int | None) -> DataFrame:
    """Of a round's sums those of windows that are open."""
    return sums.where(f.col(_FATE) == COUNTED).where(~is_over(shape, watermark_us))


def sum_columns(sums: DataFrame, shape: Shape) -> list[str]:
    """The columns of sums that are kept from round to round."""
    return [_START, *shape.groups, "records", *(name for name in sums.columns if name.startswith("input_"))]


def joined(parts: Sequence[DataFrame], shape: Shape) -> DataFrame:
    """Sums of the same windows and groups put together; the types stay as they are."""
    again = [part for one, column in zip(shape.measures, shape.inputs, strict=True) for part in one.again(column)]
    keys = [_START, *shape.groups]
    kept = parts[0].select(*sum_columns(parts[0], shape)).schema
    together = reduce(DataFrame.unionByName, [part.select(*kept.names) for part in parts])
    added = together.groupBy(*keys).agg(f.sum("records").alias("records"), *again)
    return added.select(*(f.col(field.name).cast(field.dataType).alias(field.name) for field in kept.fields))


def is_over(shape: Shape, watermark_us: int | None) -> Column:
    """Whether a row's window is final at this watermark."""
    if watermark_us is None:
        return f.lit(False)
    return f.col(_START) + f.lit(shape.length) <= f.lit(watermark_us)


def shown(sums: DataFrame, shape: Shape, **more: Column) -> DataFrame:
    """Sums as a reader sees them, with further columns."""
    groups = [f.col(column).alias(one.name) for column, one in zip(shape.groups, shape.by, strict=True)]
    results = [one.result(column) for one, column in zip(shape.measures, shape.inputs, strict=True)]
    return sums.select(
        f.timestamp_micros(_START).alias("window_start"),
        f.timestamp_micros(f.col(_START) + f.lit(shape.length)).alias("window_end"),
        *groups,
        "records",
        *results,
        *(column.alias(name) for name, column in more.items()),
    )


def understand(records: DataFrame, shape: Shape) -> None:
    """See that every expression means something, before anything is read."""
    options = [
        *(("--by", one.expression) for one in shape.by),
        *(("--compute", one.expression) for one in shape.measures),
        *(("--time", text) for text in [shape.time] if text is not None),
        *(("--where", text) for text in [shape.where] if text is not None),
    ]
    for option, text in options:
        try:
            records.withColumn("understood", _expression(text))
        except PySparkException as failure:
            raise JobError(f"{option} {text!r} is not understood: {_first_sentence(failure)}") from failure
    try:
        shown(joined([summed(judged(records, shape), shape)], shape), shape)
    except PySparkException as failure:
        raise JobError(f"This cannot be computed: {_first_sentence(failure)}") from failure


def _expression(text: str) -> Column:
    """An expression of Spark's SQL; `*`, as in count(*), is true of every record."""
    return f.lit(True) if text == "*" else f.expr(text)


def _first_sentence(failure: PySparkException) -> str:
    return str(failure).strip().splitlines()[0].partition("SQLSTATE")[0].strip()
