"""ISR changes of the partitions led by this broker: add followers that caught up, remove those that fell behind.

RULES    1. A follower may join while its broker is active, under the registration that it fetches with (KIP-903), and the log
            directory of its replica is online: a follower whose directory failed may have fetched everything until then, and
            it would block acks=all until it is removed as too slow.
         2. A follower's fetch can expand the ISR. So can a metadata change and a periodic check, because a follower that has
            everything does not name the partition again, and its broker may be active before its first fetch after a pause.
            Such a follower must be within the allowed lag: with too few replicas in sync, one that fell behind may hold
            everything that is committed.
         3. Followers that fell behind are removed by the periodic check.
         4. The high watermark waits for a follower that is about to join. That ends when it may not join any more: its broker
            is fenced or shuts down.
NOT HERE How far a follower is (`partition.py`), AlterPartition requests (`broker/peers/alter_partition_manager.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from replication.completion import Completion
from replication.metadata.image import MetadataImage
from replication.partition.partition import Partition
from storage.io.disk_lookup import DiskLookup

Isr = tuple[int, ...]
Lookup = Callable[[str, int, Callable[[Partition], Isr | DiskLookup | None]], Completion[Isr | None]]


@dataclass(eq=False)
class IsrTracker:
    """Proposes ISR changes for one broker."""

    _image: Callable[[], MetadataImage]
    _lookup: Lookup
    """Of the replica manager."""
    _propose_change: Callable[[Partition, Isr], None]
    """Receives a partition and the ISR that it should have."""

    def may_join(self, partition: Partition, replica_id: int, broker_epoch: int) -> bool:
        """Whether a follower that is not in the ISR may join it (rule 1)."""
        if replica_id in partition.isr:
            return False
        image = self._image()
        broker, topic = image.brokers.get(replica_id), image.topics_by_name.get(partition.topic)
        state = None if topic is None else topic.partitions.get(partition.index)
        if broker is None or state is None or not broker.is_active or broker_epoch not in (-1, broker.epoch):
            return False
        return state.is_in_directories(replica_id, broker.directories)

    def on_follower_fetch(self, partition: Partition, replica_id: int) -> None:
        """Propose adding a follower after a fetch."""
        self._propose(partition, partition.expanded_isr(replica_id))

    def expand_isr(self, partition: Partition, mono_ms: int, max_lag_ms: int) -> None:
        """Propose adding followers without a fetch that names the partition (rule 2); end the joining of others (rule 4)."""
        for replica_id, follower in partition.followers.items():
            if not (follower.is_joining or follower.is_within_lag(mono_ms, max_lag_ms)):
                continue
            if not self.may_join(partition, replica_id, follower.broker_epoch):
                partition.stop_joining(replica_id)
            elif follower.is_within_lag(mono_ms, max_lag_ms):
                self._propose(partition, partition.expanded_isr(replica_id))

    def shrink_isr(self, partition: Partition, mono_ms: int, max_lag_ms: int) -> None:
        """Propose removing followers that fell behind."""

        def on_checked(isr: Completion[Isr | None]) -> None:
            if isr.error is None:  # else the partition was removed, or its log directory has failed
                self._propose(partition, isr.value)

        self._lookup(*partition.key, lambda checked: checked.shrunk_isr(mono_ms, max_lag_ms)).then(on_checked)

    def _propose(self, partition: Partition, isr: Isr | None) -> None:
        if isr is not None:
            self._propose_change(partition, isr)
