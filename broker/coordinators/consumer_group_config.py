"""What the settings say about consumer groups; defaults as in Apache Kafka.

RULES    1. A group's own setting counts before the broker's, within the limits that the broker sets.
         2. Both are read when they are needed: a change counts from the next heartbeat on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

from replication.metadata.image import MetadataImage


class MigrationPolicy(Enum):
    """Which groups may change their kind while they have members; the value is the setting's."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def allows_upgrades(self) -> bool:
        """Whether a member of the consumer protocol makes a classic group a consumer group."""
        return self in {MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE}

    @property
    def allows_downgrades(self) -> bool:
        """Whether a consumer group whose members are all classic ones becomes a classic group."""
        return self in {MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE}


class ConsumerGroupSettings(NamedTuple):
    """Times in milliseconds; `limits` bounds what single groups may ask for."""

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


class SettingsOfGroups:
    """What is in force for single groups; `broker` is replaced when the broker's settings change."""

    def __init__(self, broker: ConsumerGroupSettings, image: Callable[[], MetadataImage]) -> None:
        self.broker = broker
        self._image = image

    def session_timeout_ms(self, group_id: str) -> int:
        """How long a member may be silent."""
        return self._of_group(group_id, "session.timeout.ms", self.broker.session_timeout_ms)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """How often a member shall be heard of."""
        return self._of_group(group_id, "heartbeat.interval.ms", self.broker.heartbeat_interval_ms)

    def assignment_interval_ms(self, group_id: str) -> int:
        """The shortest time between two assignments."""
        return self._of_group(group_id, "assignment.interval.ms", self.broker.assignment_interval_ms)

    def _of_group(self, group_id: str, name: str, otherwise: int) -> int:
        text = self._image().group_config(group_id).get(f"consumer.{name}")
        if text is None:
            return otherwise
        lowest, highest = self.broker.limits[name]
        return min(max(int(text), lowest), highest)
