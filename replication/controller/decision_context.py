"""The inputs of a decision besides the request: the metadata image, this node's configuration, a source of randomness.

RULES    1. Decisions are pure functions of (context, request), so tests and simulators can repeat them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from protocol.errors import KafkaError
from replication.metadata.delegation_tokens import TokenSettings
from replication.metadata.image import MetadataImage
from storage.config.config_def import Setting


class BrokerConfigs(Protocol):
    """The broker configuration definitions."""

    def setting(self, name: str) -> Setting | None:
        """The definition of a configuration; None if it does not exist."""

    def usable(self, texts: Mapping[str, str]) -> dict[str, str]:
        """The dynamic configurations that a node uses: a controller also stores invalid ones."""


class KraftVersion(NamedTuple):
    """The kraft.version feature, which the quorum stores itself (`replication/raft/voter_changes.py`)."""

    level: Callable[[], int]
    """1: the voters are in the metadata log; 0: they are configured."""
    refusal: Callable[[int], KafkaError | None]
    """The error if the feature cannot be raised to a level now."""


KRAFT_VERSION_1 = KraftVersion(lambda: 1, lambda _: None)


def _uncharged(partitions: int) -> None:
    """A client without a quota."""


class DecisionContext(NamedTuple):
    """The inputs of decisions on this node."""

    image: MetadataImage
    """The newest image, which may not be committed yet."""
    node_id: int
    static_configs: Mapping[str, str]
    """The static broker configuration, by broker config name."""
    broker_configs: BrokerConfigs
    num_partitions: int
    default_replication_factor: int
    new_id: Callable[[], bytes]
    """Returns a new topic id."""
    random_below: Callable[[int], int]
    """Returns a random number from 0 to below its argument."""
    kraft_version: KraftVersion = KRAFT_VERSION_1
    """The kraft.version of this node's quorum."""
    tokens: TokenSettings = TokenSettings()
    wall_ms: Callable[[], int] = lambda: 0
    """The time in milliseconds since 1970, for the expiry of delegation tokens."""
    client_principal: str = ""
    """Of the client whose request this is, as "User:name"; empty: a request of a node."""
    charge_partitions: Callable[[int], None] = _uncharged
    """Counts partitions of a topic that are created, added or deleted; raises KafkaError if the client's quota is exceeded."""
