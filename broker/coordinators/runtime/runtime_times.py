"""How long a coordinator runtime loads partitions, and waits for the commit of its records (Kafka: CoordinatorRuntimeMetrics).

RULES    1. A commit counts if it was not done at once: its reply waited for followers or a flush (Kafka: event purgatory).
NOT HERE Names (`broker/coordinators/coordinator_metrics.py`).
"""

from __future__ import annotations

from broker.process.histograms import Histogram

_NS_PER_MS = 1_000_000


class RuntimeTimes:
    """The times of all shards of one topic, since the start of the node."""

    __slots__ = ("commits", "loads", "longest_load_ms", "sum_load_ms")

    def __init__(self) -> None:
        self.commits = Histogram()
        """Of records: from the append to the commit."""
        self.loads = self.sum_load_ms = self.longest_load_ms = 0

    def record_commit(self, duration_ms: int) -> None:
        """Counts the commit of a decision's records."""
        self.commits.record(duration_ms * _NS_PER_MS)

    def record_load(self, duration_ms: int) -> None:
        """Counts a partition that was loaded."""
        self.loads += 1
        self.sum_load_ms += duration_ms
        self.longest_load_ms = max(self.longest_load_ms, duration_ms)
