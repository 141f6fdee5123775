"""Streams: how much a trigger takes, when there is one, and what is found on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.pipeline.spark_client.rig import Answer, Rig, numbered, scenario
from tests.support.waiting import until


def flat(batches: list[Any]) -> list[Any]:
    """The records of all batches, in their order by place."""
    return sorted((row for batch in batches for row in batch), key=lambda row: row[:3])


def holds(batches: list[Any], count: int) -> None:
    """Wait until so many records have come."""
    until(lambda: sum(len(batch) for batch in batches) >= count, f"{count} records", 60)


@scenario
def most_offsets_of_a_trigger(rig: Rig) -> Answer:
    """maxOffsetsPerTrigger is dealt by what partitions hold; AvailableNow takes as many triggers as it needs."""
    topic = rig.topic(3, [*numbered(30, 3), *numbered(25, 1, 30), *numbered(5, 2, 60)])
    return [rig.drain(rig.stream(topic, maxOffsetsPerTrigger=most), most) for most in ("1000", "20", "7")]


@scenario
def one_trigger(rig: Rig) -> Answer:
    """trigger(once=True), and the checkpoint after it."""
    topic = rig.topic(2, numbered(20, 2))
    found = []
    for start in (20, 30):
        query, batches = rig.query(rig.stream(topic, maxOffsetsPerTrigger="7"), once=True)
        rig.ended(query)
        found.append(batches)
        rig.send(topic, numbered(10, 2, start))
    return found


@scenario
def a_stream_that_goes_on(rig: Rig) -> Answer:
    """Records that come while it runs, from `latest` on and from the beginning."""
    topic = rig.topic(2, numbered(10, 2))
    with (
        rig.running(rig.stream(topic, startingOffsets="latest"), "latest") as (late, from_latest),
        rig.running(rig.stream(topic), "earliest") as (early, from_earliest),
    ):
        until(lambda: late.lastProgress and early.lastProgress, "both have begun", 60)
        for start in (10, 20, 30):
            rig.send(topic, numbered(10, 2, start))
        holds(from_latest, 30)
        holds(from_earliest, 40)
    return flat(from_latest), flat(from_earliest)


@scenario
def fewest_offsets_of_a_trigger(rig: Rig) -> Answer:
    """minOffsetsPerTrigger waits for enough, or for maxTriggerDelay."""
    topic = rig.topic(1, numbered(12))
    patient = {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "1h"}
    with (
        rig.running(rig.stream(topic, **patient)) as (_, batches),
        rig.running(rig.stream(topic), "eager") as (_, eager),
    ):
        holds(batches, 12)
        rig.send(topic, numbered(5, 1, 12))
        holds(eager, 17)
        rig.send(topic, numbered(5, 1, 17))
        holds(batches, 22)
    hasty = {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "1s"}
    rig.send(topic, numbered(3, 1, 22))
    with rig.running(rig.stream(topic, **hasty)) as (_, late):
        holds(late, 3)
    return batches, late


@scenario
def a_topic_that_appears(rig: Rig) -> Answer:
    """subscribePattern: a topic that is made while the stream runs is read from its beginning."""
    rig.topic(1, numbered(4))
    frame = rig.stream(None, subscribePattern=f"{rig.name}-.*", startingOffsets="latest")
    with rig.running(frame) as (query, batches):
        until(lambda: query.lastProgress, "it has begun", 60)
        for _ in range(2):
            rig.topic(2, numbered(6, 2))
        holds(batches, 12)
    return flat(batches)


@scenario
def partitions_that_appear(rig: Rig) -> Answer:
    """A topic grows while the stream runs, which begins at `latest`: new partitions are read from their beginning."""
    topic = rig.topic(1, numbered(4))
    with rig.running(rig.stream(topic, startingOffsets="latest")) as (query, batches):
        until(lambda: query.lastProgress, "it has begun", 60)
        rig.grow(topic, 3)
        rig.send(topic, numbered(9, 3, 10))
        holds(batches, 9)
    return flat(batches)


@scenario
def headers_in_a_stream(rig: Rig) -> Answer:
    """includeHeaders, from trigger to trigger."""
    topic = rig.topic(2, numbered(6, 2, headers=[("h", b"1"), ("h", None)]))
    rig.send(topic, numbered(6, 2, 6))
    return rig.drain(rig.stream(topic, includeHeaders="true", maxOffsetsPerTrigger="5"))


@scenario
def parts_of_a_stream(rig: Rig) -> Answer:
    """minPartitions and several topics in a stream with small triggers."""
    one, two = rig.topic(1, numbered(40)), rig.topic(2, numbered(10, 2))
    return rig.drain(rig.stream(f"{one},{two}", minPartitions="8", maxOffsetsPerTrigger="15"))


@scenario
def reports_of_a_stream(rig: Rig) -> Answer:
    """Offsets and what is behind, as Spark reports them after each trigger."""
    topic = rig.topic(2, numbered(20, 2))
    query, _ = rig.query(rig.stream(topic, maxOffsetsPerTrigger="8"), availableNow=True)
    rig.ended(query)
    return [
        (
            progress["numInputRows"],
            [
                (source["startOffset"], source["endOffset"], source["latestOffset"], source["metrics"])
                for source in progress["sources"]
            ],
        )
        for progress in (json.loads(one.json) for one in query.recentProgress)
    ]


@scenario
def two_streams_of_one_topic(rig: Rig) -> Answer:
    """United in one query, and joined by key."""
    topic = rig.topic(2, numbered(12, 2))
    left, right = rig.stream(topic), rig.stream(topic)
    united = rig.drain(left.union(right), "united")
    joined = rig.drain(left.join(right.select("partition", "offset"), ["partition", "offset"]), "joined")
    return sorted(flat(united)), flat(joined)


@scenario
def continuous_processing(rig: Rig) -> Answer:
    """trigger(continuous=...): records pass one by one, and a second run goes on where the first was."""
    source, target = rig.topic(2, numbered(20, 2)), rig.topic(2)
    found = []
    for start in (20, 40):
        frame = rig.stream(source).select("key", "value", "partition")
        options = {"kafka.bootstrap.servers": rig.bootstrap, "topic": target}
        writer = frame.writeStream.format("kafka").options(**options)
        query = (
            writer.option("checkpointLocation", str(rig.folder / "c")).trigger(continuous="200 milliseconds").start()
        )
        try:
            rig.send(source, numbered(20, 2, start))
            passed = rig.different(target, start + 20)
            _wait_for_commit(rig.folder / "c", start // 2 + 10)
        finally:
            query.stop()
        found.append((passed, len(rig.offsets(target))))
    return found


def _wait_for_commit(checkpoint: Path, end: int) -> None:
    """Until the checkpoint has an epoch that ends all partitions there; such a query's reports do not say it."""

    def look() -> bool:
        epochs = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")]
        if not epochs:
            return False
        said = (checkpoint / "offsets" / str(max(epochs))).read_text().splitlines()[-1]
        return all(offset == end for offset in next(iter(json.loads(said).values())).values())

    until(look, "the epoch is committed", 60, 0.1)
