"""The pace of replication, where it is throttled (KIP-73): what is moved for the throttled replicas of topics.

RULES    1. A topic names its throttled replicas, for the leader's side and for the follower's: "*", or partition:broker, where
            the broker is the one on that side.
         2. What is moved for them counts. When it is more than the rate allows, those that are not in sync wait; those that
            are in sync never do: producers wait for them.
         3. Without a rate nobody waits, and nothing is looked up.
NOT HERE Waiting: the follower leaves a partition out (`replica_fetcher.py`), the leader sends nothing (`broker/handlers/records/fetch.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

from replication.partition.rate_limiter import Throttle

LEADER: Final = "leader"
FOLLOWER: Final = "follower"


def rate_setting(side: str) -> str:
    """The broker's setting for how many bytes a second."""
    return f"{side}.replication.throttled.rate"


class ReplicationThrottle:
    """One side of one broker."""

    def __init__(self, side: str, broker_id: int, topic_config: Callable[[str], Mapping[str, str]]) -> None:
        """Without a rate; `topic_config` gives the settings of a topic."""
        self._broker_id = broker_id
        self._topic_config = topic_config
        self._replicas_setting = f"{side}.replication.throttled.replicas"
        self._pace = Throttle(math.inf)
        self._is_limited = False

    def set_rate(self, bytes_per_second: float, mono_ms: int) -> None:
        """Another rate from now on; infinite: none."""
        self._is_limited = bytes_per_second < math.inf
        self._pace.set_rate(bytes_per_second, mono_ms)

    def took(self, topic: str, index: int, size: int, mono_ms: int) -> None:
        """So much of a partition was moved."""
        if self._is_limited and self._is_listed(topic, index):
            self._pace.took(size, mono_ms)

    def wait_ms(self, topic: str, index: int, mono_ms: int) -> int:
        """After which time a replica of this partition that is not in sync may go on; 0: now."""
        if not self._is_limited or not self._is_listed(topic, index):
            return 0
        return self._pace.wait_ms(mono_ms)

    def _is_listed(self, topic: str, index: int) -> bool:
        text = self._topic_config(topic).get(self._replicas_setting)
        if not text:
            return False
        listed = _parsed(text)
        return listed is None or (index, self._broker_id) in listed


@lru_cache(maxsize=256)
def _parsed(text: str) -> frozenset[tuple[int, int]] | None:
    """Partition and broker of each throttled replica; None: all."""
    if text.strip() == "*":
        return None
    pairs = (element.split(":") for element in text.split(","))
    return frozenset((int(partition), int(broker)) for partition, broker in pairs)
