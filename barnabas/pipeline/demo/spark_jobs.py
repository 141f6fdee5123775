"""Reads a topic with Spark: as a batch, and as a stream that ends when it has caught up.

RULES    1. Lost data fail a job (`failOnDataLoss`); only committed records are read.
         2. A restarted stream continues from its checkpoint.
         3. A stream runs several triggers, so that its state passes from one to the next.
NOT HERE The computation (`delays.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from barnabas.pipeline.demo.delays import as_delays, delays_by_carrier_and_month, parse_flights
from barnabas.pipeline.demo.flights import Delays

TRIGGERS = 4


class StreamReport(NamedTuple):
    """The result of a stream."""

    delays: Delays
    rows: int
    triggers: int


def kafka_options(bootstrap: str, topic: str) -> dict[str, str]:
    """Returns the options of batch and stream."""
    return {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "failOnDataLoss": "true",
        "kafka.isolation.level": "read_committed",
    }


def read_batch(spark: SparkSession, bootstrap: str, topic: str) -> Delays:
    """Returns the figures of the topic's current records."""
    records = spark.read.format("kafka").options(**kafka_options(bootstrap, topic)).load()
    return as_delays(delays_by_carrier_and_month(parse_flights(records)).collect())


def read_stream(
    spark: SparkSession, bootstrap: str, topic: str, checkpoint: Path, records_expected: int
) -> StreamReport:
    """Returns the figures after the stream has caught up from its checkpoint."""
    latest: dict[str, Delays] = {"delays": {}}

    def keep(result: DataFrame, _batch_id: int) -> None:
        latest["delays"] = as_delays(result.collect())

    options = {**kafka_options(bootstrap, topic), "maxOffsetsPerTrigger": str(records_expected // TRIGGERS + 1)}
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
