"""Batches: topics, partitions, columns, and client settings."""

from __future__ import annotations

import hashlib

from tests.pipeline.spark_client.rig import Answer, Rig, failure_of, numbered, offsets, scenario
from tests.support.waiting import until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@scenario
def columns_and_kinds(rig: Rig) -> Answer:
    """Names and types, with and without headers; timestamps to the millisecond."""
    topic = rig.topic(1, numbered(3))
    plain, whole = rig.read(topic), rig.read(topic, includeHeaders="true")
    moments = [(row.timestamp.isoformat(), row.timestampType) for row in plain.orderBy("offset").collect()]
    return plain.dtypes, whole.dtypes, moments


@scenario
def headers_and_nulls(rig: Rig) -> Answer:
    """No headers are null; names may repeat, values may be null or empty; keys and values may be null or empty."""
    topic = rig.topic()
    headers = (None, [("a", b"1"), ("a", b"2"), ("b", None), ("", b"")], [("c", b"")])
    records = [
        {"key": key, "value": value, "headers": some, "partition": 0}
        for some in headers
        for key, value in ((None, b"v"), (b"k", None), (b"", b""), (None, None))
    ]
    rig.send(topic, records)
    return rig.rows(topic, includeHeaders="true")


@scenario
def partitions_of_a_batch(rig: Rig) -> Answer:
    """minPartitions splits large partitions; each record is still read once."""
    topic = rig.topic(3, [*numbered(30, 3), *numbered(100, 1)])
    found = []
    for parts in (1, 3, 4, 10, 500):
        frame = rig.read(topic, minPartitions=str(parts))
        found.append((frame.rdd.getNumPartitions(), offsets(frame)))
    return found


@scenario
def max_records_of_a_partition(rig: Rig) -> Answer:
    """maxRecordsPerPartition, alone and with minPartitions."""
    topic = rig.topic(2, numbered(50, 2))
    cases = ({"maxRecordsPerPartition": "7"}, {"maxRecordsPerPartition": "7", "minPartitions": "20"})
    return [(rig.read(topic, **one).rdd.getNumPartitions(), rig.offsets(topic, **one)) for one in cases]


@scenario
def topics_by_name_pattern_and_assignment(rig: Rig) -> Answer:
    """subscribe with two topics, subscribePattern, assign with some partitions."""
    one, two = rig.topic(2, numbered(6, 2)), rig.topic(3, numbered(9, 3))
    return [
        rig.rows(f"{one},{two}"),
        rig.rows(None, subscribePattern=f"{rig.name}-.*"),
        rig.rows(None, subscribePattern=f"{rig.name}-[1-9]"),
        rig.rows(None, assign={one: [1], two: [0, 2]}),
        rig.rows(None, assign={two: [2]}, startingOffsets={two: {"2": 1}}),
    ]


@scenario
def missing_topics(rig: Rig) -> Answer:
    """By name, by a pattern without a match, by a missing partition."""
    topic = rig.topic(1, numbered(3))
    cases = (
        {"subscribe": f"{rig.name}-none"},
        {"subscribe": f"{topic},{rig.name}-none"},
        {"subscribePattern": f"{rig.name}-none.*"},
        {"assign": {topic: [0, 5]}},
        {"assign": {f"{rig.name}-none": [0]}},
    )
    return [failure_of(rig.offsets, None, **one) for one in cases]


@scenario
def topics_without_records(rig: Rig) -> Answer:
    """An empty topic, one with empty partitions, one trimmed to its end."""
    empty, some, trimmed = rig.topic(2), rig.topic(5, numbered(4, 2)), rig.topic(1, numbered(5))
    rig.trim(trimmed, {0: 5})
    return [rig.rows(topic) for topic in (empty, some, trimmed)]


@scenario
def every_codec(rig: Rig) -> Answer:
    """Batches of every codec in one partition."""
    topic = rig.topic()
    for number, codec in enumerate(CODECS):
        rig.send(topic, numbered(20, 1, number * 20), compression_type=codec)
    return rig.rows(topic)


@scenario
def a_record_larger_than_a_fetch(rig: Rig) -> Answer:
    """The first batch is returned completely, whatever the limits."""
    topic = rig.topic()
    rig.send(topic, [{"value": bytes([number]) * 900_000, "partition": 0} for number in range(4)])
    limits = {"kafka.max.partition.fetch.bytes": "1000", "kafka.fetch.max.bytes": "1000"}
    found = rig.values(topic, **limits)
    return [hashlib.sha256(value or b"").hexdigest() for value in found]


@scenario
def settings_of_the_consumer(rig: Rig) -> Answer:
    """Names that clients send, and checks that they perform."""
    topic = rig.topic(1, numbered(5))
    options = {
        "kafka.client.id": "me",
        "kafka.client.rack": "rack-1",
        "kafka.check.crcs": "true",
        "kafka.metadata.max.age.ms": "200",
        "kafka.receive.buffer.bytes": "4096",
    }
    return rig.rows(topic, **options)


@scenario
def settings_that_spark_refuses(rig: Rig) -> Answer:
    """Settings that Spark does not accept."""
    topic = rig.topic(1, numbered(1))
    options = ("auto.offset.reset", "key.deserializer", "enable.auto.commit", "interceptor.classes")
    return [failure_of(rig.offsets, topic, **{f"kafka.{name}": "latest"}) for name in options]


@scenario
def groups_of_the_consumers(rig: Rig) -> Answer:
    """groupIdPrefix and kafka.group.id set the group; Spark commits nothing, so no group appears.

    The name must not be the other broker's: Spark keeps consumers by group and partition.
    """
    topic = rig.topic(1, numbered(5))
    name = f"{rig.name}-{rig.bootstrap.rpartition(':')[2]}"
    found = [
        rig.rows(topic, groupIdPrefix=f"{name}-prefix"),
        rig.rows(topic, **{"kafka.group.id": name}),
        rig.read_available(rig.stream(topic, **{"kafka.group.id": name})),
    ]
    groups = rig.admin.list_consumer_groups().result(30).valid
    return found, [group.group_id for group in groups if rig.name in group.group_id]


@scenario
def many_partitions(rig: Rig) -> Answer:
    """Sixty partitions in one batch."""
    return rig.rows(rig.topic(60, numbered(180, 60)))


@scenario
def a_topic_with_itself(rig: Rig) -> Answer:
    """A topic joined with itself and united with itself: several consumers of one partition at once."""
    topic = rig.topic(2, numbered(40, 2))
    left, right = rig.read(topic), rig.read(topic, startingOffsets={topic: {"0": 5, "1": 15}})
    joined = left.join(right, ["partition", "offset"])
    return offsets(joined.select("partition", "offset")), offsets(left.union(right))


@scenario
def a_batch_read_again(rig: Rig) -> Answer:
    """The same query after more records arrived: cached consumers return them."""
    topic = rig.topic(2, numbered(10, 2))
    found = [rig.offsets(topic)]
    for start in (10, 20, 30):
        rig.send(topic, numbered(10, 2, start))
        found.append(rig.offsets(topic))
    return found


@scenario
def a_compacted_topic(rig: Rig) -> Answer:
    """Gaps left by the cleaner, in a batch, in split partitions, and in triggers of a stream."""
    topic = rig.topic(1, cleanup_policy="compact", min_cleanable_dirty_ratio="0.001", segment_ms="1")
    for start in range(0, 40, 10):
        rig.send(topic, numbered(10, 1, start))
    rig.send(topic, [{"key": b"last", "value": b"last", "partition": 0}])
    kept = [*range(35, 40), 40]
    until(lambda: [row[2] for row in rig.rows(topic)] == kept, "all is cleaned", 60, 0.2)
    bounds = {"startingOffsets": {topic: {"0": 3}}, "endingOffsets": {topic: {"0": 37}}}
    return [
        rig.rows(topic),
        rig.offsets(topic, minPartitions="8"),
        rig.offsets(topic, **bounds),
        rig.read_available(rig.stream(topic, maxOffsetsPerTrigger="9")),
    ]


@scenario
def sasl_at_a_plaintext_listener(rig: Rig) -> Answer:
    """SASL at a listener without SASL."""
    topic = rig.topic(1, numbered(1))
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b";'
    options = {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": jaas,
        "kafka.default.api.timeout.ms": "5000",
        "kafka.request.timeout.ms": "4000",
    }
    return failure_of(rig.offsets, topic, **options)
