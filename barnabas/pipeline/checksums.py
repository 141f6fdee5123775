"""A 64-bit hash per record, and order-independent sums of hashes.

RULES    1. The hash covers topic, partition, offset, timestamp, key, value and headers. Null differs from empty, and bytes of
            one column never pass for those of another.
         2. Hashes are added modulo 2**64, not xor-ed: a duplicate changes the sum.
         3. The two 32-bit halves are summed separately, so Spark's long does not overflow; `combine_sums` joins them.
         4. Spark computes everything in the JVM: no record passes through Python.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as f

LOW_HALF = 0xFFFFFFFF
MODULUS = 1 << 64


def record_hash() -> Column:
    """Returns the hash of a record, a column over the Kafka source's columns (rule 1)."""
    nulls = (
        f.col("key").isNull().cast("int")
        + f.col("value").isNull().cast("int") * 2
        + f.col("headers").isNull().cast("int") * 4
    )
    absent = f.transform("headers", lambda header: header["value"].isNull())
    return f.xxhash64(
        "topic",
        "partition",
        "offset",
        f.unix_micros("timestamp"),
        "timestampType",
        nulls,
        "key",
        "value",
        absent,
        "headers",
    )


def sums(number: str) -> list[Column]:
    """Returns the aggregates for `combine_sums`; `number` is the column of hashes."""
    return [
        f.count("*").alias("count"),
        f.sum(f.col(number).bitwiseAND(f.lit(LOW_HALF))).alias("low"),
        f.sum(f.shiftrightunsigned(number, 32)).alias("high"),
    ]


def combine_sums(row: Any) -> int:
    """Returns the checksum of a row with the aggregates of `sums`."""
    return add_checksums((row["high"] << 32, row["low"]))


def add_checksums(checksums: Iterable[int]) -> int:
    """Adds checksums (rule 2)."""
    return sum(checksums) % MODULUS
