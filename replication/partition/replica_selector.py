"""The replica that a consumer should fetch from: rack-aware (KIP-392), or by backlog.

RULES    1. Consumers that send their rack get the preferred replica in the leader's response. Only in-sync followers that have
            the fetch offset, and an endpoint of the listener that the consumer uses, are candidates.
         2. By rack: the leader if it is in the consumer's rack, otherwise the follower in that rack with the highest end
            offset.
         3. By backlog: for records that have left the leader's page cache, the follower with the highest end offset, so that
            old records do not evict new ones.
NOT HERE The response (`broker/handlers/records/delayed_fetch.py`); a follower serves all up to its high watermark
         (`partition.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from replication.partition.partition import Partition
from replication.partition.replica_manager import ReplicaManager


class ReplicaView(NamedTuple):
    """A candidate; ordered by end offset."""

    end_offset: int
    last_caught_up_mono_ms: int
    broker_id: int
    rack: str | None


class ConsumerRead(NamedTuple):
    """What a consumer reads, its rack, and the leader's rack."""

    partition: Partition
    offset: int
    rack: str
    leader_rack: str | None


SelectReplica = Callable[[ConsumerRead, list[ReplicaView]], "int | None"]


def by_rack(read: ConsumerRead, candidates: list[ReplicaView]) -> int | None:
    """The replica in the consumer's rack (rule 2)."""
    if not read.rack or read.rack == read.leader_rack:
        return None
    same_rack = [candidate for candidate in candidates if candidate.rack == read.rack]
    return max(same_rack).broker_id if same_rack else None


def by_backlog(read: ConsumerRead, candidates: list[ReplicaView]) -> int | None:
    """A follower for records outside the page cache (rule 3)."""
    log, history = read.partition.log, read.partition.history
    if not candidates or history is None or log.opened is None:
        return None
    exceeds_memory = history.exceeds_memory(
        read.offset, log.log_start_offset, log.log_end_offset, log.opened.engine.size_bytes
    )
    return max(candidates).broker_id if exceeds_memory else None


SELECTORS: Final[dict[str, SelectReplica | None]] = {
    "org.apache.kafka.common.replica.LeaderSelector": None,
    "org.apache.kafka.common.replica.RackAwareReplicaSelector": by_rack,
    "barnabas.BacklogReplicaSelector": by_backlog,
}
"""The values of replica.selector.class."""


class ReplicaSelector:
    """Redirects consumers to followers."""

    def __init__(self, replicas: ReplicaManager, select: SelectReplica) -> None:
        self._replicas = replicas
        self._select = select

    def select(self, topic: str, index: int, offset: int, rack: str, listener: str) -> int | None:
        """The follower that a consumer on this listener should fetch from; None: the leader."""
        partition = self._replicas.partitions.get((topic, index))
        if partition is None or not partition.is_leader:
            return None
        brokers = self._replicas.image.brokers
        candidates = [
            ReplicaView(follower.end_offset, follower.last_caught_up_mono_ms, replica, brokers[replica].rack)
            for replica, follower in partition.followers.items()
            if replica in partition.isr
            and replica in brokers
            and not brokers[replica].is_fenced
            and brokers[replica].endpoint(listener) is not None
            and follower.log_start_offset <= offset <= follower.end_offset
        ]
        broker = brokers.get(self._replicas.broker_id)
        return self._select(ConsumerRead(partition, offset, rack, None if broker is None else broker.rack), candidates)
