"""Transactions: isolation levels, and offsets without records."""

from __future__ import annotations

from confluent_kafka import Producer

from tests.pipeline.spark_client.rig import Answer, Rig, failure_of, numbered, scenario
from tests.pipeline.topics import begin_transaction, send_transaction, transactional

LEVELS = ("read_committed", "read_uncommitted")


def level(name: str) -> dict[str, str]:
    return {"kafka.isolation.level": name}


def mixed(rig: Rig) -> tuple[str, Producer]:
    """Committed, aborted and plain records in two partitions, and an open transaction."""
    topic = rig.topic(2, numbered(4, 2))
    producer = transactional(rig.bootstrap, topic)
    for number, is_kept in enumerate((True, False, False, True, False)):
        send_transaction(producer, topic, numbered(6, 2, 10 * (number + 1)), commit=is_kept)
    rig.send(topic, numbered(2, 2, 100))
    begin_transaction(producer, topic, numbered(3, 2, 200))
    rig.send(topic, numbered(2, 2, 300))
    return topic, producer


@scenario
def isolation_levels(rig: Rig) -> Answer:
    """read_committed ends at an open transaction; read_uncommitted, the default, returns all records."""
    topic, producer = mixed(rig)
    found = [rig.rows(topic), *(rig.rows(topic, **level(name)) for name in LEVELS)]
    producer.commit_transaction()
    rig.await_markers(topic)
    return [*found, *(rig.rows(topic, **level(name)) for name in LEVELS)]


@scenario
def bounds_inside_transactions(rig: Rig) -> Answer:
    """Starts and ends on markers and inside aborted transactions."""
    topic = rig.topic(1)
    producer = transactional(rig.bootstrap, topic)
    for number, is_kept in enumerate((True, False, True)):
        send_transaction(producer, topic, numbered(3, 1, 10 * number), commit=is_kept)
    rig.await_markers(topic)
    spans = [(start, end) for start in (0, 2, 3, 5, 7, 8, 11, 12) for end in (4, 6, 8, 11, 12) if start <= end]
    found = []
    for start, end in spans:
        bounds = {"startingOffsets": {topic: {"0": start}}, "endingOffsets": {topic: {"0": end}}}
        found.append(failure_of(rig.offsets, topic, **bounds, **level(LEVELS[0])))
    return found


@scenario
def only_aborted_records(rig: Rig) -> Answer:
    """A topic without committed records, and one with markers only."""
    aborted, marked = rig.topic(1), rig.topic(1)
    for topic in (aborted, marked):
        producer = transactional(rig.bootstrap, topic)
        for number in range(3):
            send_transaction(producer, topic, numbered(5, 1, number * 5), commit=topic == marked)
        rig.await_markers(topic)
    rig.trim(marked, {0: 17})
    return [
        (rig.rows(topic, **level(name)), rig.read_available(rig.stream(topic, **level(name)), f"{name}-{topic}"))
        for topic in (aborted, marked)
        for name in LEVELS
    ]


@scenario
def partitions_without_records(rig: Rig) -> Answer:
    """minPartitions splits at offsets without records."""
    topic, producer = mixed(rig)
    producer.abort_transaction()
    rig.await_markers(topic)
    return [rig.offsets(topic, minPartitions=str(wanted), **level(LEVELS[0])) for wanted in (2, 5, 11, 40)]


@scenario
def triggers_over_transactions(rig: Rig) -> Answer:
    """maxOffsetsPerTrigger makes triggers with only aborted records and markers."""
    topic, producer = mixed(rig)
    producer.abort_transaction()
    rig.await_markers(topic)
    return [
        rig.read_available(rig.stream(topic, maxOffsetsPerTrigger=most, **level(name)), f"{name}-{most}")
        for name in LEVELS
        for most in ("3", "11")
    ]


@scenario
def a_stream_waits_for_an_open_transaction(rig: Rig) -> Answer:
    """It ends before the transaction, then continues with committed records or after aborted ones."""
    topic = rig.topic(1, numbered(3))
    producer = transactional(rig.bootstrap, topic)
    frame = rig.stream(topic, **level(LEVELS[0]))
    found = []
    for number, is_kept in enumerate((True, False, True)):
        begin_transaction(producer, topic, numbered(3, 1, 10 * (number + 1)))
        rig.send(topic, numbered(2, 1, 100 * (number + 1)))
        found.append(rig.read_available(frame))
        (producer.commit_transaction if is_kept else producer.abort_transaction)()
        rig.await_markers(topic)
        found.append(rig.read_available(frame))
    return found


@scenario
def aborted_transactions_over_segments(rig: Rig) -> Answer:
    """Transactions of two producers, interleaved over several segments."""
    topic = rig.topic(1, segment_bytes=str(1 << 20))
    producers = [transactional(rig.bootstrap, f"{topic}-{number}") for number in range(2)]
    filler = bytes(10_000)
    for turn in range(4):
        for producer in producers:
            producer.begin_transaction()
        for number in range(60):
            producers[number % 2].produce(topic, value=b"%d-%d" % (turn, number) + filler, partition=0)
            if number % 10 == 9:
                for producer in producers:
                    producer.flush(30)
        producers[0].commit_transaction()
        producers[1].abort_transaction()
    rig.await_markers(topic)
    return [len(rig.offsets(topic, **level(name))) for name in LEVELS], [
        len(batch) for batch in rig.read_available(rig.stream(topic, maxOffsetsPerTrigger="50", **level(LEVELS[0])))
    ]
