"""Collects rows in the driver.

RULES    1. If the JVM is killed while it sends rows, PySpark takes the end of the stream for the end of the rows and raises no
            error. Collected rows are valid only if the JVM answers a later call.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Row, SparkSession


def collect_rows(records: DataFrame) -> list[Row]:
    """Returns every row, or raises (rule 1)."""
    rows = records.collect()
    check_jvm_alive(records.sparkSession)
    return rows


def check_jvm_alive(spark: SparkSession) -> None:
    """Raises if the JVM does not answer."""
    spark.sparkContext._jsc.version()  # noqa: SLF001 - a cheap call without side effects
