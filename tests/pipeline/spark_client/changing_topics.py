"""Topics that change while a query is at work: what is sent, made, trimmed or deleted while a batch is being taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

from tests.pipeline.spark_client.data_loss import POLL, WAYS
from tests.pipeline.spark_client.rig import Answer, Rig, failure_of, numbered, rows, scenario
from tests.pipeline.spark_client.streaming import flat
from tests.support.waiting import until

Change = Callable[[int], None]


def taking(rig: Rig, frame: DataFrame, change: Change, **trigger: Any) -> tuple[Any, list[Any]]:
    """A query that has something happen with each batch that it takes, and the batches."""
    batches: list[Any] = []

    def take(batch: DataFrame, number: int) -> None:
        batches.append(rows(batch))
        change(number)

    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(rig.folder / "c"))
    return writer.trigger(**trigger).start(), batches


@scenario
def a_topic_that_grows_under_available_now(rig: Rig) -> Answer:
    """AvailableNow ends where the topic ended when it began, though more comes with each trigger; the next run goes on."""
    topic = rig.topic(2, numbered(10, 2))
    found = []
    for run in (1, 2):

        def more(number: int, run: int = run) -> None:
            rig.send(topic, numbered(2, 2, 100 * run + 10 * number))

        query, batches = taking(rig, rig.stream(topic, maxOffsetsPerTrigger="4"), more, availableNow=True)
        rig.ended(query)
        found.append(batches)
    return found


@scenario
def partitions_that_appear_under_available_now(rig: Rig) -> Answer:
    """A topic grows, and another one of the pattern is made, under AvailableNow: both wait for the next run."""
    topic = rig.topic(1, numbered(8))

    def grow(number: int) -> None:
        if number == 0:
            rig.grow(topic, 3)
            rig.send(topic, numbered(6, 3, 100))
            rig.topic(1, numbered(3))

    frame = rig.stream(None, subscribePattern=f"{rig.name}-.*", maxOffsetsPerTrigger="5")
    found = []
    for _ in range(2):
        query, batches = taking(rig, frame, grow, availableNow=True)
        rig.ended(query)
        found.append(flat(batches))
    return found


def under(rig: Rig, change: Callable[[str], None], wanted: int) -> Answer:
    """What a stream gets, or how it ends, that goes on when its topic has changed within its first batch; for both ways."""
    found = []
    for strict in WAYS:
        topic = rig.topic(1, numbered(10))
        alone = Rig(rig.spark, rig.node, rig.folder / strict, rig.name)

        def once(number: int, topic: str = topic) -> None:
            if number == 0:
                change(topic)

        frame = rig.stream(topic, failOnDataLoss=strict, maxOffsetsPerTrigger="5", **POLL)
        query, batches = taking(alone, frame, once, processingTime="100 milliseconds")
        try:
            until(
                lambda query=query, batches=batches: not query.isActive or len(flat(batches)) >= wanted, "it came", 120
            )
            is_active = query.isActive
        finally:
            query.stop()
        found.append((is_active, flat(batches), None if is_active else failure_of(query.awaitTermination, 60)))
    return found


@scenario
def a_trim_under_a_stream(rig: Rig) -> Answer:
    """Records that were to come next are deleted while a stream is at work."""

    def trim(topic: str) -> None:
        rig.send(topic, numbered(10, 1, 10))
        rig.trim(topic, {0: 8})

    return under(rig, trim, 17)


@scenario
def a_topic_made_again_under_a_stream(rig: Rig) -> Answer:
    """Deleted, made again and filled with more than it had while a stream is at work."""

    def again(topic: str) -> None:
        rig.delete(topic)
        rig.create(topic)
        rig.send(topic, numbered(15, 1, 100))

    return under(rig, again, 15)


@scenario
def a_batch_that_failed(rig: Rig) -> Answer:
    """foreachBatch fails after it has written: the next run gets the same batch under the same number, though more came."""
    source, target = rig.topic(2, numbered(12, 2)), rig.topic(1)
    taken: list[Any] = []

    def take(batch: DataFrame, number: int) -> None:
        taken.append((number, rows(batch)))
        if number == 0 or len(taken) > 3:
            rig.write(batch.select("key", "value").coalesce(1), target)
        if len(taken) == 2:
            raise RuntimeError("once")

    for _ in range(2):
        frame = rig.stream(source, maxOffsetsPerTrigger="4", **{"kafka.isolation.level": "read_committed"})
        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(rig.folder / "c"))
        query = writer.trigger(availableNow=True).start()
        failure_of(rig.ended, query)
        rig.send(source, numbered(4, 2, 100))
    return taken, rig.values(target)


@scenario
def a_topic_that_is_trimmed_and_grows_between_runs(rig: Rig) -> Answer:
    """Timestamps, groups and small parts at once: read_committed, minPartitions, most records of a part, a rack, a prefix."""
    topic = rig.topic(3, numbered(60, 3, headers=[("h", None)]))
    said = {
        "kafka.isolation.level": "read_committed",
        "kafka.client.rack": "r",
        "kafka.session.timeout.ms": "10000",
        "groupIdPrefix": f"{rig.name}-{rig.bootstrap.rpartition(':')[2]}",
        "minPartitions": "7",
        "maxRecordsPerPartition": "4",
        "includeHeaders": "true",
        "failOnDataLoss": "false",
    }
    found = [flat(rig.drain(rig.stream(topic, **said)))]
    rig.trim(topic, {0: 20, 1: 5})
    rig.grow(topic, 4)
    rig.send(topic, numbered(16, 4, 100))
    return [*found, flat(rig.drain(rig.stream(topic, **said)))]
