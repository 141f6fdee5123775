"""Writes transaction markers into partitions that this broker leads.

RULES    1. A deleted partition needs no marker; a failed write returns its error.
         2. In `__consumer_offsets` the group coordinator appends the marker and applies it to pending offsets.
         3. From transaction version 2 on a marker's epoch is above that of the records. A marker with a lower or equal epoch
            is a late one of an earlier transaction and is rejected (KIP-1228).
NOT HERE The decision (`transaction_coordinator.py`), partitions of other leaders (`txn_marker_channel.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from broker.coordinators.group_coordinator import OFFSETS_TOPIC, GroupCoordinator
from broker.coordinators.runtime.coordinator_runtime import CoordinatorRuntime, ShardState
from broker.coordinators.transactions.transaction import TV_2, TopicPartition
from broker.coordinators.transactions.transaction_coordinator import Marker, OnMarkerWritten
from broker.coordinators.transactions.transaction_verification import TransactionVerification
from protocol.errors import ErrorCode, KafkaError
from protocol.records import ControlType, end_txn_marker
from replication.completion import Completion
from replication.partition.partition import ACKS_ALL, Partition
from replication.partition.replica_manager import ReplicaManager
from replication.timer_queue import Clock
from storage.io.disk_lookup import DiskLookup
from storage.log.log_validator import AppendOrigin

OnWritten = Callable[[ErrorCode], None]
_NONE: Final = ErrorCode.NONE


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

    def write(self, marker: Marker, partitions: Iterable[TopicPartition], done: OnMarkerWritten) -> None:
        """Write a marker into some partitions; deleted ones count as done."""
        batch = self._batch(marker)
        for key in partitions:
            topic = self._replicas.image.topics_by_name.get(key[0])
            if topic is None or key[1] not in topic.partitions:
                done(key, _NONE)
            else:
                self._write(marker, bytearray(batch), key, partial(done, key))

    def write_one(self, marker: Marker, key: TopicPartition, done: OnWritten) -> None:
        """Write a marker into one partition."""
        self._write(marker, self._batch(marker), key, done)

    def _write(self, marker: Marker, batch: bytearray, key: TopicPartition, done: OnWritten) -> None:
        def write(partition: Partition | ErrorCode) -> None:
            if not isinstance(partition, Partition):
                done(partition)
            elif _is_late(marker, partition):
                done(ErrorCode.INVALID_PRODUCER_EPOCH)
            else:
                self._verification.on_marker(key, marker)
                if key[0] == OFFSETS_TOPIC:
                    self._end_in_group(marker, batch, key[1], done)
                else:
                    self._append(batch, key, done)

        with_open_log(self._replicas, key, write)

    def _batch(self, marker: Marker) -> bytearray:
        return end_txn_marker(
            ControlType.COMMIT if marker.is_commit else ControlType.ABORT,
            producer_id=marker.producer_id,
            producer_epoch=marker.epoch,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp_ms=self._clock.wall_ms(),
        )

    def _append(self, batch: bytearray, key: TopicPartition, done: OnWritten) -> None:
        append = self._replicas.append(
            *key,
            batch,
            acks=ACKS_ALL,
            wall_ms=self._clock.wall_ms(),
            origin=AppendOrigin.COORDINATOR,
        )
        append.then(lambda _: done(append.error_code))

    def _end_in_group(self, marker: Marker, batch: bytearray, index: int, done: OnWritten) -> None:
        shard = self._groups.shards.get(index)
        if shard is None or shard.state is not ShardState.ACTIVE:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # WriteTxnMarkers has partition errors, no coordinator errors
            return
        commit = shard.end_transaction(batch, marker.producer_id, is_commit=marker.is_commit)
        commit.then(done)


def with_open_log(replicas: ReplicaManager, key: TopicPartition, then: Callable[[Partition | ErrorCode], None]) -> None:
    """Call `then` with a partition of this broker after its log is open, or with the error."""

    def on_open(opened: Completion[Partition]) -> None:
        then(opened.error.code if isinstance(opened.error, KafkaError) else opened.result())

    replicas.lookup(*key, _open).then(on_open)


def _open(partition: Partition) -> Partition | DiskLookup:
    return partition.log.opening() or partition


def _is_late(marker: Marker, partition: Partition) -> bool:
    """Whether the marker belongs to an earlier transaction (rule 3)."""
    producer = partition.log.producers.producers.get(marker.producer_id)
    return (
        marker.version >= TV_2
        and producer is not None
        and producer.txn_first_offset >= 0
        and marker.epoch <= producer.epoch
    )
