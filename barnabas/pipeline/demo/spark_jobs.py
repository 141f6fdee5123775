"""A topic read by Spark: once as a batch, once as a stream that ends when it has caught up.

RULES    1. Lost data stop a job (`failOnDataLoss`), and only committed records are read.
         2. A stream's place is its checkpoint: started again, it goes on where it ended.
         3. A stream takes several triggers, so that its state is carried from one to the next.
NOT HERE What is computed (`delays.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from barnabas.pipeline.demo.delays import as_delays, delays_by_carrier_and_month, parse_flights
from barnabas.pipeline.demo.flights import Delays

TRIGGERS = 4


class StreamReport(NamedTuple):
    """How a run of the stream went."""

    delays: Delays
    rows: int
    triggers: int


def kafka_options(bootstrap: str, topic: str) -> dict[str, str]:
    """What batch and stream are both told."""
    return {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "failOnDataLoss": "true",
        "kafka.isolation.level": "read_committed",
    }


def read_batch(spark: SparkSession, bootstrap: str, topic: str) -> Delays:
    """The figures of all that is in the topic now."""
    records = spark.read.format("kafka").options(**kafka_options(bootstrap, topic)).load()
    return as_delays(delays_by_carrier_and_month(parse_flights(records)).collect())


def read_stream(
    spark: SparkSession, bootstrap: str, topic: str, checkpoint: Path, records_expected: int
) -> StreamReport:
    """The figures after the stream has caught up, from its checkpoint on; then the query has ended."""
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
