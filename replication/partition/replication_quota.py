"""The replication quota of one side of a broker (KIP-73).

RULES    1. A topic lists its throttled replicas for the leader side and for the follower side: "*", or partition:broker, with
            the broker on that side.
         2. Bytes of throttled replicas count. Above the rate, replicas that are not in sync wait. In-sync replicas never wait,
            because producers wait for them.
         3. Without a rate, nothing waits and no topic config is read.
NOT HERE Waiting: the follower skips a partition (`replica_fetcher.py`), the leader returns no records for it
         (`broker/handlers/records/delayed_fetch.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

from replication.partition.rate_limiter import RateLimiter

LEADER: Final = "leader"
FOLLOWER: Final = "follower"


def rate_setting(side: str) -> str:
    """The broker config of the rate in bytes per second."""
    return f"{side}.replication.throttled.rate"


class ReplicationQuotaManager:
    """The quota of one side of one broker."""

    def __init__(self, side: str, broker_id: int, topic_config: Callable[[str], Mapping[str, str]]) -> None:
        """Start without a rate; `topic_config` returns a topic's config."""
        self._broker_id = broker_id
        self._topic_config = topic_config
        self._replicas_setting = f"{side}.replication.throttled.replicas"
        self._limiter = RateLimiter(math.inf)
        self._is_limited = False

    def set_rate(self, bytes_per_second: float, mono_ms: int) -> None:
        """Set the rate; infinite means no quota."""
        self._is_limited = bytes_per_second < math.inf
        self._limiter.set_rate(bytes_per_second, mono_ms)

    def record(self, topic: str, index: int, size: int, mono_ms: int) -> None:
        """Count replicated bytes of a partition."""
        if self._is_limited and self._is_throttled_replica(topic, index):
            self._limiter.record(size, mono_ms)

    def wait_ms(self, topic: str, index: int, mono_ms: int) -> int:
        """How long a replica that is not in sync must wait; 0 if it may continue."""
        if not self._is_limited or not self._is_throttled_replica(topic, index):
            return 0
        return self._limiter.wait_ms(mono_ms)

    def _is_throttled_replica(self, topic: str, index: int) -> bool:
        text = self._topic_config(topic).get(self._replicas_setting)
        if not text:
            return False
        replicas = _parsed(text)
        return replicas is None or (str(index), str(self._broker_id)) in replicas


@lru_cache(maxsize=256)
def _parsed(text: str) -> frozenset[tuple[str, str]] | None:
    """(partition, broker) of each throttled replica, as text, since digits are not limited; None: all."""
    if text.strip() == "*":
        return None
    pairs = (element.strip().partition(":") for element in text.split(",") if element.strip())
    return frozenset((partition.lstrip("0") or "0", broker.lstrip("0") or "0") for partition, _, broker in pairs)
