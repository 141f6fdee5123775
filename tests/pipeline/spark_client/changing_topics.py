"""Topics that change while a query runs: records sent, topics created, trimmed or deleted during a batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

from tests.pipeline.spark_client.data_loss import POLL, STRICTNESS
from tests.pipeline.spark_client.rig import OFTEN, Answer, Rig, failure_of, numbered, rows, scenario
from tests.pipeline.spark_client.streaming import all_rows
from tests.support.waiting import until


@scenario
def a_topic_that_grows_under_available_now(rig: Rig) -> Answer:
    """AvailableNow ends at the topic's end at its start, although each trigger sends more; the next run continues."""
    topic = rig.topic(2, numbered(10, 2))
    found = []
    for run in (1, 2):

        def more(_: DataFrame, number: int, run: int = run) -> None:
            rig.send(topic, numbered(2, 2, 100 * run + 10 * number))

        found.append(rig.read_available(rig.stream(topic, maxOffsetsPerTrigger="4"), on_batch=more))
    return found


@scenario
def new_partitions_under_available_now(rig: Rig) -> Answer:
    """New partitions and a new topic of the pattern wait for the next run of AvailableNow."""
    topic = rig.topic(1, numbered(8))

    def grow(_: DataFrame, number: int) -> None:
        if number == 0:
            rig.grow(topic, 3)
            rig.send(topic, numbered(6, 3, 100))
            rig.topic(1, numbered(3))

    frame = rig.stream(None, subscribePattern=f"{rig.name}-.*", maxOffsetsPerTrigger="5")
    return [all_rows(rig.read_available(frame, on_batch=grow)) for _ in range(2)]


def under(rig: Rig, change: Callable[[str], None], wanted: int) -> Answer:
    """Changes a topic during a stream's first batch; returns its rows or failure, with failOnDataLoss true and false."""

    def is_over(query: Any, batches: list[Any]) -> bool:
        return not query.isActive or len(all_rows(batches)) >= wanted

    found = []
    for strict in STRICTNESS:
        topic = rig.topic(1, numbered(10))

        def once(_: DataFrame, number: int, topic: str = topic) -> None:
            if number == 0:
                change(topic)

        frame = rig.stream(topic, failOnDataLoss=strict, maxOffsetsPerTrigger="5", **POLL)
        query, batches = rig.query(frame, strict, once, **OFTEN)
        try:
            until(partial(is_over, query, batches), "the rows arrived", 120)
            is_active = query.isActive
        finally:
            query.stop()
        found.append((is_active, all_rows(batches), None if is_active else failure_of(query.awaitTermination, 60)))
    return found


@scenario
def records_deleted_under_a_stream(rig: Rig) -> Answer:
    """The next records are deleted while a stream runs."""

    def trim(topic: str) -> None:
        rig.send(topic, numbered(10, 1, 10))
        rig.trim(topic, {0: 8})

    return under(rig, trim, 17)


@scenario
def a_topic_recreated_under_a_stream(rig: Rig) -> Answer:
    """Deleted, created again and filled with more records while a stream runs."""
    return under(rig, lambda topic: rig.recreate(topic, 1, numbered(15, 1, 100)), 15)


@scenario
def a_failed_batch(rig: Rig) -> Answer:
    """foreachBatch fails after writing: the next run gets the same batch with the same number, although more arrived."""
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
        failure_of(rig.read_available, frame, on_batch=take)
        rig.send(source, numbered(4, 2, 100))
    return taken, rig.values(target)


@scenario
def a_topic_that_is_trimmed_and_grows_between_runs(rig: Rig) -> Answer:
    """Headers, groups and small partitions at once: read_committed, minPartitions, maxRecordsPerPartition, a rack, a prefix."""
    topic = rig.topic(3, numbered(60, 3, headers=[("h", None)]))
    options_of_run = {
        "kafka.isolation.level": "read_committed",
        "kafka.client.rack": "r",
        "kafka.session.timeout.ms": "10000",
        "groupIdPrefix": f"{rig.name}-{rig.bootstrap.rpartition(':')[2]}",
        "minPartitions": "7",
        "maxRecordsPerPartition": "4",
        "includeHeaders": "true",
        "failOnDataLoss": "false",
    }
    found = [all_rows(rig.read_available(rig.stream(topic, **options_of_run)))]
    rig.trim(topic, {0: 20, 1: 5})
    rig.grow(topic, 4)
    rig.send(topic, numbered(16, 4, 100))
    return [*found, all_rows(rig.read_available(rig.stream(topic, **options_of_run)))]
