"""A number for every record, and sums of them: order-independent, and what makes two sides comparable.

RULES    1. The number covers all that makes a record: topic, partition, offset, timestamp, key, value and headers. A null
            is not an empty value, and one column's bytes are not another's.
         2. Numbers are added modulo 2**64, never xor-ed: a record that is there twice shows.
         3. Sums do not overflow Spark's long: the two halves are added apart, and joined by `joined`.
         4. All of it is Spark's own code: no record goes through Python.
NOT HERE What is compared with what (`jobs/audit/audit.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as f

LOW = 0xFFFFFFFF
WRAP = 1 << 64


def record_hash() -> Column:
    """The number of a record of the Kafka source's columns (rule 1)."""
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
    """The aggregates whose results `joined` takes; `number` is the column of the records' numbers."""
    return [
        f.count("*").alias("count"),
        f.sum(f.col(number).bitwiseAND(f.lit(LOW))).alias("low"),
        f.sum(f.shiftrightunsigned(number, 32)).alias("high"),
    ]


def joined(row: Any) -> int:
    """The sum of a row that `sums` made."""
    return add_up((row["high"] << 32, row["low"]))


def add_up(checksums: Iterable[int]) -> int:
    """The checksum of several parts together (rule 2)."""
    return sum(checksums) % WRAP
