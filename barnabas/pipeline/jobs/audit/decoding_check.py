"""What a decoded archive says of its values, decoded once more: `data` and `error` are in no checksum.

RULES    1. `value` is held against the topic; `data` and `error` must be what it decodes to, by the schema of the archive.
         2. Two decoded values are the same when they are the same JSON: maps cannot be compared otherwise.
NOT HERE Decoding (`barnabas/pipeline/spark/value_decoding.py`).
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from barnabas.pipeline.spark.value_decoding import Decoding, decode

EXACT = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def misdecoded(records: DataFrame, decoding: Decoding) -> DataFrame:
    """The records whose `data` or `error` is not what their value decodes to (rule 1)."""
    kept = records.withColumnsRenamed({"data": "_kept_data", "error": "_kept_error"})
    is_same = _as_json("data").eqNullSafe(_as_json("_kept_data")) & f.col("error").eqNullSafe(f.col("_kept_error"))
    return decode(kept, decoding).where(~is_same)


def _as_json(column: str) -> Column:
    return f.to_json(f.struct(f.col(column).alias("data")), EXACT)
