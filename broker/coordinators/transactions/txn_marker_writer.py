"""Writes transaction markers into partitions that this broker leads.

RULES    1. A deleted partition needs no marker; a failed write returns its error.
         2. In `__consumer_offsets` the group coordinator appends the marker and applies it to pending offsets.
         3. From transaction version 2 on a marker's epoch is above that of the records. A marker with a lower or equal epoch
            is a late one of an earlier transaction and is rejected (KIP-1228).
NOT HERE The decision (`transaction_coordinator.py`), partitions of other leaders (`txn_marker_channel.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.coordinators.group_coordinator import OFFSETS_TOPIC, GroupCoordinator
from broker.coordinators.runtime.coordinator_runtime import Commit, CoordinatorRuntime
from broker.coordinators.runtime.partition_writer import append
from broker.coordinators.transactions.transaction import TV_2, TopicPartition
from broker.coordinators.transactions.transaction_coordinator import Marker, WrittenMarkers
from broker.coordinators.transactions.transaction_verification import TransactionVerification
from protocol.errors import ErrorCode, KafkaError
from protocol.records import ControlType, end_txn_marker
from replication.completion import Completion, completed, failed
from replication.partition.partition import Partition
from replication.partition.replica_manager import ReplicaManager
from replication.timer_queue import Clock
from storage.io.disk_lookup import DiskLookup


class TxnMarkerWriter:
    """Writes markers into partitions of this broker."""

    def __init__(
        self,
        replicas: ReplicaManager,
        groups: CoordinatorRuntime[GroupCoordinator],
        verification: TransactionVerification,
        clock: Clock,
    ) -> None:
        self._replicas = replicas
        self._groups = groups
        self._verification = verification
        self._clock = clock

    def write(self, marker: Marker, partitions: Iterable[TopicPartition]) -> WrittenMarkers:
        """Write a marker into some partitions; deleted ones count as done."""
        batch = self._batch(marker)
        written: WrittenMarkers = {}
        for key in partitions:
            topic = self._replicas.image.topics_by_name.get(key[0])
            is_deleted = topic is None or key[1] not in topic.partitions
            written[key] = completed(None) if is_deleted else self._write(marker, bytearray(batch), key)
        return written

    def write_one(self, marker: Marker, key: TopicPartition) -> Commit:
        """Write a marker into one partition."""
        return self._write(marker, self._batch(marker), key)

    def _write(self, marker: Marker, batch: bytearray, key: TopicPartition) -> Commit:
        def write(partition: Partition) -> Commit:
            if _is_late(marker, partition):
                return failed(KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH))
            self._verification.on_marker(key, marker)
            if key[0] != OFFSETS_TOPIC:
                return append(self._replicas, key, batch, self._clock.wall_ms())
            is_commit = marker.is_commit
            return self._groups.end_transaction(key[1], batch, marker.producer_id, is_commit=is_commit)

        return open_partition(self._replicas, key).compose(write)

    def _batch(self, marker: Marker) -> bytearray:
        return end_txn_marker(
            ControlType.COMMIT if marker.is_commit else ControlType.ABORT,
            producer_id=marker.producer_id,
            producer_epoch=marker.epoch,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp_ms=self._clock.wall_ms(),
        )


def open_partition(replicas: ReplicaManager, key: TopicPartition) -> Completion[Partition]:
    """A partition of this broker after its log is open; the error is a KafkaError."""

    def open_log(partition: Partition) -> Partition | DiskLookup:
        return partition.log.opening() or partition

    return replicas.lookup(*key, open_log)


def _is_late(marker: Marker, partition: Partition) -> bool:
    """Whether the marker belongs to an earlier transaction (rule 3)."""
    producer = partition.log.producers.producers.get(marker.producer_id)
    return (
        marker.version >= TV_2
        and producer is not None
        and producer.txn_first_offset >= 0
        and marker.epoch <= producer.epoch
    )
