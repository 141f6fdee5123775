"""Start and end offsets and timestamps, of batches and of streams."""

from __future__ import annotations

from tests.pipeline.spark_client.rig import Answer, Rig, failure_of, numbered, scenario
from tests.pipeline.topics import MINUTE_MS, START_MS

LATE_MS = START_MS + 1000 * MINUTE_MS
POLL = {"kafkaConsumer.pollTimeoutMs": "3000"}


@scenario
def offsets_as_json(rig: Rig) -> Answer:
    """Numbers, -2 as a start and -1 as an end; a partition whose start equals its end is empty; a batch cannot start at -1."""
    topic = rig.topic(3, numbered(30, 3))
    starts, ends = {"0": 3, "1": -2, "2": 10}, {"0": 7, "1": -1, "2": 10}
    latest = {topic: {**starts, "2": -1}}
    found = rig.rows(topic, startingOffsets={topic: starts}, endingOffsets={topic: ends})
    return found, failure_of(rig.rows, topic, startingOffsets=latest)


@scenario
def offsets_of_some_partitions_only(rig: Rig) -> Answer:
    """JSON must name all partitions, and only existing ones."""
    topic = rig.topic(2, numbered(10, 2))
    return [
        failure_of(rig.offsets, topic, startingOffsets={topic: named})
        for named in ({"0": 1}, {"0": 1, "1": 1, "2": 1}, {"0": 1, "1": 2})
    ]


@scenario
def offsets_beyond_the_log(rig: Rig) -> Answer:
    """A start above the end, an end above the log end, with and without failOnDataLoss."""
    topic = rig.topic(1, numbered(10))
    cases = (
        {"startingOffsets": {topic: {"0": 50}}},
        {"endingOffsets": {topic: {"0": 50}}},
        {"startingOffsets": {topic: {"0": 8}}, "endingOffsets": {topic: {"0": 4}}},
        {"startingOffsets": {topic: {"0": 10}}},
    )
    return [
        failure_of(rig.offsets, topic, failOnDataLoss=strict, **POLL, **one)
        for one in cases
        for strict in ("true", "false")
    ]


@scenario
def timestamps_of_a_batch(rig: Rig) -> Answer:
    """The first offset with at least this timestamp, also inside a compressed batch and out of order."""
    topic = rig.topic(2)
    minutes = [5, 1, 9, 3, 7, 20, 2, 11, 11, 30]
    records = [
        {"value": b"%d" % at, "partition": number % 2, "timestamp": START_MS + at * MINUTE_MS}
        for number, at in enumerate(minutes)
    ]
    rig.send(topic, records, compression_type="gzip")
    at = {minute: START_MS + minute * MINUTE_MS for minute in (0, 1, 4, 8, 10, 11, 25, 30)}
    return [
        [
            failure_of(rig.offsets, topic, startingTimestamp=str(moment), endingTimestamp=str(LATE_MS)),
            failure_of(rig.offsets, topic, endingTimestamp=str(moment)),
        ]
        for moment in at.values()
    ]


@scenario
def timestamps_by_partition(rig: Rig) -> Answer:
    """startingOffsetsByTimestamp and endingOffsetsByTimestamp; an end without a match is the latest."""
    topic = rig.topic(3, numbered(30, 3))
    starts = {str(number): START_MS + 5 * number * MINUTE_MS for number in range(3)}
    ends = {"0": START_MS + 20 * MINUTE_MS, "1": LATE_MS, "2": START_MS + 11 * MINUTE_MS}
    return rig.rows(topic, startingOffsetsByTimestamp={topic: starts}, endingOffsetsByTimestamp={topic: ends})


@scenario
def timestamps_without_a_match(rig: Rig) -> Answer:
    """No record is late enough: an error, or the latest offset with startingOffsetsByTimestampStrategy."""
    topic = rig.topic(2, numbered(10, 2))
    starts = {"startingOffsetsByTimestamp": {topic: {"0": START_MS, "1": LATE_MS}}}
    everywhere = {"startingTimestamp": str(LATE_MS)}
    return [
        failure_of(rig.offsets, topic, **cases, **strategy)
        for cases in (starts, everywhere)
        for strategy in ({}, *({"startingOffsetsByTimestampStrategy": name} for name in ("error", "latest")))
    ]


@scenario
def timestamps_of_a_stream(rig: Rig) -> Answer:
    """A stream starts at a timestamp, by partition or for all; later records are read from there."""
    topic = rig.topic(2, numbered(20, 2))
    by_partition = {topic: {"0": START_MS + 6 * MINUTE_MS, "1": LATE_MS}}
    streams = [
        rig.stream(topic, startingTimestamp=str(START_MS + 11 * MINUTE_MS)),
        rig.stream(topic, startingOffsetsByTimestamp=by_partition, startingOffsetsByTimestampStrategy="latest"),
    ]
    before = [rig.read_available(frame, f"at-{number}") for number, frame in enumerate(streams)]
    rig.send(topic, numbered(4, 2, 20))
    after = [rig.read_available(frame, f"at-{number}") for number, frame in enumerate(streams)]
    refused = rig.stream(topic, startingOffsetsByTimestamp=by_partition)
    return before, after, failure_of(rig.read_available, refused, "refused")


@scenario
def timestamps_of_the_broker(rig: Rig) -> Answer:
    """A topic with LogAppendTime: the type is 1, the producer's timestamps are replaced, and lookups by time work."""
    topic = rig.topic(1, numbered(5), message_timestamp_type="LogAppendTime")
    frame = rig.read(topic)
    kinds = [(row.timestampType, row.timestamp.year > 2025) for row in frame.collect()]
    return kinds, rig.offsets(topic, startingTimestamp=str(START_MS))


@scenario
def starts_of_a_stream(rig: Rig) -> Answer:
    """Offsets as JSON and `latest`; with a checkpoint the options are ignored."""
    topic = rig.topic(2, numbered(10, 2))
    first = rig.read_available(rig.stream(topic, startingOffsets={topic: {"0": 3, "1": -1}}))
    latest = rig.read_available(rig.stream(topic, startingOffsets="latest"), "latest")
    rig.send(topic, numbered(4, 2, 10))
    second = rig.read_available(rig.stream(topic, startingOffsets="earliest"))
    return first, latest, second, rig.read_available(rig.stream(topic, startingOffsets="earliest"), "latest")
