"""What the levels of the cluster's features mean for the metadata log: which are known, and what may be written.

RULES    1. A record is written in the newest version that nodes at the cluster's metadata.version can read, as Apache Kafka
            writes it.
         2. A level that is not known here may ask for what this node would get wrong: such a cluster is refused.
NOT HERE Which features clients are told of (`broker/api_table.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

METADATA_VERSION = "metadata.version"
KRAFT_VERSION = "kraft.version"
"""Of the quorum; it stands in control records, and says whether the voters do, too (1) or are a setting (0)."""
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
"""What Apache Kafka 4.3.1 registers, for its nodes must be able to take part in a cluster that we began. The lowest
metadata.version is 3.3-IV3, the highest 4.3-IV0."""

KNOWN_FEATURES: Mapping[str, tuple[int, int]] = {
    **SUPPORTED_FEATURES,
    METADATA_VERSION: (7, 33),
    "share.version": (0, 2),
}
"""What a directory may ask for: up to Apache Kafka 4.4, whose metadata.version is 33 (4.4-IV2)."""

_WITH_MIGRATION = 8
WITHOUT_EPOCH_PER_SHRINK = 12
"""From here on a smaller ISR is no reason for a new leader epoch."""
WITH_TRANSACTIONS = 13
"""From here on records can be bracketed by BeginTransaction and EndTransaction."""
WITH_CONTROLLERS = 15
"""From here on controllers register."""
WITH_DIRECTORIES = 17
"""From here on it is noted in which log directory a replica lies."""
_WITH_ELIGIBLE_LEADERS = 23
WITH_CORDONS = 30
"""From here on log directories can be cordoned off."""
_CHANGING_LEVELS = (8, 11, 13, 14, 15, 17, 23, 30, 31, 32, 33)
"""The levels of metadata.version that brought new records or new versions of some."""


def features_for(finalized: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """What this node says that it supports in a cluster: the usual, and what is in force there."""
    return {name: (low, max(high, finalized.get(name, 0))) for name, (low, high) in SUPPORTED_FEATURES.items()}


def changes_records(older: int, newer: int) -> bool:
    """Whether a log at the newer metadata.version may hold what nodes at the older one cannot read."""
    return any(older < level <= newer for level in _CHANGING_LEVELS)


def needed_metadata_version(name: str, level: int) -> int:
    """The lowest metadata.version with which a feature can have a level."""
    return _WITH_ELIGIBLE_LEADERS if name == ELIGIBLE_LEADERS and level else 0


def registration_version(level: int) -> int:
    """Of RegisterBrokerRecord at a metadata.version."""
    if level >= WITH_CORDONS:
        return 4
    if level >= WITH_DIRECTORIES:
        return 3
    return 2 if level >= _WITH_MIGRATION else 1


def partition_version(level: int) -> int:
    """Of PartitionRecord and PartitionChangeRecord at a metadata.version."""
    if level >= _WITH_ELIGIBLE_LEADERS:
        return 2
    return 1 if level >= WITH_DIRECTORIES else 0


def unknown_level(name: str, level: int) -> str | None:
    """What is wrong with a level, as the end of a sentence; None: it is known."""
    lowest, highest = KNOWN_FEATURES.get(name, (0, 0))
    if lowest <= level <= highest:
        return None
    return f"{name} {level}; this broker " + (f"works with {lowest} to {highest}" if highest else "does not know it")
