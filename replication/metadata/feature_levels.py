"""Feature levels and the metadata log: supported levels, and the record versions that a level allows.

RULES    1. A record is written in the newest version that nodes at the finalized metadata.version can read, as Apache Kafka
            does.
         2. A cluster with an unknown feature level is refused, because this node might misinterpret its records.
NOT HERE Which features clients see (`broker/api_table.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

METADATA_VERSION = "metadata.version"
KRAFT_VERSION = "kraft.version"
"""The quorum's own feature, stored in control records."""
WITH_DYNAMIC_VOTERS = 1
"""The kraft.version from which the voters are stored in the log."""
ELIGIBLE_LEADERS = "eligible.leader.replicas.version"

SUPPORTED_FEATURES: Mapping[str, tuple[int, int]] = {
    "group.version": (0, 1),
    "transaction.version": (0, 2),
    KRAFT_VERSION: (0, 1),
    METADATA_VERSION: (7, 30),
    "share.version": (0, 1),
    "streams.version": (0, 1),
    ELIGIBLE_LEADERS: (0, 1),
}
"""The features of Apache Kafka 4.3.1, so that its nodes can join a cluster formatted by this broker.

The lowest metadata.version is 3.3-IV3, the highest 4.3-IV0.
"""

KNOWN_FEATURES: Mapping[str, tuple[int, int]] = {
    **SUPPORTED_FEATURES,
    METADATA_VERSION: (7, 33),
    "share.version": (0, 2),
}
"""The levels that a log directory may have: up to Apache Kafka 4.4, whose metadata.version is 33 (4.4-IV2)."""

_WITH_MIGRATION = 8
WITHOUT_EPOCH_PER_SHRINK = 12
"""The metadata.version from which an ISR shrink does not increase the leader epoch."""
WITH_TRANSACTIONS = 13
"""The metadata.version from which BeginTransaction and EndTransaction records exist."""
WITH_CONTROLLERS = 15
"""The metadata.version from which controllers register."""
WITH_DIRECTORIES = 17
"""The metadata.version from which a partition records the log directories of its replicas."""
_WITH_ELIGIBLE_LEADERS = 23
WITH_CORDONS = 30
"""The metadata.version from which log directories can be cordoned."""
_CHANGING_LEVELS = (8, 11, 13, 14, 15, 17, 23, 30, 31, 32, 33)
"""The metadata.versions that added records or record versions."""


def features_for(finalized: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """The features that this node registers: the supported ones, extended to the finalized levels."""
    return {name: (low, max(high, finalized.get(name, 0))) for name, (low, high) in SUPPORTED_FEATURES.items()}


def changes_records(older: int, newer: int) -> bool:
    """Whether a log at the newer metadata.version may contain records that nodes at the older one cannot read."""
    return any(older < level <= newer for level in _CHANGING_LEVELS)


def required_metadata_version(name: str, level: int) -> int:
    """The lowest metadata.version that allows a feature level."""
    return _WITH_ELIGIBLE_LEADERS if name == ELIGIBLE_LEADERS and level else 0


def registration_version(level: int) -> int:
    """The version of RegisterBrokerRecord at a metadata.version."""
    if level >= WITH_CORDONS:
        return 4
    if level >= WITH_DIRECTORIES:
        return 3
    return 2 if level >= _WITH_MIGRATION else 1


def partition_version(level: int) -> int:
    """The version of PartitionRecord and PartitionChangeRecord at a metadata.version."""
    if level >= _WITH_ELIGIBLE_LEADERS:
        return 2
    return 1 if level >= WITH_DIRECTORIES else 0


def unsupported_level(name: str, level: int) -> str | None:
    """Why a level is unsupported, as the end of a sentence; None if it is supported."""
    lowest, highest = KNOWN_FEATURES.get(name, (0, 0))
    if lowest <= level <= highest:
        return None
    return f"{name} {level}; this broker " + (f"works with {lowest} to {highest}" if highest else "does not know it")
