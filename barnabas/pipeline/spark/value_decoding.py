"""Values decoded by a schema, beside the bytes that they came from: JSON and Avro.

RULES    1. `value` stays as it is: a decoded archive is still a faithful copy, and can be audited and replayed.
         2. `data` holds the decoded value, or null; `error` says why there is none, and is null for a tombstone.
         3. A schema is settled once, when the archive is begun: later records that do not fit it are malformed.
         4. Avro is Spark's own (the jar spark-avro), so no record goes through Python. `confluent` framing drops the five
            bytes that registries put before the record; a record without them is malformed.
NOT HERE Where malformed records go (`jobs/dead_letters.py`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, StructType

from barnabas.pipeline.errors import JobError, sentence_of

SAMPLE = 10_000
FORMATS = ("raw", "json", "avro")
FRAMING_BYTES = 5
_BROKEN = "_broken"
_MARK = b"\x02"  # the number 1 in Avro


@dataclass(frozen=True)
class Decoding:
    """How values are decoded: the format, and the schema as text (Spark's JSON of a type, or Avro's)."""

    format: str
    schema: str
    framing: str = "plain"


def settle_decoding(spark: SparkSession, wish: str, schema: Path | None, framing: str, values: DataFrame) -> Decoding:
    """What the user asked for, with the schema read from its file, or inferred from the first records."""
    if wish not in FORMATS:
        raise JobError(f"Values are decoded as {', '.join(FORMATS)}, and not as {wish!r}.")
    if framing not in {"plain", "confluent"}:
        raise JobError(f"Avro is framed plain or confluent, and not {framing!r}.")
    if wish == "raw":
        return Decoding("raw", "")
    if schema is None:
        if wish == "avro":
            raise JobError("Avro needs --schema: the file with the schema of the values.")
        return Decoding("json", _inferred(spark, values))
    return Decoding(wish, _schema_of(wish, schema), framing)


def is_begun_with(schema: Path, decoding: Decoding) -> bool:
    """Whether a schema's file says what an archive was begun with (rule 3)."""
    return bool(json.loads(_schema_of(decoding.format, schema)) == json.loads(decoding.schema))


def decode(records: DataFrame, decoding: Decoding) -> DataFrame:
    """The records with `data` and `error` (rules 1 and 2)."""
    if decoding.format == "raw":
        return records
    if decoding.format == "json":
        return _decode_json(records, decoding)
    return _decode_avro(records, decoding)


def _decode_json(records: DataFrame, decoding: Decoding) -> DataFrame:
    schema = StructType.fromJson(json.loads(decoding.schema))
    watched = StructType([*schema.fields]).add(_BROKEN, "string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BROKEN}
    parsed = records.withColumn("_parsed", f.from_json(f.col("value").cast("string"), watched, options))
    is_there = f.col("value").isNotNull()
    is_broken = is_there & (f.col("_parsed").isNull() | f.col(f"_parsed.{_BROKEN}").isNotNull())
    data = f.struct(*(f.col(f"_parsed.`{field.name}`").alias(field.name) for field in schema.fields))
    return _judged(parsed, is_there, is_broken, data, "the value is not JSON of the schema").drop("_parsed")


def _decode_avro(records: DataFrame, decoding: Decoding) -> DataFrame:
    from pyspark.sql.avro.functions import from_avro

    is_there = f.col("value").isNotNull()
    body: Column = f.col("value")
    is_framed: Column = f.lit(True)
    if decoding.framing == "confluent":
        is_framed = (f.length("value") > FRAMING_BYTES) & (f.substring("value", 1, 1) == f.lit(bytes(1)))
        body = f.when(is_framed, f.expr(f"substring(value, {FRAMING_BYTES + 1})"))
    marked = f.concat(f.lit(_MARK), body)
    parsed = records.withColumn("_parsed", from_avro(marked, _with_mark(decoding.schema), {"mode": "PERMISSIVE"}))
    is_broken = is_there & (~is_framed | f.col("_parsed.mark").isNull())
    words = "the value is not Avro of the schema"
    return _judged(parsed, is_there, is_broken, f.col("_parsed.data"), words).drop("_parsed")


def _with_mark(schema: str) -> str:
    """A record of a mark and the value: Spark answers a malformed one with nulls all over, which the mark tells from nulls."""
    fields = [{"name": "mark", "type": "int"}, {"name": "data", "type": json.loads(schema)}]
    return json.dumps({"type": "record", "name": "_Marked", "fields": fields})


def _judged(records: DataFrame, is_there: Column, is_broken: Column, data: Column, words: str) -> DataFrame:
    return records.withColumn("data", f.when(is_there & ~is_broken, data)).withColumn(
        "error", f.when(is_broken, f.lit(words))
    )


def decoded_fields(spark: SparkSession, decoding: Decoding) -> str:
    """The columns that decoding adds, as DDL."""
    if decoding.format == "raw":
        return ""
    if decoding.format == "json":
        return f", data {StructType.fromJson(json.loads(decoding.schema)).simpleString()}, error string"
    kind = _avro_type(spark, decoding.schema)
    return f", data {kind.simpleString()}, error string"


def _avro_type(spark: SparkSession, schema: str) -> DataType:
    from pyspark.sql.avro.functions import from_avro

    nothing = spark.range(0).select(f.lit(None).cast("binary").alias("value"))
    return nothing.select(from_avro("value", schema).alias("data")).schema["data"].dataType


def _inferred(spark: SparkSession, values: DataFrame) -> str:
    texts = [row[0] for row in values.select(f.col("value").cast("string")).where("value is not null").take(SAMPLE)]
    inferred = spark.read.option("mode", "DROPMALFORMED").json(spark.sparkContext.parallelize(texts, 1)).schema
    if not inferred.fields:
        raise JobError("No schema can be inferred: the topics hold no JSON objects yet; name one with --schema.")
    return inferred.json()


def _schema_of(wish: str, path: Path) -> str:
    try:
        text = path.read_text()
    except OSError as failure:
        raise JobError(f"The schema {path} cannot be read: {failure.strerror}.") from failure
    return _json_schema(text, path) if wish == "json" else _avro_schema(text, path)


def _json_schema(text: str, path: Path) -> str:
    """A schema file: Spark's JSON of a struct, or its DDL (`carrier string, month int`)."""
    try:
        if text.lstrip().startswith("{"):
            return StructType.fromJson(json.loads(text)).json()
        kind = StructType.fromDDL(text.strip())
    except (ValueError, KeyError, TypeError) as failure:
        raise JobError(f"The schema {path} is neither Spark's JSON of a struct nor DDL: {failure}.") from failure
    except PySparkException as failure:
        raise JobError(f"The schema {path} is no DDL: {sentence_of(failure)}") from failure
    return kind.json()


def _avro_schema(text: str, path: Path) -> str:
    try:
        json.loads(text)
    except ValueError as failure:
        raise JobError(f"The schema {path} is no Avro schema: {failure}.") from failure
    return text
