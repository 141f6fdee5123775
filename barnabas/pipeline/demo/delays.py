"""Computes delays by carrier and month from Kafka records: Spark steps from DataFrame to DataFrame.

RULES    1. A step performs no I/O: batch, stream and tests use the same steps.
         2. A value that is not the JSON of a flight fails the job.
         3. Sums are integers (`flights.py`, rule 1).
NOT HERE Sessions (`session.py`), sources and sinks (`spark_jobs.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from barnabas.pipeline.demo.flights import Delay, Delays

FLIGHT_FIELDS = "carrier string, month int, dep_delay int"
"""The fields that Spark parses."""


def parse_flights(records: DataFrame) -> DataFrame:
    """Returns one row per record: partition, offset, timestamp, key and the parsed fields."""
    flight = f.from_json(f.col("value").cast("string"), FLIGHT_FIELDS, {"mode": "FAILFAST"})
    return records.select(
        "partition", "offset", "timestamp", f.col("key").cast("string").alias("key"), flight.alias("flight")
    ).select("partition", "offset", "timestamp", "key", "flight.*")


def delays_by_carrier_and_month(flights: DataFrame) -> DataFrame:
    """Returns flights, departures, minutes of delay and their average, by carrier (the key) and month."""
    return flights.groupBy(f.col("key").alias("carrier"), "month").agg(
        f.count("*").alias("flights"),
        f.count("dep_delay").alias("departures"),
        f.coalesce(f.sum("dep_delay"), f.lit(0)).alias("delay_minutes"),
        f.avg("dep_delay").alias("average_delay"),
    )


def as_delays(rows: Iterable[Any]) -> Delays:
    """Converts rows to figures. Raises ValueError if an average is not the quotient of its sums."""
    delays: Delays = {}
    for row in rows:
        delay = Delay(row["flights"], row["departures"], row["delay_minutes"])
        if row["average_delay"] != delay.average:
            raise ValueError(f"Spark's average of {row['carrier']} in month {row['month']} is not its sum by its count")
        delays[row["carrier"], row["month"]] = delay
    return delays
