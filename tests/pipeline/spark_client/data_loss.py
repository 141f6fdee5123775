"""Deleted records and deleted topics, with failOnDataLoss true and false."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.pipeline.spark_client.rig import Answer, Rig, failure_of, numbered, offsets, scenario

POLL = {"kafkaConsumer.pollTimeoutMs": "3000"}
STRICTNESS = ("true", "false")


def after(rig: Rig, change: Callable[[str], None], *, partitions: int = 2) -> Answer:
    """Runs a stream, changes its topic, and runs the stream again, with failOnDataLoss true and false."""
    found = []
    for strict in STRICTNESS:
        topic = rig.topic(partitions, numbered(20, partitions))
        frame = rig.stream(topic, failOnDataLoss=strict, **POLL)
        before = rig.read_available(frame, topic)
        change(topic)
        found.append((before, *(failure_of(rig.read_available, frame, topic) for _ in range(2))))
    return found


@scenario
def a_trimmed_topic_in_a_batch(rig: Rig) -> Answer:
    """A start below the log start; earliest always works."""
    topic = rig.topic(2, numbered(20, 2))
    rig.trim(topic, {0: 4, 1: 10})
    start = {"startingOffsets": {topic: {"0": 1, "1": 2}}}
    strictly = [failure_of(rig.rows, topic, failOnDataLoss=way, **start, **POLL) for way in STRICTNESS]
    # one task reads all parts, because Spark sometimes gives two tasks the same consumer in this case
    parts = rig.read(topic, failOnDataLoss="false", minPartitions="6", **start, **POLL).coalesce(1)
    return strictly, failure_of(offsets, parts), rig.rows(topic)


@scenario
def a_trimmed_topic_in_a_stream(rig: Rig) -> Answer:
    """Records after the checkpoint are deleted, some of them or all, or only records already read."""

    def trim_read_ones(topic: str) -> None:
        rig.trim(topic, {0: 10})
        rig.send(topic, numbered(6, 2, 20))

    def trim_some(topic: str) -> None:
        rig.send(topic, numbered(20, 2, 20))
        rig.trim(topic, {0: 15, 1: 5})

    def trim_all(topic: str) -> None:
        rig.send(topic, numbered(20, 2, 20))
        rig.trim(topic, {0: 20, 1: 20})

    return [after(rig, change) for change in (trim_read_ones, trim_some, trim_all)]


@scenario
def a_recreated_topic(rig: Rig) -> Answer:
    """Shorter, as long, and longer than the deleted topic; with fewer partitions than in the checkpoint."""

    def recreate(count: int, topic: str) -> None:
        rig.recreate(topic, 1, numbered(count, 1, 100))

    return [
        after(rig, partial(recreate, count), partitions=partitions)
        for partitions, count in ((1, 0), (1, 5), (1, 20), (1, 30), (2, 15))
    ]


@scenario
def a_recreated_topic_in_a_batch(rig: Rig) -> Answer:
    """A batch in the same session right after: cached consumers know the old topic."""
    topic = rig.topic(2, numbered(20, 2))
    found = [rig.rows(topic)]
    for number, partitions in enumerate((2, 3)):
        rig.recreate(topic, partitions, numbered(12, partitions, 100 * (number + 1)))
        found.append(rig.rows(topic))
    return found


@scenario
def a_deleted_topic(rig: Rig) -> Answer:
    """Deleted and not created again."""
    return after(rig, rig.delete, partitions=1)


@scenario
def one_deleted_topic_of_two(rig: Rig) -> Answer:
    """A pattern matches one topic less."""
    found = []
    for strict in STRICTNESS:
        names = [f"{rig.name}-{strict}-{number}" for number in range(2)]
        for name in names:
            rig.create(name)
            rig.send(name, numbered(5))
        frame = rig.stream(None, subscribePattern=f"{rig.name}-{strict}-.*", failOnDataLoss=strict, **POLL)
        before = rig.read_available(frame, strict)
        rig.delete(names[0])
        rig.send(names[1], numbered(3, 1, 5))
        found.append((before, failure_of(rig.read_available, frame, strict)))
    return found


@scenario
def more_partitions(rig: Rig) -> Answer:
    """New partitions are read from offset 0; if that is deleted, it counts as data loss."""

    def grow(topic: str) -> None:
        rig.grow(topic, 4)
        rig.send(topic, numbered(20, 4, 20))

    def grow_and_trim(topic: str) -> None:
        grow(topic)
        rig.trim(topic, {2: 2})

    return [after(rig, change) for change in (grow, grow_and_trim)]
