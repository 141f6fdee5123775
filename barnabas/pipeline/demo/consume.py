"""Reads a topic with plain consumers: a group of three, and one that seeks by time.

RULES    1. A group starts reading when every member has its partitions, so that a rebalance causes no duplicates.
         2. A group is done when every offset of every partition was read; duplicates are counted separately.
         3. A member leaves after all members with records have committed, since leaving starts a rebalance.
         4. A look-up by time must return the first offset whose timestamp is at or after the requested time.
NOT HERE Spark, which uses no group (`spark_jobs.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple
from zlib import crc32

from confluent_kafka import Consumer

from barnabas.pipeline.brokers import Brokers, Span
from barnabas.pipeline.demo.produce import Produced
from barnabas.pipeline.errors import JobError

LIMIT_S = 180.0
POLL_S = 0.05
MAX_POLL_RECORDS = 5000
CONSUMER_SETTINGS: dict[str, Any] = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "fetch.wait.max.ms": 100,
}


class GroupReport(NamedTuple):
    """The records that a group has read."""

    records_by_member: list[int]
    partitions_by_member: list[int]
    records: int
    twice: int
    checksum: int
    committed: dict[int, int]


class SeekReport(NamedTuple):
    """The broker's offsets for a timestamp, and the records read from there."""

    offsets: dict[int, int | None]
    first_checksums: dict[int, int]
    records: int


class _Member:
    """One consumer of the group. It pauses newly assigned partitions until all members have theirs (rule 1)."""

    def __init__(self, settings: dict[str, Any], topic: str) -> None:
        self.consumer = Consumer(settings)
        self.consumer.subscribe([topic], on_assign=self._on_assign)
        self.records = self.twice = self.checksum = 0

    def _on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        consumer.assign(partitions)
        consumer.pause(partitions)

    def poll(self, seen: dict[int, bytearray]) -> int:
        """Marks the polled offsets in `seen`; returns how many are new."""
        fresh = 0
        messages: list[Any] = self.consumer.consume(MAX_POLL_RECORDS, POLL_S)
        for message in messages:
            if (failure := message.error()) is not None:
                raise JobError(f"The broker refused: {failure.str()}.")
            marks, offset = seen[message.partition()], message.offset()
            if marks[offset]:
                self.twice += 1
            else:
                marks[offset] = 1
                fresh += 1
                self.checksum += crc32(message.value())
        self.records += fresh
        return fresh


def read_with_group(
    brokers: Brokers, topic: str, group: str, members: int, on_progress: Callable[[int], None]
) -> GroupReport:
    """Lets a group of consumers read all records, commit and leave. Raises JobError after LIMIT_S seconds."""
    ends = brokers.end_offsets(brokers.find_topics([topic])[topic].topic_partitions())
    seen = {tp.partition: bytearray(end) for tp, end in ends.items()}
    left = sum(ends.values())
    settings = {**brokers.client_settings, **CONSUMER_SETTINGS, "group.id": group}
    consumers = [_Member(settings, topic) for _ in range(members)]
    try:
        deadline = time.monotonic() + LIMIT_S
        while left:
            for member in consumers:
                fresh = member.poll(seen)
                left -= fresh
                on_progress(fresh)
            assigned = [member.consumer.assignment() for member in consumers]
            if all(assigned) and sum(map(len, assigned)) == len(ends):
                for member, partitions in zip(consumers, assigned, strict=True):
                    member.consumer.resume(partitions)
            if time.monotonic() > deadline:
                raise JobError(
                    f"The group {group} did not read {left} records within {LIMIT_S:.0f} s: run the demo again."
                )
        for member in consumers:
            if member.records:  # else it has no offset to commit, which is an error of the client
                member.consumer.commit(asynchronous=False)
    finally:
        for member in consumers:
            member.consumer.close()
    committed = brokers.committed(group, ends)
    return GroupReport(
        [member.records for member in consumers],
        [len(partitions) for partitions in assigned],
        sum(marks.count(1) for marks in seen.values()),
        sum(member.twice for member in consumers),
        sum(member.checksum for member in consumers),
        {tp.partition: committed.get(tp, 0) for tp in ends},  # an empty partition may have no committed offset
    )


def seek_by_time(brokers: Brokers, topic: str, moment_ms: int, on_progress: Callable[[int], None]) -> SeekReport:
    """Looks up the first offset at or after a time in each partition, and reads from there to the end."""
    spans = brokers.spans(brokers.find_topics([topic]).values())
    offsets = brokers.offsets_for_time(spans, moment_ms)
    first_checksums: dict[int, int] = {}
    count = 0
    for message in brokers.consume({tp: Span(offset, spans[tp].end) for tp, offset in offsets.items()}):
        first_checksums.setdefault(message.partition(), crc32(message.value()))
        count += 1
        if count % 1000 == 0:
            on_progress(1000)
    on_progress(count % 1000)
    return SeekReport({tp.partition: offsets.get(tp) for tp in spans}, first_checksums, count)


def expected_seek(produced: Produced, moment_ms: int) -> SeekReport:
    """Returns the expected result of the look-up, computed from the sent records."""
    offsets: dict[int, int | None] = {}
    first_checksums: dict[int, int] = {}
    records = 0
    for partition, sent in produced.partitions.items():
        found = next((offset for offset, record in enumerate(sent) if record.timestamp_ms >= moment_ms), None)
        offsets[partition] = found
        if found is not None:
            first_checksums[partition] = sent[found].checksum
            records += len(sent) - found
    return SeekReport(offsets, first_checksums, records)
