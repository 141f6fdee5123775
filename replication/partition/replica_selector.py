"""From which replica a consumer had better read: Kafka's rule (KIP-392), and RocketMQ's (seeds.md I4).

RULES    1. The leader says so, to consumers that can tell their rack. Only followers in sync that hold the offset count.
         2. By rack: the leader if it is in the reader's, else the follower there that is furthest.
         3. By backlog: a follower, the furthest, for who reads what is not in the leader's memory any more, so that the old
            records do not push the new ones out of it.
NOT HERE The answer (`broker/handlers/records/fetch.py`); what a follower serves: all up to its high watermark (`partition.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from replication.partition.partition import Partition
from replication.partition.replica_manager import ReplicaManager


class Candidate(NamedTuple):
    """A follower; the greatest is furthest."""

    end_offset: int
    last_caught_up_mono_ms: int
    broker_id: int
    rack: str | None


class Reading(NamedTuple):
    """What is wanted, and by whom."""

    partition: Partition
    offset: int
    rack: str
    own_rack: str | None


Choose = Callable[[Reading, list[Candidate]], "int | None"]


def by_rack(reading: Reading, candidates: list[Candidate]) -> int | None:
    """Rule 2."""
    if not reading.rack or reading.rack == reading.own_rack:
        return None
    near = [candidate for candidate in candidates if candidate.rack == reading.rack]
    return max(near).broker_id if near else None


def by_backlog(reading: Reading, candidates: list[Candidate]) -> int | None:
    """Rule 3."""
    log, history = reading.partition.log, reading.partition.history
    if not candidates or history is None or not log.is_open:
        return None
    is_deep = history.is_deep(reading.offset, log.log_start_offset, log.log_end_offset, log.size_bytes)
    return max(candidates).broker_id if is_deep else None


SELECTORS: Final[dict[str, Choose | None]] = {
    "org.apache.kafka.common.replica.LeaderSelector": None,
    "org.apache.kafka.common.replica.RackAwareReplicaSelector": by_rack,
    "barnabas.BacklogReplicaSelector": by_backlog,
}
"""What replica.selector.class may say."""


class ReadPlaces:
    """Sends consumers elsewhere."""

    def __init__(self, replicas: ReplicaManager, choose: Choose) -> None:
        self._replicas = replicas
        self._choose = choose

    def select(self, topic: str, index: int, offset: int, rack: str) -> int | None:
        """The follower to read from; None: read here."""
        partition = self._replicas.partitions.get((topic, index))
        if partition is None or not partition.is_leader:
            return None
        brokers = self._replicas.image.brokers
        candidates = [
            Candidate(follower.end_offset, follower.last_caught_up_mono_ms, replica, brokers[replica].rack)
            for replica, follower in partition.followers.items()
            if replica in partition.isr
            and replica in brokers
            and not brokers[replica].is_fenced
            and follower.log_start_offset <= offset <= follower.end_offset
        ]
        own = brokers.get(self._replicas.broker_id)
        return self._choose(Reading(partition, offset, rack, None if own is None else own.rack), candidates)
