"""Reads a topic with Spark and computes delays by carrier and month: as a batch, and as a stream that catches up.

RULES    1. Lost data fail a job (`failOnDataLoss`); only committed records are read.
         2. A value that is not the JSON of a flight fails the job. Sums are integers (`flights.py`, rule 1).
         3. A restarted stream continues from its checkpoint.
         4. A stream runs several triggers, so that its state passes from one to the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from barnabas.pipeline.demo.flights import Delay, Delays

TRIGGERS = 4
NO_SETTINGS: Mapping[str, str] = {}
FLIGHT_FIELDS = "carrier string, month int, dep_delay int"
"""The fields that Spark parses."""


class StreamReport(NamedTuple):
    """The result of a stream."""

    delays: Delays
    rows: int
    triggers: int


def kafka_options(bootstrap: str, topic: str, client: Mapping[str, str]) -> dict[str, str]:
    """Returns the options of batch and stream; `client` are settings of Java's clients."""
    return {
        **{f"kafka.{name}": value for name, value in client.items()},
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "failOnDataLoss": "true",
        "kafka.isolation.level": "read_committed",
    }


def read_batch(spark: SparkSession, bootstrap: str, topic: str, client: Mapping[str, str] = NO_SETTINGS) -> Delays:
    """Returns the figures of the topic's current records."""
    records = spark.read.format("kafka").options(**kafka_options(bootstrap, topic, client)).load()
    return as_delays(delays_by_carrier_and_month(parse_flights(records)).collect())


def read_stream(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    checkpoint: Path,
    records_expected: int,
    client: Mapping[str, str] = NO_SETTINGS,
) -> StreamReport:
    """Returns the figures after the stream has caught up from its checkpoint."""
    latest: dict[str, Delays] = {"delays": {}}

    def keep(result: DataFrame, _batch_id: int) -> None:
        latest["delays"] = as_delays(result.collect())

    options = {**kafka_options(bootstrap, topic, client), "maxOffsetsPerTrigger": str(records_expected // TRIGGERS + 1)}
    records = spark.readStream.format("kafka").options(**options).load()
    query = (
        delays_by_carrier_and_month(parse_flights(records))
        .writeStream.outputMode("complete")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .foreachBatch(keep)
        .start()
    )
    query.awaitTermination()
    reports: list[dict[str, Any]] = [progress for progress in query.recentProgress if progress["numInputRows"]]
    return StreamReport(latest["delays"], sum(report["numInputRows"] for report in reports), len(reports))


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
