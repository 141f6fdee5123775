"""What a decision may look at besides the image: this node's own settings, and dice that are handed in.

RULES    1. Decisions are functions of (image, environment, request): nothing else, so a test or a simulation can
            repeat them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from protocol.errors import KafkaError
from storage.config.config_def import Setting


class BrokerRules(Protocol):
    """What this node's broker knows of brokers' settings."""

    def setting(self, name: str) -> Setting | None:
        """The row of a setting, or None when there is no such setting."""


class KraftVersion(NamedTuple):
    """The level of kraft.version, which the quorum writes down itself (`replication/raft/voter_changes.py`)."""

    level: Callable[[], int]
    """1: the voters stand in the metadata log; 0: they are a setting."""
    refusal: Callable[[int], KafkaError | None]
    """Why it cannot be raised to a level now, if it cannot."""


IN_THE_LOG = KraftVersion(lambda: 1, lambda _: None)


class Environment(NamedTuple):
    """The part of a decision that is this node's own."""

    node_id: int
    settings: Mapping[str, str]
    """The broker settings that were given at the start, as text, under the broker's names."""
    rules: BrokerRules
    num_partitions: int
    default_replication_factor: int
    new_id: Callable[[], bytes]
    """A fresh topic id."""
    random_below: Callable[[int], int]
    """A random number from 0 to below the given one."""
    kraft_version: KraftVersion = IN_THE_LOG
    """The quorum's that this node is part of."""
