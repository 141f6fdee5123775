"""Streams: triggers, their size and time, and new topics and partitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.pipeline.spark_client.rig import Answer, Rig, numbered, scenario
from tests.support.waiting import until


def all_rows(batches: list[Any]) -> list[Any]:
    """The rows of all batches, ordered by topic, partition and offset."""
    return sorted((row for batch in batches for row in batch), key=lambda row: row[:3])


def await_rows(batches: list[Any], count: int) -> None:
    """Waits for this number of rows."""
    until(lambda: sum(len(batch) for batch in batches) >= count, f"{count} records", 60)


@scenario
def max_offsets_of_a_trigger(rig: Rig) -> Answer:
    """maxOffsetsPerTrigger is shared by the size of the partitions; AvailableNow uses several triggers."""
    topic = rig.topic(3, [*numbered(30, 3), *numbered(25, 1, 30), *numbered(5, 2, 60)])
    return [rig.read_available(rig.stream(topic, maxOffsetsPerTrigger=most), most) for most in ("1000", "20", "7")]


@scenario
def one_trigger(rig: Rig) -> Answer:
    """trigger(once=True), and the checkpoint after it."""
    topic = rig.topic(2, numbered(20, 2))
    found = []
    for start in (20, 30):
        query, batches = rig.query(rig.stream(topic, maxOffsetsPerTrigger="7"), once=True)
        rig.await_end(query)
        found.append(batches)
        rig.send(topic, numbered(10, 2, start))
    return found


@scenario
def a_running_stream(rig: Rig) -> Answer:
    """Records that arrive while it runs, from `latest` and from the beginning."""
    topic = rig.topic(2, numbered(10, 2))
    with (
        rig.running(rig.stream(topic, startingOffsets="latest"), "latest") as (late, from_latest),
        rig.running(rig.stream(topic), "earliest") as (early, from_earliest),
    ):
        until(lambda: late.lastProgress and early.lastProgress, "both have begun", 60)
        for start in (10, 20, 30):
            rig.send(topic, numbered(10, 2, start))
        await_rows(from_latest, 30)
        await_rows(from_earliest, 40)
    return all_rows(from_latest), all_rows(from_earliest)


@scenario
def min_offsets_of_a_trigger(rig: Rig) -> Answer:
    """minOffsetsPerTrigger waits for enough offsets, or for maxTriggerDelay."""
    topic = rig.topic(1, numbered(12))
    patient = {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "1h"}
    with (
        rig.running(rig.stream(topic, **patient)) as (_, batches),
        rig.running(rig.stream(topic), "eager") as (_, eager),
    ):
        await_rows(batches, 12)
        rig.send(topic, numbered(5, 1, 12))
        await_rows(eager, 17)
        rig.send(topic, numbered(5, 1, 17))
        await_rows(batches, 22)
    hasty = {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "1s"}
    rig.send(topic, numbered(3, 1, 22))
    with rig.running(rig.stream(topic, **hasty)) as (_, late):
        await_rows(late, 3)
    return batches, late


@scenario
def a_new_topic(rig: Rig) -> Answer:
    """subscribePattern: a topic created while the stream runs is read from its beginning."""
    rig.topic(1, numbered(4))
    frame = rig.stream(None, subscribePattern=f"{rig.name}-.*", startingOffsets="latest")
    with rig.running(frame) as (query, batches):
        until(lambda: query.lastProgress, "it has begun", 60)
        for _ in range(2):
            rig.topic(2, numbered(6, 2))
        await_rows(batches, 12)
    return all_rows(batches)


@scenario
def new_partitions(rig: Rig) -> Answer:
    """Partitions added while a stream from `latest` runs are read from their beginning."""
    topic = rig.topic(1, numbered(4))
    with rig.running(rig.stream(topic, startingOffsets="latest")) as (query, batches):
        until(lambda: query.lastProgress, "it has begun", 60)
        rig.grow(topic, 3)
        rig.send(topic, numbered(9, 3, 10))
        await_rows(batches, 9)
    return all_rows(batches)


@scenario
def partitions_of_a_stream(rig: Rig) -> Answer:
    """minPartitions and several topics in a stream with small triggers."""
    one, two = rig.topic(1, numbered(40)), rig.topic(2, numbered(10, 2))
    return rig.read_available(rig.stream(f"{one},{two}", minPartitions="8", maxOffsetsPerTrigger="15"))


@scenario
def two_streams_of_one_topic(rig: Rig) -> Answer:
    """United in one query, and joined by key."""
    topic = rig.topic(2, numbered(12, 2))
    left, right = rig.stream(topic), rig.stream(topic)
    united = rig.read_available(left.union(right), "united")
    joined = rig.read_available(left.join(right.select("partition", "offset"), ["partition", "offset"]), "joined")
    return sorted(all_rows(united)), all_rows(joined)


@scenario
def continuous_processing(rig: Rig) -> Answer:
    """trigger(continuous=...): records are processed one by one; a second run continues after the first."""
    source, target = rig.topic(2, numbered(20, 2)), rig.topic(2)
    found = []
    for start in (20, 40):
        frame = rig.stream(source).select("key", "value", "partition")
        query = rig.sink(frame, target, trigger={"continuous": "200 milliseconds"})
        try:
            rig.send(source, numbered(20, 2, start))
            passed = rig.await_values(target, start + 20)
            _wait_for_commit(rig.folder / "c", start // 2 + 10)
        finally:
            query.stop()
        found.append((passed, len(rig.offsets(target))))
    return found


def _wait_for_commit(checkpoint: Path, end: int) -> None:
    """Waits until a committed epoch ends at this offset in all partitions; the query's reports do not contain it."""

    def look() -> bool:
        epochs = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")]
        if not epochs:
            return False
        epoch_offsets = (checkpoint / "offsets" / str(max(epochs))).read_text().splitlines()[-1]
        return all(offset == end for offset in next(iter(json.loads(epoch_offsets).values())).values())

    until(look, "the epoch is committed", 60, 0.1)
