"""Who should be in the ISR of the partitions led here: followers that caught up, and none that fell behind.

RULES    1. A follower may join while its broker is in good standing, in the registration that it fetches with (KIP-903).
         2. Its fetch calls for it; so does a change of the metadata, for a follower that has all says nothing of it again. But
            who has just fallen behind may have all that is committed, where too few are in sync to commit more.
         3. Who fell behind is looked for from time to time.
NOT HERE How far each is (`partition.py`), asking the controller (`broker/peers/alter_partition_manager.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from protocol.errors import KafkaError
from replication.metadata.image import MetadataImage
from replication.partition.partition import Partition
from storage.io.disk import StorageError
from storage.io.would_block import WouldBlock

_log = logging.getLogger("barnabas.replicas")

AwaitDisk = Callable[[Partition, WouldBlock[Any], Callable[[], None]], None]


class IsrWatch:
    """Looks after the ISRs of one broker."""

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        await_disk: AwaitDisk,
        guard: Callable[[Partition, StorageError], KafkaError],
        want: Callable[[Partition, tuple[int, ...]], None],
    ) -> None:
        """Look after nothing yet.

        Args:
            image: the cluster as the partitions follow it.
            await_disk: has a thread do what a look would wait for.
            guard: takes the directory of a partition offline whose log cannot be looked into.
            want: told of another ISR that a partition should have.
        """
        self._image = image
        self._await_disk = await_disk
        self._guard = guard
        self._want = want

    def may_join(self, replica_id: int, broker_epoch: int) -> bool:
        """Rule 1."""
        broker = self._image().brokers.get(replica_id)
        return broker is not None and broker.is_active and broker_epoch in (-1, broker.epoch)

    def caught_up(self, partition: Partition, replica_id: int) -> None:
        """A follower that may join has fetched."""
        self._propose(partition, partition.isr_with(replica_id))

    def look_for_joiners(self, partition: Partition, mono_ms: int, max_lag_ms: int) -> None:
        """The metadata may allow now what a follower's last fetch called for (rule 2)."""
        for replica_id, follower in partition.followers.items():
            keeps_up = follower.is_within(mono_ms, max_lag_ms)
            if keeps_up and replica_id not in partition.isr and self.may_join(replica_id, follower.broker_epoch):
                self._propose(partition, partition.isr_with(replica_id))

    def look_for_laggards(self, partition: Partition, mono_ms: int, max_lag_ms: int) -> None:
        """Have followers that fell behind leave."""
        try:
            isr = partition.isr_without_laggards(mono_ms, max_lag_ms, may_block=False)
        except WouldBlock as blocked:
            self._await_disk(partition, blocked, lambda: self.look_for_laggards(partition, mono_ms, max_lag_ms))
        except StorageError as error:
            self._guard(partition, error)
        except KafkaError:
            _log.exception("the ISR of %s cannot be checked", partition)
        else:
            self._propose(partition, isr)

    def _propose(self, partition: Partition, isr: tuple[int, ...] | None) -> None:
        if isr is not None:
            self._want(partition, isr)
