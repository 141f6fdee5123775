"""Settings of groups, with Apache Kafka's defaults.

RULES    1. A group's own config overrides the broker's, clamped to the broker's minimum and maximum.
         2. Both are read at use: a change applies from the next heartbeat on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from replication.metadata.image import MetadataImage


class MigrationPolicy(Enum):
    """group.consumer.migration.policy; the value is the config's."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"


UPGRADES: Final = frozenset({MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE})
"""A classic group is upgraded when a member of the consumer protocol joins."""
DOWNGRADES: Final = frozenset({MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE})
"""A consumer group is downgraded when only classic members are left."""


class ConsumerGroupSettings(NamedTuple):
    """Times in milliseconds; `limits` has minimum and maximum of group configs."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    regex_refresh_interval_ms: int = 600_000
    max_size: int = 0x7FFFFFFF
    assignors: tuple[str, ...] = ("uniform", "range")
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    limits: Mapping[str, tuple[int, int]] = {
        "session.timeout.ms": (45_000, 60_000),
        "heartbeat.interval.ms": (5_000, 15_000),
        "assignment.interval.ms": (0, 15_000),
    }


class GroupSettings(NamedTuple):
    """Settings of groups and offsets, with Kafka's defaults."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 0x7FFFFFFF
    offset_metadata_max_size: int = 4096
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1000
    offsets_retention_check_interval_ms: int = 600_000
    consumer: ConsumerGroupSettings = ConsumerGroupSettings()


class GroupConfigManager:
    """The effective configs of groups; `broker` is replaced when the broker's configs change."""

    def __init__(self, broker: ConsumerGroupSettings, image: Callable[[], MetadataImage]) -> None:
        self.broker = broker
        self._image = image

    def session_timeout_ms(self, group_id: str) -> int:
        """consumer.session.timeout.ms of a group."""
        return self._of_group(group_id, "session.timeout.ms", self.broker.session_timeout_ms)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """consumer.heartbeat.interval.ms of a group."""
        return self._of_group(group_id, "heartbeat.interval.ms", self.broker.heartbeat_interval_ms)

    def assignment_interval_ms(self, group_id: str) -> int:
        """consumer.assignment.interval.ms of a group."""
        return self._of_group(group_id, "assignment.interval.ms", self.broker.assignment_interval_ms)

    def _of_group(self, group_id: str, name: str, default: int) -> int:
        text = self._image().group_config(group_id).get(f"consumer.{name}")
        if text is None:
            return default
        lowest, highest = self.broker.limits[name]
        return min(max(int(text), lowest), highest)
