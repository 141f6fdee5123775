"""Bytes, messages and requests by topic, and the broker's sums (Kafka: BrokerTopicMetrics).

RULES    1. The series without the label `topic` is the broker's sum; it never falls, whatever topics are deleted.
         2. The first `MAX_TOPICS` topics, in the order of their creation here, have series of their own; the others have one
            together, with the topic `OTHERS`. It keeps the counts of topics that were deleted, or that got a series of their
            own: a counter that fell would be a restart to Prometheus.
NOT HERE Counting (`replication/partition/topic_counts.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from broker.telemetry.families import PAUSE, Families, label_text, meter
from replication.partition.topic_counts import BrokerCounts, TopicCounts

MAX_TOPICS: Final = 1_000
OTHERS: Final = "(others)"
_BEAN: Final = "kafka_server_brokertopicmetrics"
_METERS: Final[dict[str, tuple[str, Callable[[TopicCounts], int]]]] = {
    "BytesIn": ("Bytes that producers and coordinators appended.", lambda counts: counts.bytes_in),
    "BytesOut": ("Bytes of records sent to consumers.", lambda counts: counts.bytes_out),
    "MessagesIn": ("Records appended.", lambda counts: counts.messages_in),
    "TotalProduceRequests": ("Appends, one for each partition.", lambda counts: counts.all_appends),
    "FailedProduceRequests": ("Appends that failed.", lambda counts: counts.failed_appends),
    "TotalFetchRequests": ("Reads of partitions, by consumers and followers.", lambda counts: counts.reads),
    "FailedFetchRequests": ("Reads of partitions that failed.", lambda counts: counts.failed_reads),
    "ReplicationBytesIn": ("Bytes fetched from leaders.", lambda counts: counts.replication_bytes_in),
    "ReplicationBytesOut": ("Bytes sent to followers.", lambda counts: counts.replication_bytes_out),
}
_BROKER_ONLY: Final = ("ReplicationBytesIn", "ReplicationBytesOut")
"""Apache Kafka has them without topics."""


class TopicMetrics:
    """The families of a broker's topics."""

    def __init__(self, counts: BrokerCounts) -> None:
        self._counts = counts
        self._others: dict[str, TopicCounts] = {}
        self._former_others = TopicCounts()

    def families(self) -> Families:
        """A meter for each count."""
        counted = [("", self._counts.sum())]
        yield PAUSE
        shown = islice(self._counts.topics.items(), MAX_TOPICS)
        counted += [(label_text(("topic", topic)), counts) for topic, counts in shown]
        yield PAUSE
        self._update_others()
        if self._others:
            together = sum_of([self._former_others, *self._others.values()])
            counted.append((label_text(("topic", OTHERS)), together))
        for attribute, (explanation, read) in _METERS.items():
            shown_here = counted[:1] if attribute in _BROKER_ONLY else counted
            yield meter(_BEAN, attribute, explanation, _values(shown_here, read))

    def _update_others(self) -> None:
        before, self._others = self._others, dict(islice(self._counts.topics.items(), MAX_TOPICS, None))
        for topic, counts in before.items():
            if self._others.get(topic) is not counts:
                self._former_others.add(counts)


def _values(counted: list[tuple[str, TopicCounts]], read: Callable[[TopicCounts], int]) -> Iterator[tuple[str, int]]:
    for labels, counts in counted:
        yield labels, read(counts)


def sum_of(several: list[TopicCounts]) -> TopicCounts:
    """The sum of the counts of several topics."""
    total = TopicCounts()
    for counts in several:
        total.add(counts)
    return total
