"""What the group coordinators of this broker have done, as counters (Kafka: GroupCoordinatorMetrics).

RULES    1. One object for all shards: a counter does not fall when another broker takes over a shard.
         2. Loading counts nothing: another coordinator has counted it.
NOT HERE Names (`coordinator_metrics.py`), commit and load times (`runtime/runtime_times.py`).
"""

from __future__ import annotations


class GroupCounts:
    """The counters, since the start of the node."""

    __slots__ = (
        "classic_rebalances", "consumer_rebalances", "offset_commits", "offset_deletions", "offset_expirations",
    )  # fmt: skip

    def __init__(self) -> None:
        self.offset_commits = 0
        """Offsets that were written, those of transactions included."""
        self.offset_expirations = 0
        """Offsets that were deleted because their retention was over."""
        self.offset_deletions = 0
        """Offsets that OffsetDelete deleted."""
        self.classic_rebalances = 0
        """Completed rebalances of classic groups: their members have their assignments."""
        self.consumer_rebalances = 0
        """New epochs of consumer groups (KIP-848)."""
