"""Writes transaction markers: into partitions that this broker leads, and through the other leaders.

RULES    1. A deleted partition needs no marker; a failed write has a KafkaError.
         2. In `__consumer_offsets` the group coordinator appends the marker and applies it to pending offsets.
         3. From transaction version 2 on a marker's epoch is above that of the records. A marker with a lower or equal epoch
            is a late one of an earlier transaction and is rejected (KIP-1228). Not so with the last epoch of all, above which
            there is none: Apache Kafka ends a transaction in this way that a producer has begun with it by mistake.
         4. One request per leader. A missing response counts as NOT_LEADER_OR_FOLLOWER: the coordinator retries and looks up
            the leader again.
NOT HERE The decision and retries (`transaction_coordinator.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker.coordinators.group_coordinator import OFFSETS_TOPIC, GroupCoordinator
from broker.coordinators.runtime.coordinator_runtime import Commit, CoordinatorRuntime
from broker.coordinators.runtime.partition_writer import append
from broker.coordinators.transactions.remote_verification import SendToBroker
from broker.coordinators.transactions.transaction import FENCING_EPOCH, TV_2, TopicPartition
from broker.coordinators.transactions.transaction_coordinator import Marker, WrittenMarkers
from broker.coordinators.transactions.transaction_verification import TransactionVerification
from protocol.control_records import ControlType, end_txn_marker
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.common import PartitionIndexes
from protocol.messages.transactions import (
    WritableTxnMarker,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from protocol.schema import Message
from replication.completion import Completion, completed, failed
from replication.partition.partition import Partition
from replication.partition.replica_manager import ReplicaManager
from replication.timer_queue import Clock
from storage.io.disk_lookup import DiskLookup

_NO_LEADER: Final = -1


class TxnMarkerWriter:
    """Writes markers on this broker and sends them to others (Kafka: TransactionMarkerChannelManager)."""

    def __init__(
        self,
        broker_id: int,
        replicas: ReplicaManager,
        groups: CoordinatorRuntime[GroupCoordinator],
        verification: TransactionVerification,
        clock: Clock,
        send: SendToBroker,
    ) -> None:
        self._broker_id = broker_id
        self._replicas = replicas
        self._groups = groups
        self._verification = verification
        self._clock = clock
        self._send = send

    def write(self, marker: Marker, partitions: Iterable[TopicPartition]) -> WrittenMarkers:
        """Write a marker into some partitions of any leader; returns the result of each."""
        written: WrittenMarkers = {}
        by_leader: dict[int, list[TopicPartition]] = {}
        topics = self._replicas.image.topics_by_name
        for key in partitions:
            topic = topics.get(key[0])
            state = None if topic is None else topic.partitions.get(key[1])
            if state is None:
                written[key] = completed(None)
            elif state.leader == self._broker_id:
                written[key] = self.write_one(marker, key)
            elif state.leader == _NO_LEADER:
                written[key] = failed(KafkaError(ErrorCode.LEADER_NOT_AVAILABLE))
            else:
                by_leader.setdefault(state.leader, []).append(key)
        for leader_id, led in by_leader.items():
            written |= self._send_marker(leader_id, marker, led)
        return written

    def write_one(self, marker: Marker, key: TopicPartition) -> Commit:
        """Write a marker into one partition of this broker."""

        def write(partition: Partition) -> Commit:
            if _is_late(marker, partition):
                return failed(KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH))
            self._verification.on_marker(key, marker)
            wall_ms = self._clock.wall_ms()
            batch = end_txn_marker(
                ControlType.COMMIT if marker.is_commit else ControlType.ABORT,
                producer_id=marker.producer_id,
                producer_epoch=marker.epoch,
                coordinator_epoch=marker.coordinator_epoch,
                timestamp_ms=wall_ms,
            )
            if key[0] != OFFSETS_TOPIC:
                return append(self._replicas, key, batch, wall_ms)
            return self._groups.end_transaction(key[1], batch, marker.producer_id, is_commit=marker.is_commit)

        return open_partition(self._replicas, key).compose(write)

    def _send_marker(self, leader_id: int, marker: Marker, partitions: list[TopicPartition]) -> WrittenMarkers:
        written: WrittenMarkers = {partition: Completion() for partition in partitions}
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        entry = WritableTxnMarker(
            producer_id=marker.producer_id,
            producer_epoch=marker.epoch,
            transaction_result=marker.is_commit,
            topics=[PartitionIndexes(name=name, partition_indexes=indexes) for name, indexes in topics.items()],
            coordinator_epoch=marker.coordinator_epoch,
            transaction_version=marker.version,
        )

        def on_response(response: Completion[Message | None]) -> None:
            codes = _codes(response.result())
            for partition, result in written.items():
                code = codes.get(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                if code is ErrorCode.NONE:
                    result.complete(None)
                else:
                    result.fail(KafkaError(code))

        self._send(leader_id, WriteTxnMarkersRequest(markers=[entry])).then(on_response)
        return written


def open_partition(replicas: ReplicaManager, key: TopicPartition) -> Completion[Partition]:
    """A partition of this broker after its log is open; the error is a KafkaError."""

    def open_log(partition: Partition) -> Partition | DiskLookup:
        return partition if partition.log.is_open else partition.log.open_lookup()

    return replicas.lookup(*key, open_log)


def _is_late(marker: Marker, partition: Partition) -> bool:
    """Whether the marker belongs to an earlier transaction (rule 3)."""
    producer = partition.log.open().producers.latest(marker.producer_id)
    return (
        marker.version >= TV_2
        and producer is not None
        and producer.txn_first_offset >= 0
        and marker.epoch <= producer.epoch
        and not marker.epoch == producer.epoch == FENCING_EPOCH
    )


def _codes(response: Message | None) -> dict[TopicPartition, ErrorCode]:
    if not isinstance(response, WriteTxnMarkersResponse):
        return {}
    return {
        (topic.name, one.partition_index): ErrorCode(one.error_code)
        for marker in response.markers
        for topic in marker.topics
        for one in topic.partitions
    }
