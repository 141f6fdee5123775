"""From Kafka's records to delays by carrier and month: the Spark steps, each from DataFrame to DataFrame.

RULES    1. A step neither reads nor writes anything: the same steps serve batch, stream and a test's literal rows.
         2. A value that is not the JSON of a flight stops the job: nothing is counted as null by mistake.
         3. Sums are whole numbers (`flights.py`, rule 1).
NOT HERE Sessions (`session.py`), sources and sinks (`spark_jobs.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from barnabas.pipeline.demo.flights import Delay, Delays

FLIGHT_FIELDS = "carrier string, month int, dep_delay int"
"""What the figures need of a value; Spark skips the rest."""


def parse_flights(records: DataFrame) -> DataFrame:
    """One row per record of the topic: partition, offset, timestamp, key and what was asked of the value."""
    flight = f.from_json(f.col("value").cast("string"), FLIGHT_FIELDS, {"mode": "FAILFAST"})
    return records.select(
        "partition",
        "offset",
        "timestamp",
        f.col("key").cast("string").alias("key"),
        flight.alias("flight"),
    ).select("partition", "offset", "timestamp", "key", "flight.*")


def delays_by_carrier_and_month(flights: DataFrame) -> DataFrame:
    """Flights, departures, minutes of delay and their average, by carrier (the record's key) and month."""
    return flights.groupBy(f.col("key").alias("carrier"), "month").agg(
        f.count("*").alias("flights"),
        f.count("dep_delay").alias("departures"),
        f.coalesce(f.sum("dep_delay"), f.lit(0)).alias("delay_minutes"),
        f.avg("dep_delay").alias("average_delay"),
    )


def as_delays(rows: Iterable[Any]) -> Delays:
    """Collected rows as figures; an average that is not the quotient of its sums is an error."""
    delays: Delays = {}
    for row in rows:
        delay = Delay(row["flights"], row["departures"], row["delay_minutes"])
        if row["average_delay"] != delay.average:
            raise ValueError(f"Spark's average of {row['carrier']} in month {row['month']} is not its sum by its count")
        delays[row["carrier"], row["month"]] = delay
    return delays
