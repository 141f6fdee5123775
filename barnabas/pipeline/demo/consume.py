"""Reads a topic with plain consumers: a group of three, and one that seeks by time.

RULES    1. A group starts reading when every member has its partitions, so that a rebalance causes no duplicates.
         2. A group is done when every offset of every partition was read; duplicates are counted separately.
         3. A member leaves after all members have committed, since leaving starts a rebalance.
         4. A look-up by time must return the first offset whose timestamp is at or after the requested time.
NOT HERE Spark, which uses no group (`spark_jobs.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Barrier, Thread
from typing import Any, NamedTuple
from zlib import crc32

from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition

from barnabas.pipeline.brokers import Brokers
from barnabas.pipeline.demo.produce import Produced

LIMIT_S = 180.0
CONSUMER_SETTINGS: dict[str, Any] = {
    "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
    "max_poll_records": 5000,
    "fetch_max_wait_ms": 100,
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


class _Shared:
    """The offsets that the group's members have read."""

    def __init__(self, ends: dict[int, int], members: int) -> None:
        self.seen = {partition: bytearray(end) for partition, end in ends.items()}
        self.shares = [0] * members
        self.all_have_committed = Barrier(members)
        self.failure: BaseException | None = None

    def left(self) -> int:
        return sum(marks.count(0) for marks in self.seen.values())

    def is_finished(self) -> bool:
        return self.failure is not None or not self.left()

    def fail(self, failure: BaseException) -> None:
        """Keeps the first failure: later ones may be consequences."""
        self.failure = self.failure or failure
        self.all_have_committed.abort()

    def all_are_assigned(self) -> bool:
        return all(self.shares) and sum(self.shares) == len(self.seen)


class _Pause(ConsumerRebalanceListener):  # type: ignore[misc]
    """Pauses newly assigned partitions until all members have theirs."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        self._consumer = consumer

    def on_partitions_revoked(self, revoked: Any) -> None:
        pass

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._consumer.pause(*assigned)


class _Member(Thread):
    """One consumer of the group, in its own thread."""

    def __init__(
        self, number: int, bootstrap: str, topic: str, group: str, shared: _Shared, on_progress: Callable[[int], None]
    ) -> None:
        super().__init__(daemon=True)
        self._number = number
        self._consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=group, **CONSUMER_SETTINGS)
        self._consumer.subscribe([topic], listener=_Pause(self._consumer))
        self._shared = shared
        self._on_progress = on_progress
        self.records = self.twice = self.checksum = 0

    def run(self) -> None:
        deadline = time.monotonic() + LIMIT_S
        try:
            while not self._shared.is_finished():
                for place, records in self._consumer.poll(timeout_ms=200).items():
                    self._count(place.partition, records)
                self._update_assignment()
                _check_deadline(deadline, self._shared.left())
            self._consumer.commit()
            self._shared.all_have_committed.wait(LIMIT_S)
        except BaseException as failure:  # noqa: BLE001 - re-raised by the thread that joins this one
            self._shared.fail(failure)
        finally:
            self._consumer.close()

    def _update_assignment(self) -> None:
        self._shared.shares[self._number] = len(self._consumer.assignment())
        if self._consumer.paused() and self._shared.all_are_assigned():
            self._consumer.resume(*self._consumer.paused())

    def _count(self, partition: int, records: list[Any]) -> None:
        seen = self._shared.seen[partition]
        fresh = 0
        for record in records:
            if seen[record.offset]:
                self.twice += 1
            else:
                seen[record.offset] = 1
                fresh += 1
                self.checksum += crc32(record.value)
        self.records += fresh
        self._on_progress(fresh)


def read_with_group(
    brokers: Brokers, topic: str, group: str, members: int, on_progress: Callable[[int], None]
) -> GroupReport:
    """Let a group of consumers read all that is there, commit and leave."""
    ends = brokers.ends(brokers.find_topics([topic])[topic].topic_partitions())
    shared = _Shared({tp.partition: end for tp, end in ends.items()}, members)
    threads = [_Member(number, brokers.bootstrap, topic, group, shared, on_progress) for number in range(members)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if shared.failure is not None:
        raise shared.failure
    committed = brokers.committed(group, ends)
    return GroupReport(
        [thread.records for thread in threads],
        shared.shares,
        sum(marks.count(1) for marks in shared.seen.values()),
        sum(thread.twice for thread in threads),
        sum(thread.checksum for thread in threads),
        {tp.partition: committed.get(tp, 0) for tp in ends},  # an empty partition may have no committed offset
    )


def seek_by_time(brokers: Brokers, topic: str, moment_ms: int, on_progress: Callable[[int], None]) -> SeekReport:
    """Looks up the first offset at or after a time in each partition, and reads from there to the end."""
    found = brokers.ends(brokers.find_topics([topic])[topic].topic_partitions())
    ends = {tp.partition: end for tp, end in found.items()}
    consumer = KafkaConsumer(bootstrap_servers=brokers.bootstrap, **CONSUMER_SETTINGS)
    try:
        answers = consumer.offsets_for_times({TopicPartition(topic, number): moment_ms for number in ends})
        offsets = {place.partition: answer.offset if answer else None for place, answer in answers.items()}
        left = {number: ends[number] - offset for number, offset in offsets.items() if offset is not None}
        consumer.assign([TopicPartition(topic, number) for number in left])
        for number in left:
            consumer.seek(TopicPartition(topic, number), offsets[number])
        first_checksums: dict[int, int] = {}
        count = 0
        deadline = time.monotonic() + LIMIT_S
        while count < sum(left.values()):
            _check_deadline(deadline, sum(left.values()) - count)
            for place, records in consumer.poll(timeout_ms=200).items():
                first_checksums.setdefault(place.partition, crc32(records[0].value))
                count += len(records)
                on_progress(len(records))
        return SeekReport(offsets, first_checksums, count)
    finally:
        consumer.close()


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


def _check_deadline(deadline: float, left: int) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError(f"{left} records were still unread after {LIMIT_S:.0f} s")
