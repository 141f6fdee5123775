"""Complete queries: SQL, foreachBatch, stream joins, state, many tasks, other consumers."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tests.pipeline.spark_client.rig import OFTEN, Answer, Rig, failure_of, numbered, scenario
from tests.pipeline.spark_client.streaming import all_rows, await_rows
from tests.pipeline.topics import MINUTE_MS, START_MS

DEPRECATED = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"


@scenario
def a_view_in_sql(rig: Rig) -> Answer:
    """CREATE TEMPORARY VIEW ... USING kafka, queried and joined in SQL; INSERT INTO another view."""
    source, target = rig.topic(2, numbered(12, 2)), rig.topic(1)
    for name, options in (("source", f"subscribe '{source}'"), ("target", f"subscribe '{target}', topic '{target}'")):
        rig.spark.sql(
            f"CREATE TEMPORARY VIEW {name} USING kafka OPTIONS (kafka.bootstrap.servers '{rig.bootstrap}', {options})"
        )
    counted = rig.spark.sql(
        "SELECT CAST(key AS STRING) AS k, count(*) AS n, max(offset) AS last FROM source GROUP BY k ORDER BY k"
    )
    found = [tuple(row) for row in counted.collect()]
    inserted = failure_of(rig.spark.sql, "INSERT INTO target SELECT key, value FROM source")
    return found, str(inserted) if isinstance(inserted, DataFrame) else inserted, rig.values(target)


@scenario
def two_topics_in_foreach_batch(rig: Rig) -> Answer:
    """Each batch is persisted and written to two topics by the batch sink; a second run continues."""
    source, even, odd = rig.topic(1, numbered(10)), rig.topic(1), rig.topic(1)

    def split(batch: DataFrame, _number: int) -> None:
        batch = batch.select("key", "value", "offset").coalesce(1).persist()
        for name, rest in ((even, 0), (odd, 1)):
            rig.write(batch.where(f.col("offset") % 2 == rest).drop("offset"), name)
        batch.unpersist()

    for start in (10, 20):
        rig.read_available(rig.stream(source, maxOffsetsPerTrigger="4"), on_batch=split)
        rig.send(source, numbered(10, 1, start))
    return rig.rows(even), rig.rows(odd)


@scenario
def two_topics_joined(rig: Rig) -> Answer:
    """Two streams joined by key within an hour, inner and outer, with watermarks, in two runs of one checkpoint."""
    left, right = rig.topic(2, numbered(20, 2)), rig.topic(1, numbered(10, 1, 5))
    found = []
    for kind in ("inner", "leftOuter"):
        joined = []
        for start in (200, 400):
            one = rig.stream(left).withWatermark("timestamp", "10 minutes").alias("one")
            two = rig.stream(right).withWatermark("timestamp", "10 minutes").alias("two")
            near = "one.value = two.value AND two.timestamp BETWEEN one.timestamp - INTERVAL 1 HOUR AND one.timestamp"
            both = one.join(two, f.expr(near), kind).select(
                *("one.topic", "one.partition", "one.offset", "one.value", f.col("two.value").alias("key"))
            )
            joined.append(all_rows(rig.read_available(both, kind)))
            if kind == "inner":
                rig.send(left, numbered(4, 2, start))
                rig.send(right, numbered(4, 1, start))
        found.append(joined)
    return found


@scenario
def duplicates_over_restarts(rig: Rig) -> Answer:
    """dropDuplicates keeps its state while the broker is stopped and killed between runs."""
    topic = rig.topic(1, numbered(10))
    found = []
    for start, end in ((5, rig.node.stop), (10, rig.node.kill), (18, rig.node.stop)):
        frame = rig.stream(topic, maxOffsetsPerTrigger="7").dropDuplicates(["value"])
        found.append(sorted(row[4] for row in all_rows(rig.read_available(frame))))
        rig.send(topic, numbered(10, 1, start))
        end()
        rig.node.start()
    return found


@scenario
def windows_into_a_topic(rig: Rig) -> Answer:
    """Counts by event-time window into the sink, in update and in append mode; late records are dropped."""
    source = rig.topic(2, numbered(60, 2))
    rig.send(source, numbered(2, 2, 600))
    found = []
    for mode in ("update", "append"):
        target = rig.topic(1)
        for _ in range(2):
            stream = rig.stream(source, maxOffsetsPerTrigger="20").withWatermark("timestamp", "20 minutes")
            counts = stream.groupBy(f.window("timestamp", "15 minutes"), "key").count()
            result = counts.select(
                "key", f.to_json(f.struct(f.col("window.start").cast("long"), "count")).alias("value")
            )
            rig.await_end(rig.sink(result, target, mode, mode))
            late = [{"key": b"late", "value": b"", "partition": 0, "timestamp": START_MS}]
            rig.send(source, [*late, *numbered(2, 2, 900)])
        found.append(sorted((row[3], row[4]) for row in rig.rows(target)))
    return found


@scenario
def all_counts_of_every_trigger(rig: Rig) -> Answer:
    """Complete mode: each trigger writes the whole result to the sink."""
    source, target = rig.topic(1, numbered(12)), rig.topic(1)
    counts = rig.stream(source, maxOffsetsPerTrigger="5").groupBy("key").count()
    values = counts.select("key", f.col("count").cast("string").alias("value"))
    rig.await_end(rig.sink(values, target, mode="complete"))
    return sorted((row[3], row[4]) for row in rig.rows(target))


@scenario
def a_rate_into_partitions(rig: Rig) -> Answer:
    """Spark's rate source into the sink, with a partition column: each value once, in order."""
    topic = rig.topic(3)
    rate = (
        rig.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "10").option("numPartitions", "1").load()
    )
    frame = rate.select(f.col("value").cast("string"), (f.col("value") % 3).cast("int").alias("partition"))
    query = rig.sink(frame, topic, trigger=OFTEN)
    try:
        rig.await_values(topic, 60)
    finally:
        query.stop()
    return [(row[1], row[2], row[4]) for row in rig.rows(topic) if row[2] < 20]


@scenario
def rows_choose_topics(rig: Rig) -> Answer:
    """A stream with a topic column, then one whose topic option overrides it."""
    source, one, two = rig.topic(1, numbered(10)), rig.topic(1), rig.topic(1)
    name = f.when(f.col("offset") % 3 == 0, one).otherwise(two)
    frame = rig.stream(source).select("key", "value", name.alias("topic"))
    rig.await_end(rig.sink(frame, None))
    rig.send(source, numbered(6, 1, 10))
    rig.await_end(rig.sink(frame, one))
    return rig.rows(one), rig.rows(two)


@scenario
def many_tasks_at_once(rig: Rig) -> Answer:
    """Forty tasks of one write, and forty partitions of one read."""
    topic = rig.topic(5)
    frame = rig.spark.range(2000).repartition(40).select(f.col("id").cast("string").alias("value"))
    rig.write(frame, topic)
    read = rig.read(topic, minPartitions="40")
    values = Counter(bytes(row.value) for row in read.select("value").collect())
    return len(values), set(values.values())


@scenario
def large_headers(rig: Rig) -> Answer:
    """A thousand headers, and one of half a megabyte, through sink and source."""
    topic = rig.topic(1)
    many, large = [(f"h{n}", b"%d" % n) for n in range(1000)], [("", bytes(500_000))]
    columns = "key binary, value binary, headers array<struct<key: string, value: binary>>"
    frame = rig.rows_to_send(columns, (b"many", b"v", many), (b"large", None, large), (b"both", b"", many + large))
    rig.write(frame.coalesce(1), topic)
    return [
        (key, value, len(headers), sum(len(data) for _, data in headers))
        for *_, key, value, headers in rig.rows(topic, includeHeaders="true")
    ]


@scenario
def reads_create_no_topic(rig: Rig) -> Answer:
    """A batch and a stream of an unknown topic: the error, and whether the topic exists afterwards."""
    found: list[Answer] = []
    for allow in ("true", "false"):
        name = f"{rig.name}-{allow}"
        setting = {"kafka.allow.auto.create.topics": allow}
        found.append(
            (
                failure_of(rig.offsets, name, **setting),
                failure_of(rig.read_available, rig.stream(name, **setting), name),
            )
        )
        found.append(rig.brokers.exists(name))
    return found


@scenario
def other_producer_settings(rig: Rig) -> Answer:
    """Round-robin partitioner, lingering batches, zstd levels, a transactional id."""
    topic = rig.topic(4)
    frame = rig.rows_to_send("key string, value string", *(("k", f"v{n}") for n in range(40))).coalesce(1)
    package = "org.apache.kafka.clients.producer"
    rig.write(
        frame, topic, **{"kafka.partitioner.class": f"{package}.RoundRobinPartitioner", "kafka.batch.size": "100"}
    )
    spread = len({partition for partition, _ in rig.offsets(topic)})
    rig.write(
        frame, topic, **{"kafka.linger.ms": "500", "kafka.batch.size": "1000000", "kafka.buffer.memory": "2000000"}
    )
    rig.write(frame, topic, **{"kafka.compression.type": "zstd", "kafka.compression.zstd.level": "7"})
    refused = failure_of(rig.write, frame, topic, **{"kafka.transactional.id": rig.name})
    return spread, sorted(rig.values(topic)), refused  # type: ignore[type-var]


@scenario
def settings_that_the_sink_refuses(rig: Rig) -> Answer:
    """Serializers and save modes that Spark does not accept, and no servers."""
    topic = rig.topic(1)
    frame = rig.rows_to_send("value string", ("v",))
    refused = [
        failure_of(rig.write, frame, topic, **{f"kafka.{name}": "x"}) for name in ("key.serializer", "value.serializer")
    ]
    refused.append(failure_of(rig.write, frame, topic, **{"kafka.acks": "7"}))
    refused.append(failure_of(rig.write, frame, topic, **{"kafka.bootstrap.servers": ""}))
    for mode in ("overwrite", "ignore"):
        writer = frame.write.format("kafka").mode(mode).option("topic", topic)
        refused.append(failure_of(writer.option("kafka.bootstrap.servers", rig.bootstrap).save))
    return refused, rig.values(topic)


@scenario
def reports_of_a_copy(rig: Rig) -> Answer:
    """From topic to topic: input rows, output rows and the source's offsets and lag, trigger by trigger."""
    source, target = rig.topic(2, numbered(20, 2)), rig.topic(1)
    query = rig.sink(rig.stream(source, maxOffsetsPerTrigger="8").select("key", "value"), target)
    rig.await_end(query)
    names = ("startOffset", "endOffset", "latestOffset", "metrics")
    return [
        (one["numInputRows"], one["sink"]["numOutputRows"], [[part[name] for name in names] for part in one["sources"]])
        for one in (json.loads(report.json) for report in query.recentProgress)
    ]


@scenario
def topics_added_to_a_checkpoint(rig: Rig) -> Answer:
    """A later run of a checkpoint adds a second topic, the next one removes the first."""
    one, two = rig.topic(1, numbered(6)), rig.topic(2, numbered(6, 2))
    found = []
    for names in (one, f"{one},{two}", two):
        found.append(failure_of(rig.read_available, rig.stream(names, failOnDataLoss="false")))
        for name in (one, two):
            rig.send(name, numbered(3, 1, 50))
    return found


@scenario
def options_change_between_runs(rig: Rig) -> Answer:
    """maxOffsetsPerTrigger, minPartitions and headers in a checkpoint's next run."""
    topic = rig.topic(2, numbered(20, 2, headers=[("h", b"1")]))
    found = []
    for start, options in (
        (20, {"maxOffsetsPerTrigger": "6"}),
        (40, {"minPartitions": "7"}),
        (60, {"includeHeaders": "true"}),
    ):
        found.append(rig.read_available(rig.stream(topic, **options)))
        rig.send(topic, numbered(20, 2, start, headers=[("h", b"2")]))
    return found


@scenario
def a_broker_restarts_within_a_batch(rig: Rig) -> Answer:
    """Partitions of a batch are fetched one after the other; the broker is stopped and killed between them."""
    topic = rig.topic(4, numbered(40, 4))
    rows_one_by_one = rig.read(topic).select("partition", "offset").toLocalIterator()
    found = [tuple(next(rows_one_by_one)) for _ in range(10)]
    for end in (rig.node.stop, rig.node.kill):
        end()
        rig.node.start()
        found += [tuple(next(rows_one_by_one)) for _ in range(10)]
    return sorted([*found, *map(tuple, rows_one_by_one)])


@scenario
def deprecated_offset_fetching(rig: Rig) -> Answer:
    """useDeprecatedOffsetFetching: a consumer in a group fetches offsets, by name, pattern, partition and time."""
    rig.spark.conf.set(DEPRECATED, "true")
    topic = rig.topic(3, numbered(30, 3))
    since = {"startingTimestamp": str(START_MS + 12 * MINUTE_MS)}
    batches = [
        rig.offsets(topic),
        rig.offsets(topic, **since),
        rig.offsets(None, subscribePattern=f"{rig.name}-[0-9]", minPartitions="7"),
        rig.offsets(None, assign={topic: [0, 2]}, endingOffsets={topic: {"0": 4, "2": -1}}),
    ]
    first = rig.read_available(rig.stream(topic, maxOffsetsPerTrigger="12"))
    rig.grow(topic, 4)
    rig.send(topic, numbered(8, 4, 30))
    return (
        batches,
        first,
        all_rows(rig.read_available(rig.stream(topic))),
        rig.read_available(rig.stream(topic, **since), "since"),
    )


@scenario
def consumer_group_protocol(rig: Rig) -> Answer:
    """group.protocol=consumer (KIP-848): batches and streams, also with useDeprecatedOffsetFetching."""
    topic = rig.topic(3, numbered(30, 3))
    name = f"{rig.name}-{rig.bootstrap.rpartition(':')[2]}"
    newer = {"kafka.group.protocol": "consumer", "groupIdPrefix": name}
    found: list[Any] = [
        rig.rows(topic, **newer),
        rig.read_available(rig.stream(topic, maxOffsetsPerTrigger="12", **newer)),
    ]
    rig.spark.conf.set(DEPRECATED, "true")
    found.append(failure_of(rig.rows, topic, **newer))
    rig.send(topic, numbered(6, 3, 30))
    found.append(failure_of(rig.read_available, rig.stream(topic, **newer)))
    return found


@scenario
def fetches_that_wait(rig: Rig) -> Answer:
    """fetch.min.bytes above the topic's size, and fetches of a few bytes and polls of one record: streams and batches."""
    topic = rig.topic(2, numbered(10, 2))
    patient = {"kafka.fetch.min.bytes": "10000000", "kafka.fetch.max.wait.ms": "200"}
    tiny = {"kafka.fetch.max.bytes": "1", "kafka.max.partition.fetch.bytes": "1", "kafka.receive.buffer.bytes": "1024"}
    tiny["kafka.max.poll.records"] = "1"
    found = []
    for number, settings in enumerate((patient, tiny)):
        with rig.running(rig.stream(topic, **settings), f"c{number}") as (_, batches):
            await_rows(batches, 10 + 6 * number)
            rig.send(topic, numbered(6, 2, 10 + 6 * number))
            await_rows(batches, 16 + 6 * number)
        found.append(all_rows(batches))
    return found, rig.rows(topic, **tiny), rig.rows(topic, **patient)
