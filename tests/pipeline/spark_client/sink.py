"""Spark's Kafka sink: columns, options, rejected rows and their errors."""

from __future__ import annotations

from typing import Any

from pyspark.sql import functions as f

from tests.pipeline.spark_client.batches import CODECS
from tests.pipeline.spark_client.rig import Answer, Rig, failure_of, numbered, scenario

HASTY = {"kafka.max.block.ms": "3000", "kafka.delivery.timeout.ms": "4000", "kafka.request.timeout.ms": "2000"}
HEADERS = "array<struct<key: string, value: binary>>"


def read_back(rig: Rig, topic: str) -> Answer:
    return rig.rows(topic, includeHeaders="true")


@scenario
def columns_of_the_sink(rig: Rig) -> Answer:
    """key, value, headers, partition and topic; nulls where allowed."""
    one, two = rig.topic(3), rig.topic(2)
    columns = f"topic string, partition int, key binary, value binary, headers {HEADERS}"
    frame = rig.rows_to_send(
        columns,
        (one, 2, b"k", b"v", [("a", b"1"), ("a", None)]),
        (one, 1, None, b"no key", None),
        (two, 0, b"no value", None, []),
        (two, 1, b"", b"", [("", b"")]),
    )
    rig.write(frame.coalesce(1))
    return read_back(rig, one), read_back(rig, two)


@scenario
def strings_in_the_sink(rig: Rig) -> Answer:
    """Keys and values may be strings; the option `topic` overrides the column."""
    topic, other = rig.topic(1), rig.topic(1)
    frame = rig.rows_to_send("topic string, key string, value string", (other, "k", "v"), (other, None, "grüße"))
    rig.write(frame.coalesce(1), topic)
    return read_back(rig, topic), read_back(rig, other)


@scenario
def keys_choose_partitions(rig: Rig) -> Answer:
    """Without a partition column the client's partitioner uses the key's hash."""
    topic = rig.topic(5)
    rig.write(rig.rows_to_send("key string, value string", *((f"k{n}", f"v{n}") for n in range(40))).coalesce(1), topic)
    return read_back(rig, topic)


@scenario
def rows_that_the_sink_refuses(rig: Rig) -> Answer:
    """No value column, no topic, a null topic, wrong types."""
    topic = rig.topic(1)
    tries: list[tuple[Any, str | None]] = [
        (rig.rows_to_send("key string", ("k",)), topic),
        (rig.rows_to_send("value string", ("v",)), None),
        (rig.rows_to_send("topic string, value string", (None, "v")), None),
        (rig.rows_to_send("value int", (1,)), topic),
        (rig.rows_to_send("value string, headers string", ("v", "h")), topic),
        (rig.rows_to_send("value string, partition string", ("v", "0")), topic),
    ]
    return [failure_of(rig.write, frame, name) for frame, name in tries], rig.offsets(topic)


@scenario
def a_topic_created_by_the_sink(rig: Rig) -> Answer:
    """The broker creates an unknown topic, unless its name is invalid."""
    frame = rig.rows_to_send("value string", ("v",))
    made, impossible = f"{rig.name}-made", f"{rig.name} impossible"
    rig.write(frame, made)
    found = rig.values(made), rig.brokers.find_topics([made])[made].partitions
    return found, failure_of(rig.write, frame, impossible, **HASTY)


@scenario
def records_that_are_too_large(rig: Rig) -> Answer:
    """For the client, for the broker, for the topic; smaller records are written."""
    topic, small = rig.topic(1), rig.topic(1, max_message_bytes="1000")
    larger = {"kafka.max.request.size": "5000000"}
    tries: tuple[tuple[str, int, dict[str, str]], ...] = (
        (topic, 1_100_000, {}), (topic, 3_000_000, larger), (small, 2_000, {}),
    )  # fmt: skip
    failures = [
        failure_of(rig.write, rig.rows_to_send("value string", ("x" * size,)), name, **options)
        for name, size, options in tries
    ]
    rig.write(rig.rows_to_send("value string", ("x" * 1_000_000,)), topic)
    rig.write(rig.rows_to_send("value string", ("x" * 900,)), small)
    return failures, [len(value or b"") for name in (topic, small) for value in rig.values(name)]


@scenario
def missing_partitions(rig: Rig) -> Answer:
    """A partition above the topic's, and a negative one."""
    topic = rig.topic(2)
    frames = [rig.rows_to_send("value string, partition int", ("v", number)) for number in (7, -1)]
    return [failure_of(rig.write, frame, topic, **HASTY) for frame in frames], rig.offsets(topic)


@scenario
def records_without_keys_for_a_compacted_topic(rig: Rig) -> Answer:
    """The broker rejects them."""
    topic = rig.topic(1, cleanup_policy="compact")
    refused = failure_of(rig.write, rig.rows_to_send("value string", ("v",)), topic)
    rig.write(rig.rows_to_send("key string, value string", ("k", "v")), topic)
    return refused, read_back(rig, topic)


@scenario
def too_few_replicas(rig: Rig) -> Answer:
    """min.insync.replicas is not met: acks=all is rejected, acks=1 is not."""
    topic = rig.topic(1, min_insync_replicas="2")
    frame = rig.rows_to_send("value string", ("v",))
    once = {"kafka.enable.idempotence": "false", "kafka.retries": "0"}
    refused = failure_of(rig.write, frame, topic, **once)
    rig.write(frame, topic, **{"kafka.acks": "1", **once})
    return refused, rig.values(topic)


@scenario
def settings_of_the_producer(rig: Rig) -> Answer:
    """acks, codecs, batches and idempotence."""
    topic = rig.topic(1)
    frame = rig.rows_to_send("key string, value string", *((f"k{n}", f"v{n}") for n in range(20))).coalesce(1)
    for codec in CODECS:
        rig.write(frame, topic, **{"kafka.compression.type": codec})
    for acks in ("0", "1", "all"):
        rig.write(frame, topic, **{"kafka.acks": acks, "kafka.enable.idempotence": "false"})
    rig.write(frame, topic, **{"kafka.batch.size": "1", "kafka.linger.ms": "0"})
    return read_back(rig, topic)


@scenario
def topics_with_codec_and_log_append_time(rig: Rig) -> Answer:
    """compression.type of the topic, and LogAppendTime."""
    topic = rig.topic(1, compression_type="zstd", message_timestamp_type="LogAppendTime")
    frame = rig.rows_to_send("value string", *((f"v{n}",) for n in range(20))).coalesce(1)
    for codec in CODECS:
        rig.write(frame, topic, **{"kafka.compression.type": codec})
    return rig.values(topic), [row.timestampType for row in rig.read(topic).collect()]


@scenario
def from_topic_to_topic(rig: Rig) -> Answer:
    """A stream from source to sink over several triggers, with headers, in two runs of one checkpoint."""
    source, target = rig.topic(2, numbered(10, 2, headers=[("h", b"1"), ("h", None)])), rig.topic(2)
    found = []
    for start in (10, 20):
        frame = rig.stream(source, includeHeaders="true", maxOffsetsPerTrigger="4")
        rig.await_end(rig.sink(frame.select("key", "value", "headers", "partition"), target))
        found.append(read_back(rig, target))
        rig.send(source, numbered(10, 2, start))
    return found


@scenario
def a_stream_that_the_sink_refuses(rig: Rig) -> Answer:
    """A record that is too large fails the query; the checkpoint stays before it."""
    source = rig.topic(1, numbered(5))
    target = rig.topic(1, max_message_bytes="300")
    found = []
    for size in (500, 50):
        frame = rig.stream(source).select(f.lit("x" * size).alias("value"))
        options: dict[str, Any] = {"kafka.batch.size": "1"}
        found.append(failure_of(rig.await_end, rig.sink(frame, target, **options)))
        found.append([len(value or b"") for value in rig.values(target)])
    return found
