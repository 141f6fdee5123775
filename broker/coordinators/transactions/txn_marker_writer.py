"""Writes the markers of ended transactions into the partitions that are led here.

RULES    1. A partition that no longer exists needs no marker; one that cannot be written to now answers why.
         2. In `__consumer_offsets` the group coordinator takes the marker, for offsets wait for it.
         3. With transactions of version 2 a marker's epoch is above that of the records that it ends. One that is not
            belongs to an earlier transaction, came late, and must not end the one that is open now (KIP-1228).
NOT HERE Who decides (`transaction_coordinator.py`). Partitions that other brokers lead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from broker.coordinators.group_coordinator import OFFSETS_TOPIC, GroupCoordinator
from broker.coordinators.runtime.coordinator_runtime import Clock, CoordinatorRuntime, ShardState
from broker.coordinators.transactions.transaction import WITH_BUMPS, TopicPartition
from broker.coordinators.transactions.transaction_coordinator import Marker, MarkerDone
from broker.coordinators.transactions.transaction_verification import Admission
from protocol.errors import ErrorCode, KafkaError
from protocol.records import ControlType, end_txn_marker
from replication.partition.partition import ACKS_ALL, Partition
from replication.partition.replica_manager import ReplicaManager
from storage.io.disk import StorageError
from storage.io.would_block import WouldBlock
from storage.log.log import AppendInfo
from storage.log.log_validator import Origin

MarkerReport = Callable[[ErrorCode], None]
_NONE: Final = ErrorCode.NONE


class LocalMarkers:
    """Writes markers into partitions of this broker."""

    def __init__(
        self,
        replicas: ReplicaManager,
        groups: CoordinatorRuntime[GroupCoordinator],
        admission: Admission,
        clock: Clock,
    ) -> None:
        self._replicas = replicas
        self._groups = groups
        self._admission = admission
        self._clock = clock

    def write(self, marker: Marker, partitions: Iterable[TopicPartition], done: MarkerDone) -> None:
        """Write a marker into some partitions; those that are no more count as done."""
        batch = self._batch(marker)
        for key in partitions:
            topic = self._replicas.image.topics_by_name.get(key[0])
            if topic is None or key[1] not in topic.partitions:
                done(key, _NONE)
            else:
                self._write(marker, bytearray(batch), key, partial(done, key))

    def write_one(self, marker: Marker, key: TopicPartition, done: MarkerReport) -> None:
        """Write a marker into one partition."""
        self._write(marker, self._batch(marker), key, done)

    def _write(self, marker: Marker, batch: bytearray, key: TopicPartition, done: MarkerReport) -> None:
        def write(partition: Partition | ErrorCode) -> None:
            if not isinstance(partition, Partition):
                done(partition)
            elif _is_late(marker, partition):
                done(ErrorCode.INVALID_PRODUCER_EPOCH)
            else:
                self._admission.ends(key, marker)
                if key[0] == OFFSETS_TOPIC:
                    self._end_in_group(marker, batch, key[1], done)
                else:
                    self._append(batch, key, done)

        when_open(self._replicas, key, write)

    def _batch(self, marker: Marker) -> bytearray:
        return end_txn_marker(
            ControlType.COMMIT if marker.is_commit else ControlType.ABORT,
            producer_id=marker.producer_id,
            producer_epoch=marker.epoch,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp_ms=self._clock.wall_ms(),
        )

    def _append(self, batch: bytearray, key: TopicPartition, done: MarkerReport) -> None:
        def report(code: ErrorCode, _info: AppendInfo | None, _error: KafkaError | None) -> None:
            done(code)

        self._replicas.append(
            *key,
            batch,
            acks=ACKS_ALL,
            wall_ms=self._clock.wall_ms(),
            done=report,
            origin=Origin.COORDINATOR,
        )

    def _end_in_group(self, marker: Marker, batch: bytearray, index: int, done: MarkerReport) -> None:
        shard = self._groups.shards.get(index)
        if shard is None or shard.state is not ShardState.ACTIVE:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # whoever writes markers knows of partitions, not of coordinators
            return
        commit = shard.end_transaction(batch, marker.producer_id, is_commit=marker.is_commit)
        commit.then(done)


def when_open(replicas: ReplicaManager, key: TopicPartition, then: Callable[[Partition | ErrorCode], None]) -> None:
    """Call `then` with a partition of this broker whose log is open, perhaps at once, or with what is wrong."""
    try:
        partition = replicas.find(*key)
    except KafkaError as error:
        then(error.code)
        return
    try:
        partition.log.open(may_block=False)
    except WouldBlock as blocked:
        replicas.await_disk(partition, blocked, lambda: when_open(replicas, key, then))
    except StorageError as failure:
        replicas.directory_failed(partition.log.directory, failure)
        then(ErrorCode.KAFKA_STORAGE_ERROR)
    except KafkaError as error:
        then(error.code)
    else:
        then(partition)


def _is_late(marker: Marker, partition: Partition) -> bool:
    """Rule 3."""
    known = partition.log.producers.producers.get(marker.producer_id)
    return (
        marker.version >= WITH_BUMPS
        and known is not None
        and known.txn_first_offset >= 0
        and marker.epoch <= known.epoch
    )
