"""Rows that come from Spark to Python, all of them.

RULES    1. Where the JVM is killed while it hands out rows, PySpark takes the stream's end for that of the rows: some of them,
            or none, and no error. So what was collected counts once the JVM has answered something after it.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Row, SparkSession


def collected(records: DataFrame) -> list[Row]:
    """Every row, or an error (rule 1)."""
    rows = records.collect()
    see_that_it_lives(records.sparkSession)
    return rows


def see_that_it_lives(spark: SparkSession) -> None:
    """Have the JVM answer something; an error when it is no more."""
    spark.sparkContext._jsc.version()  # noqa: SLF001 - a question that costs nothing, and nothing is remembered of it
