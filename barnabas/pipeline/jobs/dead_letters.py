"""Sends malformed records to a dead-letter topic, each once, with the reason in headers.

RULES    1. A dead letter has the record's key, value, timestamp and headers, followed by headers for reason and origin.
            Of a record with timestamp 0 it is 1 ms, since the sender cannot send 0.
         2. Letters are sent before the round is committed, in transactions that commit each partition's offset: a repeated
            round sends nothing again (`barnabas/pipeline/kafka/sender.py`).
         3. A missing topic is created without retention, since the records' timestamps may be old.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from barnabas.pipeline.brokers import Brokers
from barnabas.pipeline.kafka.sender import SendOptions, send
from barnabas.pipeline.spark.rows import collect_rows

REASON = "dead-letter.reason"
ORIGIN = ("topic", "partition", "offset")


def dead_letters_of(records: DataFrame, topic: str, partitions: int) -> DataFrame:
    """Returns the malformed records as dead letters (rule 1)."""
    extra = [_header(REASON, "error"), *(_header(f"dead-letter.{name}", name) for name in ORIGIN)]
    ms = f.unix_millis("timestamp")
    no_headers = f.array().cast("array<struct<key: string, value: binary>>")
    return records.where("error is not null").select(
        *ORIGIN,
        f.lit(topic).alias("to_topic"),
        (f.col("partition") % partitions).alias("to_partition"),
        "key",
        "value",
        f.concat(f.coalesce("headers", no_headers), f.array(*extra)).alias("headers"),
        f.when(ms == 0, 1).otherwise(ms).alias("ms"),
    )


def send_dead_letters(records: DataFrame, brokers: Brokers, topic: str, group: str, lines: int) -> int:
    """Sends the malformed records; returns the number of their letters in the topic."""
    if not brokers.exists(topic):
        brokers.create_topic(topic, 1, -1, {"retention.ms": "-1"})
    partitions = brokers.find_topics([topic])[topic].partitions
    brokers.check_group_access(group)
    sent = collect_rows(
        send(dead_letters_of(records, topic, partitions), SendOptions(brokers.client_settings, group), lines)
    )
    return sum(row["sent"] + row["skipped"] for row in sent)


def origin_of(letters: DataFrame) -> DataFrame:
    """Returns the origin of letters: topic, partition, offset."""
    kinds = {"topic": "string", "partition": "int", "offset": "bigint"}
    return letters.select(*(_header_text(f"dead-letter.{name}").try_cast(kinds[name]).alias(name) for name in ORIGIN))


def _header_text(name: str) -> Column:
    """The text of the last header of this name: ours follow the record's own."""
    named = f.filter("headers", lambda header: header["key"] == name)
    return f.try_element_at(named, f.lit(-1))["value"].cast("string")


def _header(name: str, column: str) -> Column:
    return f.struct(f.lit(name).alias("key"), f.col(column).cast("string").cast("binary").alias("value"))
