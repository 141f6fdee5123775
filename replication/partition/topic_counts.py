"""What was appended and read, by topic, since this broker started (Kafka: BrokerTopicStats).

RULES    1. Counts are plain attributes, which appends and reads update. Those of a topic that is deleted, or whose last
            replica here moves away, are kept as part of `deleted`, so that the broker's sum never falls.
         2. An append counts once for each partition, and so does a read. Those to unknown partitions count as
            failures in `deleted`.
NOT HERE Metric names (`broker/telemetry/topic_metrics.py`).
"""

from __future__ import annotations

from typing import Final

from protocol.errors import ErrorCode

_AFTER_APPEND: Final = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND})


class TopicCounts:
    """The counts of one topic."""

    __slots__ = (
        "appends", "bytes_in", "bytes_out", "failed_after_append", "failed_appends", "failed_reads", "messages_in", "reads",
        "replication_bytes_in", "replication_bytes_out",
    )  # fmt: skip

    def __init__(self) -> None:
        self.appends = 0
        """Appends that succeeded, those of coordinators included."""
        self.failed_appends = 0
        self.failed_after_append = 0
        """Those of them whose records are in the log: they had too few acknowledgements in time."""
        self.bytes_in = 0
        self.messages_in = 0
        self.reads = 0
        """Reads of consumers and followers."""
        self.failed_reads = 0
        self.bytes_out = 0
        """To consumers."""
        self.replication_bytes_out = 0
        """To followers."""
        self.replication_bytes_in = 0
        """From leaders."""

    @property
    def all_appends(self) -> int:
        """Appends that succeeded or failed, each once."""
        return self.appends + self.failed_appends - self.failed_after_append

    def count_failure(self, code: ErrorCode) -> None:
        """Count an append that is answered with an error."""
        self.failed_appends += 1
        self.failed_after_append += code in _AFTER_APPEND

    def add(self, other: TopicCounts) -> None:
        """Add the counts of another topic."""
        self.appends += other.appends
        self.failed_appends += other.failed_appends
        self.failed_after_append += other.failed_after_append
        self.bytes_in += other.bytes_in
        self.messages_in += other.messages_in
        self.reads += other.reads
        self.failed_reads += other.failed_reads
        self.bytes_out += other.bytes_out
        self.replication_bytes_out += other.replication_bytes_out
        self.replication_bytes_in += other.replication_bytes_in


class BrokerCounts:
    """The counts of all topics with partitions on this broker."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicCounts] = {}
        self.deleted = TopicCounts()
        """Of topics that were deleted or moved away, and of unknown ones."""
        self.isr_shrinks = self.isr_expands = 0
        """Changes of in-sync sets of partitions that this broker leads."""

    def of(self, topic: str) -> TopicCounts:
        """The counts of a topic that has partitions here."""
        counts = self.topics.get(topic)
        if counts is None:
            counts = self.topics[topic] = TopicCounts()
        return counts

    def known(self, topic: str | None) -> TopicCounts:
        """The counts of a topic; `deleted` if it has no partition here."""
        return self.deleted if topic is None else self.topics.get(topic, self.deleted)

    def count_sent(self, topic: str, size: int, *, is_follower: bool) -> None:
        """Count the records of a response."""
        counts = self.known(topic)
        if is_follower:
            counts.replication_bytes_out += size
        else:
            counts.bytes_out += size

    def count_isr(self, before: int, after: int) -> None:
        """Count a change of an in-sync set by its sizes."""
        self.isr_shrinks += after < before
        self.isr_expands += after > before

    def remove(self, topic: str) -> None:
        """The topic is deleted, or has no replica here any more."""
        counts = self.topics.pop(topic, None)
        if counts is not None:
            self.deleted.add(counts)

    def sum(self) -> TopicCounts:
        """The broker's counts."""
        total = TopicCounts()
        total.add(self.deleted)
        for counts in self.topics.values():
            total.add(counts)
        return total
