"""Decodes values by a schema, beside the original bytes: JSON and Avro.

RULES    1. `value` is unchanged: a decoded archive can still be audited and replayed.
         2. `data` holds the decoded value or null. `error` holds the reason for a null; it is null for a tombstone.
         3. The schema is fixed when the archive is created. Later records that do not fit are malformed.
         4. Spark's own Avro reader (spark-avro) is used, so no record passes through Python. `confluent` framing drops the five
            bytes that schema registries prepend; a record without them is malformed.
NOT HERE Dead letters (`jobs/dead_letters.py`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from barnabas.pipeline.errors import JobError, describe_failure

SAMPLE = 10_000
FORMATS = ("raw", "json", "avro")
FRAMING_BYTES = 5
_BROKEN = "_broken"
_AVRO_ONE = b"\x02"  # the number 1, encoded in Avro

EXACT = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""The format of decoded values that are compared: as JSON, since Spark cannot compare maps."""


@dataclass(frozen=True)
class Decoding:
    """Format and schema as text: Spark's JSON of a type, or an Avro schema."""

    format: str
    schema: str
    framing: str = "plain"


def choose_decoding(
    spark: SparkSession, decode_format: str, schema: Path | None, framing: str | None, values: DataFrame
) -> Decoding:
    """Returns the decoding for these settings, with the schema of the file or inferred from values. Raises JobError."""
    framing = framing or "plain"
    if decode_format not in FORMATS:
        raise JobError(f"Values are decoded as {', '.join(FORMATS)}, not as {decode_format!r}.")
    if framing not in {"plain", "confluent"}:
        raise JobError(f"Avro is framed plain or confluent, not {framing!r}.")
    if decode_format == "raw":
        return Decoding("raw", "")
    if schema is None:
        if decode_format == "avro":
            raise JobError("Avro needs --schema: the file with the schema of the values.")
        return Decoding("json", _inferred(spark, values))
    return Decoding(decode_format, _schema_of(decode_format, schema), framing)


def check_decoding(
    where: str, decoding: Decoding, decode_format: str | None, schema: Path | None, framing: str | None
) -> None:
    """Raises JobError if settings contradict the decoding that `where` was created with (rule 3); None is not given."""
    if decode_format not in (None, decoding.format):
        raise JobError(f"{where} was created with --decode {decoding.format}: use another folder for {decode_format}.")
    if decoding.format == "avro" and framing not in (None, decoding.framing):
        raise JobError(f"{where} was created with --framing {decoding.framing}: use another folder for {framing}.")
    if decoding.format == "raw" or schema is None:
        return
    if json.loads(_schema_of(decoding.format, schema)) != json.loads(decoding.schema):
        raise JobError(f"{where} was created with another schema than {schema}: use another folder for it.")


def decode(records: DataFrame, decoding: Decoding) -> DataFrame:
    """Adds `data` and `error` (rules 1 and 2)."""
    if decoding.format == "raw":
        return records
    if decoding.format == "json":
        return _decode_json(records, decoding)
    return _decode_avro(records, decoding)


def _decode_json(records: DataFrame, decoding: Decoding) -> DataFrame:
    schema = StructType.fromJson(json.loads(decoding.schema))
    schema_with_error = StructType([*schema.fields]).add(_BROKEN, "string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BROKEN}
    parsed = records.withColumn("_parsed", f.from_json(f.col("value").cast("string"), schema_with_error, options))
    has_value = f.col("value").isNotNull()
    is_broken = has_value & (f.col("_parsed").isNull() | f.col(f"_parsed.{_BROKEN}").isNotNull())
    data = f.struct(*(f.col("_parsed").getField(field.name).alias(field.name) for field in schema.fields))
    return _with_data_and_error(parsed, has_value, is_broken, data, "the value is not JSON of the schema").drop(
        "_parsed"
    )


def _decode_avro(records: DataFrame, decoding: Decoding) -> DataFrame:
    from pyspark.sql.avro.functions import from_avro

    has_value = f.col("value").isNotNull()
    body: Column = f.col("value")
    is_framed: Column = f.lit(True)
    if decoding.framing == "confluent":
        is_framed = (f.length("value") > FRAMING_BYTES) & (f.substring("value", 1, 1) == f.lit(bytes(1)))
        body = f.when(is_framed, f.expr(f"substring(value, {FRAMING_BYTES + 1})"))
    marked = f.concat(f.lit(_AVRO_ONE), body)
    parsed = records.withColumn("_parsed", from_avro(marked, _with_mark(decoding.schema), {"mode": "PERMISSIVE"}))
    is_broken = has_value & (~is_framed | f.col("_parsed.mark").isNull())
    reason = "the value is not Avro of the schema"
    return _with_data_and_error(parsed, has_value, is_broken, f.col("_parsed.data"), reason).drop("_parsed")


def _with_mark(schema: str) -> str:
    """Wraps the schema in a record with a mark: Spark returns nulls for a malformed record, and a null mark detects it."""
    fields = [{"name": "mark", "type": "int"}, {"name": "data", "type": json.loads(schema)}]
    return json.dumps({"type": "record", "name": "_Marked", "fields": fields})


def _with_data_and_error(
    records: DataFrame, has_value: Column, is_broken: Column, data: Column, reason: str
) -> DataFrame:
    return records.withColumn("data", f.when(has_value & ~is_broken, data)).withColumn(
        "error", f.when(is_broken, f.lit(reason))
    )


def misdecoded(records: DataFrame, decoding: Decoding) -> DataFrame:
    """Returns the records whose `data` or `error` differs from the decoded `value`; no checksum covers them."""
    stored = records.withColumnsRenamed({"data": "_stored_data", "error": "_stored_error"})
    is_same = _as_json("data").eqNullSafe(_as_json("_stored_data")) & f.col("error").eqNullSafe(f.col("_stored_error"))
    return decode(stored, decoding).where(~is_same)


def _as_json(column: str) -> Column:
    return f.to_json(f.struct(f.col(column).alias("data")), EXACT)


def decoded_fields(spark: SparkSession, decoding: Decoding) -> str:
    """Returns the columns that decoding adds, as DDL."""
    if decoding.format == "raw":
        return ""
    if decoding.format == "json":
        return f", data {_ddl(StructType.fromJson(json.loads(decoding.schema)))}, error string"
    return f", data {_ddl(_avro_type(spark, decoding.schema))}, error string"


def _ddl(kind: DataType) -> str:
    """A type as DDL; unlike in `simpleString`, names of fields may have any characters."""
    if isinstance(kind, StructType):
        names = (field.name.replace("`", "``") for field in kind.fields)
        return f"struct<{','.join(f'`{name}`:{_ddl(field.dataType)}' for name, field in zip(names, kind.fields, strict=True))}>"
    if isinstance(kind, ArrayType):
        return f"array<{_ddl(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{_ddl(kind.keyType)},{_ddl(kind.valueType)}>"
    return kind.simpleString()


def _avro_type(spark: SparkSession, schema: str) -> DataType:
    from pyspark.sql.avro.functions import from_avro

    nothing = spark.range(0).select(f.lit(None).cast("binary").alias("value"))
    return nothing.select(from_avro("value", schema).alias("data")).schema["data"].dataType


def _inferred(spark: SparkSession, values: DataFrame) -> str:
    texts = [row[0] for row in values.select(f.col("value").cast("string")).where("value is not null").take(SAMPLE)]
    inferred = spark.read.option("mode", "DROPMALFORMED").json(spark.sparkContext.parallelize(texts, 1)).schema
    if not inferred.fields:
        raise JobError("No schema can be inferred: the topics hold no JSON objects yet; name one with --schema.")
    _refuse_similar_names(inferred)
    return inferred.json()


def _refuse_similar_names(kind: DataType) -> None:
    """Raises JobError for fields whose names differ only in case, which Spark takes for the same column."""
    if isinstance(kind, StructType):
        seen: dict[str, str] = {}
        for field in kind.fields:
            if (other := seen.get(field.name.lower())) is not None:
                raise JobError(
                    f"The schema has the fields {other} and {field.name}, which are the same to Spark: name one with --schema."
                )
            seen[field.name.lower()] = field.name
            _refuse_similar_names(field.dataType)
    elif isinstance(kind, ArrayType):
        _refuse_similar_names(kind.elementType)
    elif isinstance(kind, MapType):
        _refuse_similar_names(kind.valueType)


def _schema_of(decode_format: str, path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        reason = failure.strerror if isinstance(failure, OSError) else "it is not UTF-8 text"
        raise JobError(f"The schema {path} cannot be read: {reason}.") from failure
    return _json_schema(text, path) if decode_format == "json" else _avro_schema(text, path)


def _json_schema(text: str, path: Path) -> str:
    """Parses a schema file: Spark's JSON of a struct, or DDL (`carrier string, month int`)."""
    try:
        is_json = text.lstrip().startswith("{")
        kind = StructType.fromJson(json.loads(text)) if is_json else StructType.fromDDL(text.strip())
    except (ValueError, KeyError, TypeError) as failure:
        raise JobError(f"The schema {path} is neither Spark's JSON of a struct nor DDL: {failure}.") from failure
    except PySparkException as failure:
        raise JobError(f"The schema {path} is not DDL: {describe_failure(failure)}") from failure
    _refuse_similar_names(kind)
    return str(kind.json())


def _avro_schema(text: str, path: Path) -> str:
    try:
        json.loads(text)
    except ValueError as failure:
        raise JobError(f"The schema {path} is not an Avro schema: {failure}.") from failure
    return text
