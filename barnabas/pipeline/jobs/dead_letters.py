"""Malformed records go to a topic of their own, each once, with the reason in headers.

RULES    1. A dead letter has the record's key, value, timestamp and headers, and behind those the reason and its origin.
         2. It is sent before the round is committed, in transactions that remember how far each partition is: a round that is
            done again sends nothing again (`barnabas/pipeline/kafka/sender.py`).
         3. The topic is made where it is missing, and keeps its letters: their timestamps may be old.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from barnabas.pipeline.brokers import Brokers
from barnabas.pipeline.kafka.sender import Sending, send
from barnabas.pipeline.spark.rows import collected

REASON = "dead-letter.reason"
ORIGIN = ("topic", "partition", "offset")


def letters_of(records: DataFrame, topic: str, partitions: int) -> DataFrame:
    """The malformed records as they are to be sent (rule 1)."""
    said = [_header(REASON, "error"), *(_header(f"dead-letter.{name}", name) for name in ORIGIN)]
    nothing = f.array().cast("array<struct<key: string, value: binary>>")
    return records.where("error is not null").select(
        *ORIGIN,
        f.lit(topic).alias("to_topic"),
        (f.col("partition") % partitions).alias("to_partition"),
        "key",
        "value",
        f.concat(f.coalesce("headers", nothing), f.array(*said)).alias("headers"),
        f.unix_millis("timestamp").alias("ms"),
    )


def send_letters(records: DataFrame, brokers: Brokers, topic: str, group: str, lines: int) -> int:
    """Send what is malformed among these records; how many letters are in the topic for it."""
    if not brokers.exists(topic):
        brokers.create_topic(topic, 1, -1, {"retention.ms": "-1"})
    partitions = brokers.find_topics([topic])[topic].partitions
    sent = collected(send(letters_of(records, topic, partitions), Sending(brokers.client_settings, group), lines))
    return sum(row["sent"] + row["skipped"] for row in sent)


def origin_of(letters: DataFrame) -> DataFrame:
    """Which records letters were sent for: topic, partition, offset."""
    kinds = {"topic": "string", "partition": "int", "offset": "bigint"}
    return letters.select(*(_said(f"dead-letter.{name}").try_cast(kinds[name]).alias(name) for name in ORIGIN))


def _said(name: str) -> Column:
    """A header's text; ours stand behind the record's own."""
    named = f.filter("headers", lambda header: header["key"] == name)
    return f.try_element_at(named, f.lit(-1))["value"].cast("string")


def _header(name: str, column: str) -> Column:
    return f.struct(f.lit(name).alias("key"), f.col(column).cast("string").cast("binary").alias("value"))
