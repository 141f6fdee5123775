"""Verifies that a partition is part of an open transaction before its first records are appended (KIP-890).

RULES    1. A partition with records of the current transaction needs no verification. Else the coordinator verifies that the
            partition is part of the transaction, or adds it (producers of version 2).
         2. A marker that is written during a verification fails it with INVALID_TXN_STATE: records appended after the marker
            would never be completed. The marker of the previous transaction does not count; since version 2 it has the epoch
            of the next transaction and can arrive while a request to a remote coordinator is queued.
         3. Verifications of one producer complete in order, also those without a query, so its batches keep their order. After
            a batch was rejected, later batches are rejected until the first one is retried, unless the leader epoch has
            changed: another leader may have appended it.
         4. Errors unknown to older producers are mapped to retriable ones.
         5. A later epoch in the partition's producer state is rejected without a query.
NOT HERE The coordinator's decision (`transaction_coordinator.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from broker.coordinators.runtime.coordinator_runtime import CoordinatorRuntime
from broker.coordinators.transactions.remote_verification import RemoteVerification
from broker.coordinators.transactions.transaction import TV_2, ProducerIdAndEpoch, TopicPartition
from broker.coordinators.transactions.transaction_coordinator import Marker, ProducerIdResult, TransactionCoordinator
from protocol.errors import ErrorCode, KafkaError
from protocol.records import NO_SEQUENCE
from replication.completion import Completion, completed
from replication.partition.follower_progress import NO_EPOCH
from replication.partition.replica_manager import ReplicaManager
from replication.timer_queue import Clock, TimerQueue
from storage.log.producer_state import ProducerEntry

_NONE: Final = ErrorCode.NONE


class TransactionSupport(IntEnum):
    """What the producer supports, by its request version (Kafka: TransactionSupportedOperation)."""

    DEFAULT_ERROR = 0
    """It adds partitions itself and does not know TRANSACTION_ABORTABLE."""
    GENERIC_ERROR_SUPPORTED = 1
    ADD_PARTITION = 2
    """Its records add their partitions."""

    @classmethod
    def of_version(cls, version: int, *, generic_error: int, add_partition: int) -> TransactionSupport:
        """The support of a request version; both features have a first version."""
        return cls((version >= generic_error) + (version >= add_partition))


MAX_REJECTED: Final = 10_000
"""Limit for the remembered rejections."""

PartitionErrors = dict[TopicPartition, KafkaError]
Sequences = Mapping[TopicPartition, int]
"""First sequence number of the batch per partition."""


class _RejectedRecords(NamedTuple):
    """Rejected batches of one producer in one partition."""

    epoch: int
    lowest_sequence: int
    """The lowest of their first sequence numbers."""
    leader_epoch: int


class _PendingVerification(NamedTuple):
    """A verification that waits for the coordinator."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    partitions: Sequences
    support: TransactionSupport
    verified: Completion[PartitionErrors]
    until_mono_ms: int
    errors: PartitionErrors
    with_marker: set[TopicPartition]
    """Partitions with a marker since the query (rule 2)."""


class TransactionVerification:
    """Verifies partitions at the local or a remote coordinator."""

    def __init__(
        self,
        replicas: ReplicaManager,
        coordinator: CoordinatorRuntime[TransactionCoordinator],
        timers: TimerQueue,
        clock: Clock,
        remote: RemoteVerification,
        *,
        is_enabled: bool = True,
        retry_ms: int = 20,
        max_wait_ms: int = 100,
    ) -> None:
        """Verify partitions of `replicas`.

        Without `is_enabled` producers of old versions are not verified. CONCURRENT_TRANSACTIONS is retried
        every `retry_ms` for at most `max_wait_ms` (version 2).
        """
        self._replicas = replicas
        self._coordinator = coordinator
        self._timers = timers
        self._clock = clock
        self._remote = remote
        self.is_enabled = is_enabled
        """transaction.partition.verification.enable; dynamic."""
        self._retry_ms = retry_ms
        self._max_wait_ms = max_wait_ms
        self._pending: dict[int, deque[_PendingVerification]] = {}  # by producer id; the first one is in progress
        self._rejected: dict[tuple[TopicPartition, int], _RejectedRecords] = {}
        """Rejected batches by partition and producer id (rule 3)."""

    def verify(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequences,
        support: TransactionSupport,
    ) -> Completion[PartitionErrors]:
        """The errors of partitions that must not be written."""
        if support < TransactionSupport.ADD_PARTITION and not self.is_enabled:
            return completed({})
        waiting = self._pending.get(producer.producer_id)
        errors, unverified = self._unverified(producer, partitions)
        if not unverified and waiting is None:
            return completed(errors)
        until_mono_ms = self._clock.mono_ms() + self._max_wait_ms
        verified: Completion[PartitionErrors] = Completion()
        to_verify = unverified if waiting is None else partitions  # `_start` looks again when its turn comes
        pending = _PendingVerification(
            transactional_id, producer, to_verify, support, verified, until_mono_ms, errors, set()
        )
        if waiting is None:
            self._pending[producer.producer_id] = deque([pending])
            self._query(pending)
        else:
            waiting.append(pending)
        return verified

    def _unverified(
        self, producer: ProducerIdAndEpoch, partitions: Sequences
    ) -> tuple[PartitionErrors, dict[TopicPartition, int]]:
        """The errors of partitions with a later epoch (rule 5), and the partitions to verify (rule 1)."""
        errors: PartitionErrors = {}
        unverified: dict[TopicPartition, int] = {}
        for key, sequence in partitions.items():
            state = self._producer_state(key, producer)
            if state is not None and state.epoch > producer.epoch:
                errors[key] = KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)
            elif state is None or state.txn_first_offset < 0 or state.epoch != producer.epoch:
                unverified[key] = sequence
        return errors, unverified

    def _start(self, producer_id: int) -> None:
        """Start the next verification of a producer; partitions may have changed while it waited for its turn."""
        waiting = self._pending[producer_id]
        errors, unverified = self._unverified(waiting[0].producer, waiting[0].partitions)
        pending = waiting[0] = waiting[0]._replace(partitions=unverified, errors=errors)
        if unverified:
            self._query(pending)
        else:
            self._complete(pending, {})

    def on_marker(self, partition: TopicPartition, marker: Marker) -> None:
        """A marker is about to be appended (rule 2)."""
        producer_id = marker.producer_id
        for pending in self._pending.get(producer_id, ()):
            if not _is_of_previous_transaction(marker, pending.producer.epoch):
                pending.with_marker.add(partition)
        rejected = self._rejected.get((partition, producer_id))
        if rejected is not None and not _is_of_previous_transaction(marker, rejected.epoch):
            del self._rejected[partition, producer_id]

    def _producer_state(self, key: TopicPartition, producer: ProducerIdAndEpoch) -> ProducerEntry | None:
        """The producer's state in the partition after all that is being written, if the log is open."""
        partition = self._replicas.partitions.get(key)
        if partition is None or partition.log.opened is None:
            return None
        return partition.log.opened.producers.latest(producer.producer_id)

    def _query(self, pending: _PendingVerification) -> None:
        """Query the coordinator, on this broker or another one."""
        pending.with_marker.clear()  # earlier markers do not affect this query
        name, producer, partitions = pending.transactional_id, pending.producer, pending.partitions
        adds = pending.support is TransactionSupport.ADD_PARTITION
        remote_id = self._remote.coordinator_of(name)
        results: Completion[dict[TopicPartition, ErrorCode]]
        if remote_id >= 0:
            results = self._remote.verify(remote_id, name, producer, partitions, adds=adds)
        elif adds:
            added = self._coordinator.write(
                name, lambda coordinator: coordinator.add(name, producer, partitions, TV_2), ProducerIdResult
            )
            results = added.map(lambda result: dict.fromkeys(partitions, result.error))
        else:
            results = self._coordinator.read(
                name,
                lambda coordinator: coordinator.verify(name, producer, partitions),
                lambda error: dict.fromkeys(partitions, error),
            )
        results.then(lambda done: self._on_results(pending, done.result()))

    def _on_results(self, pending: _PendingVerification, results: Mapping[TopicPartition, ErrorCode]) -> None:
        adds = pending.support is TransactionSupport.ADD_PARTITION
        if not adds or not self._schedules_retry(pending, results.values()):
            self._complete(pending, results)

    def _schedules_retry(self, pending: _PendingVerification, results: Iterable[ErrorCode]) -> bool:
        """Schedule a retry while the previous transaction is being completed."""
        now_ms = self._clock.mono_ms()
        if now_ms >= pending.until_mono_ms or ErrorCode.CONCURRENT_TRANSACTIONS not in results:
            return False
        self._timers.schedule(now_ms + self._retry_ms, lambda: self._query(pending))
        return True

    def _complete(self, pending: _PendingVerification, results: Mapping[TopicPartition, ErrorCode]) -> None:
        errors = pending.errors
        for key, sequence in pending.partitions.items():
            result = results[key]
            if result is _NONE and key in pending.with_marker:
                result = ErrorCode.INVALID_TXN_STATE
            if result is _NONE and not self._is_in_order(pending.producer, key, sequence):
                result = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            if result is not _NONE:
                errors[key] = _client_error(result, pending.support)
                self._record_rejection(pending.producer, key, sequence)
        pending.verified.complete(errors)
        producer_id = pending.producer.producer_id
        waiting = self._pending[producer_id]
        waiting.popleft()
        if waiting:
            self._start(producer_id)
        else:
            del self._pending[producer_id]

    # ---- order of rejected batches (rule 3)

    def _is_in_order(self, producer: ProducerIdAndEpoch, key: TopicPartition, sequence: int) -> bool:
        """Whether no earlier batch is missing (rule 3)."""
        if sequence > self._lowest_sequence(producer, key, sequence):
            return False
        self._rejected.pop((key, producer.producer_id), None)
        return True

    def _lowest_sequence(self, producer: ProducerIdAndEpoch, key: TopicPartition, sequence: int) -> int:
        """The lowest first sequence of this batch and the rejected ones of the same producer and leader epoch."""
        rejected = self._rejected.get((key, producer.producer_id))
        if rejected is None or (rejected.epoch, rejected.leader_epoch) != (producer.epoch, self._leader_epoch(key)):
            return sequence
        return min(rejected.lowest_sequence, sequence)

    def _record_rejection(self, producer: ProducerIdAndEpoch, key: TopicPartition, sequence: int) -> None:
        rejected_key = key, producer.producer_id
        rejected = self._rejected.get(rejected_key)
        if sequence == NO_SEQUENCE or (rejected is not None and rejected.epoch > producer.epoch):
            return
        lowest_sequence = self._lowest_sequence(producer, key, sequence)
        self._rejected[rejected_key] = _RejectedRecords(producer.epoch, lowest_sequence, self._leader_epoch(key))
        if len(self._rejected) > MAX_REJECTED:
            del self._rejected[next(iter(self._rejected))]

    def _leader_epoch(self, key: TopicPartition) -> int:
        partition = self._replicas.partitions.get(key)
        return NO_EPOCH if partition is None else partition.leader_epoch


def _is_of_previous_transaction(marker: Marker, epoch: int) -> bool:
    """Whether the marker completes the transaction before the one with this epoch."""
    return marker.version >= TV_2 and epoch == marker.epoch


def _client_error(result: ErrorCode, support: TransactionSupport) -> KafkaError:
    """The error for the client (rule 4)."""
    if result is ErrorCode.PRODUCER_FENCED:
        return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)
    adds = support is TransactionSupport.ADD_PARTITION
    if result in _RETRIABLE and not (adds and result is ErrorCode.CONCURRENT_TRANSACTIONS):
        text = f"Unable to verify the partition has been added to the transaction. Underlying error: {result.name}"
        return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, text)
    if result is ErrorCode.TRANSACTION_ABORTABLE and support is TransactionSupport.DEFAULT_ERROR:
        result = ErrorCode.INVALID_TXN_STATE
    if result is ErrorCode.INVALID_TXN_STATE:
        return KafkaError(result, "Partition was not added to the transaction")
    return KafkaError(result)


_RETRIABLE: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
