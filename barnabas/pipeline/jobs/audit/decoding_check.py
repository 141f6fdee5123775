"""Decodes the values of a decoded archive again, since no checksum covers `data` and `error`.

RULES    1. `value` is compared with the topic. `data` and `error` must equal the result of decoding `value` with the archive's
            schema.
         2. Decoded values are compared as JSON, since Spark cannot compare maps.
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
    """Returns the records whose `data` or `error` differs from the decoded value (rule 1)."""
    stored = records.withColumnsRenamed({"data": "_kept_data", "error": "_kept_error"})
    is_same = _as_json("data").eqNullSafe(_as_json("_kept_data")) & f.col("error").eqNullSafe(f.col("_kept_error"))
    return decode(stored, decoding).where(~is_same)


def _as_json(column: str) -> Column:
    return f.to_json(f.struct(f.col(column).alias("data")), EXACT)
