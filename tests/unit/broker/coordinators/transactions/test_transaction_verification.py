"""Transaction verification, and markers in real partitions."""

from __future__ import annotations

from typing import Any

import pytest

from broker.coordinators.runtime.coordinator_runtime import ShardState, error_code
from broker.coordinators.runtime.java_compat import abs_hash
from broker.coordinators.transactions.remote_verification import RemoteVerification
from broker.coordinators.transactions.transaction import ProducerIdAndEpoch
from broker.coordinators.transactions.transaction_coordinator import TRANSACTIONS_TOPIC, Marker
from broker.coordinators.transactions.transaction_verification import (
    PartitionErrors,
    TransactionSupport,
    TransactionVerification,
)
from broker.coordinators.transactions.txn_marker_writer import TxnMarkerWriter
from protocol.errors import ErrorCode
from protocol.messages.common import PartitionError, Topic
from protocol.messages.transactions import (
    WritableTxnMarkerResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from replication.completion import Completion
from tests.support.group_harness import NODE, LocalGroupHarness, no_other_broker
from tests.support.replica_harness import NOW_MS, HeldIoExecutor, ReplicaHarness, batch
from tests.unit.broker.coordinators.transactions.test_transaction_coordinator import add, begin, end, harness

T0 = ("t", 0)


class Rig:
    """A transaction coordinator, and partitions of another harness, connected by a TransactionVerification."""

    def __init__(self, path: Any, worker: HeldIoExecutor | None = None) -> None:
        self.coordinator: LocalGroupHarness = harness()
        self.partitions = ReplicaHarness(path, worker=worker)
        self.partitions.create("t", 2)
        self.verification = TransactionVerification(
            self.partitions.replicas,
            self.coordinator.transactions,
            self.coordinator.clock.timers,
            self.coordinator.clock,
            RemoteVerification(NODE, lambda: self.coordinator.holder.image, no_other_broker),
        )
        groups, clock = self.coordinator.runtime, self.coordinator.clock
        self.markers = TxnMarkerWriter(
            NODE, self.partitions.replicas, groups, self.verification, clock, no_other_broker
        )
        self.log = self.coordinator.transaction_logs[abs_hash("tx") % 5]
        self.results: list[dict[tuple[str, int], ErrorCode]] = []
        self.sentences: list[str | None] = []

    def verify(
        self,
        producer: tuple[int, int],
        support: TransactionSupport = TransactionSupport.ADD_PARTITION,
        *partitions: tuple[str, int],
        sequence: int = 0,
    ) -> dict[tuple[str, int], ErrorCode] | None:
        """Verify; the result if it is known at once."""
        before = len(self.results)
        sequences = dict.fromkeys(partitions or (T0,), sequence)
        verified = self.verification.verify("tx", ProducerIdAndEpoch(*producer), sequences, support)
        verified.then(lambda done: self.on_verified(done.result()))
        return self.results[before] if len(self.results) > before else None

    def on_verified(self, errors: PartitionErrors) -> None:
        """Store a result."""
        self.results.append({key: error.code for key, error in errors.items()})
        self.sentences = [error.message for error in errors.values()]

    def append(self, producer: tuple[int, int], sequence: int = 0, worker: HeldIoExecutor | None = None) -> None:
        """Append transactional records; `worker` writes them."""
        records = batch(producer_id=producer[0], producer_epoch=producer[1], base_sequence=sequence, transactional=True)
        append = self.partitions.replicas.appender.append("t", 0, records, acks=-1, wall_ms=NOW_MS)
        if worker is not None:
            worker.let_write()
        assert (append.is_done, append.error) == (True, None)

    def mark(self, producer: tuple[int, int], *, version: int = 2, **marker: Any) -> ErrorCode:
        """Write a marker."""
        fields = {"is_commit": True, "coordinator_epoch": 0, **marker}
        return error_code(self.markers.write_one(Marker(*producer, **fields, version=version), T0))


@pytest.fixture
def rig(tmp_path: Any) -> Rig:
    return Rig(tmp_path)


@pytest.mark.parametrize(
    ("support", "error"),
    [
        (TransactionSupport.DEFAULT_ERROR, ErrorCode.INVALID_TXN_STATE),
        (TransactionSupport.GENERIC_ERROR_SUPPORTED, ErrorCode.TRANSACTION_ABORTABLE),
        (TransactionSupport.ADD_PARTITION, None),
    ],
)
def test_errors_depend_on_the_producers_support(rig: Rig, support: TransactionSupport, error: ErrorCode | None) -> None:
    producer = begin(rig.coordinator)
    assert rig.verify(producer, support) == ({} if error is None else {T0: error})
    add(rig.coordinator, producer, 0)
    assert rig.verify(producer, support) == {}
    assert rig.verify((producer[0], 7), support) == {T0: ErrorCode.INVALID_PRODUCER_EPOCH}


def test_a_partition_with_records_of_the_transaction_needs_no_verification(rig: Rig) -> None:
    producer = begin(rig.coordinator)
    assert rig.verify(producer) == {}
    rig.append(producer)
    rig.coordinator.transactions.close()
    assert rig.verify(producer) == {}
    assert rig.verify(producer, TransactionSupport.ADD_PARTITION, T0, ("t", 1)) == {
        ("t", 1): ErrorCode.NOT_ENOUGH_REPLICAS
    }
    assert rig.mark((producer[0], 1)) is ErrorCode.NONE
    assert rig.verify((producer[0], 1)) == {T0: ErrorCode.NOT_ENOUGH_REPLICAS}


def test_without_verification_old_producers_are_not_checked(rig: Rig) -> None:
    producer = begin(rig.coordinator)
    rig.verification.is_enabled = False
    assert rig.verify((producer[0], 5), TransactionSupport.DEFAULT_ERROR) == {}
    assert rig.verify((producer[0], 5)) == {T0: ErrorCode.INVALID_PRODUCER_EPOCH}


def test_a_marker_during_a_verification_fails_it(rig: Rig) -> None:
    producer = begin(rig.coordinator)
    rig.log.is_holding = True
    assert rig.verify(producer, TransactionSupport.ADD_PARTITION, T0, ("t", 1)) is None
    assert rig.mark((producer[0], 1), is_commit=False) is ErrorCode.NONE
    rig.log.release()
    assert rig.results == [{T0: ErrorCode.INVALID_TXN_STATE}]


def test_the_previous_marker_during_a_retry_does_not_fail_the_verification(rig: Rig) -> None:
    producer = begin(rig.coordinator)
    add(rig.coordinator, producer, 0)
    rig.append(producer)
    rig.coordinator.data.refusals[T0] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    _, next_producer = end(rig.coordinator, producer)
    assert rig.verify(next_producer) is None
    assert rig.mark(next_producer) is ErrorCode.NONE
    rig.coordinator.data.refusals.clear()
    rig.coordinator.advance(60)
    assert rig.results == []
    rig.coordinator.advance(60)
    assert rig.results == [{}]


def test_the_previous_marker_during_a_query_does_not_fail_the_verification(rig: Rig) -> None:
    producer = begin(rig.coordinator)
    add(rig.coordinator, producer, 0)
    rig.append(producer)
    _, next_producer = end(rig.coordinator, producer)
    rig.coordinator.advance(60)
    rig.log.is_holding = True
    assert rig.verify(next_producer) is None
    assert rig.mark(next_producer) is ErrorCode.NONE
    rig.log.release()
    assert rig.results == [{}]


def test_verifications_of_a_producer_complete_in_order(rig: Rig) -> None:
    producer = begin(rig.coordinator)
    add(rig.coordinator, producer, 0)
    rig.coordinator.data.refusals[T0] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    _, next_producer = end(rig.coordinator, producer)
    rig.coordinator.data.refusals.clear()
    rig.coordinator.advance(90)
    assert rig.verify(next_producer) is None  # it looks again after 20 ms
    rig.coordinator.advance(15)  # meanwhile the last transaction has ended
    assert rig.verify(next_producer, TransactionSupport.ADD_PARTITION, ("t", 1)) is None
    rig.coordinator.advance(10)
    assert rig.results == [{}, {}]


def test_a_batch_waits_for_an_earlier_one_that_is_verified_with_another_partition(rig: Rig) -> None:
    producer = begin(rig.coordinator)
    assert rig.verify(producer) == {}
    rig.append(producer)
    rig.log.is_holding = True
    assert rig.verify(producer, TransactionSupport.ADD_PARTITION, T0, ("t", 1), sequence=1) is None
    assert rig.verify(producer, sequence=2) is None
    rig.log.release()
    assert rig.results[1:] == [{}, {}]


def test_a_batch_that_waited_is_not_appended_behind_a_marker(rig: Rig) -> None:
    producer = begin(rig.coordinator)
    assert rig.verify(producer) == {}
    rig.append(producer)
    rig.log.is_holding = True
    assert rig.verify(producer, TransactionSupport.ADD_PARTITION, ("t", 1)) is None
    assert rig.verify(producer, sequence=1) is None
    assert rig.mark((producer[0], 1), is_commit=False) is ErrorCode.NONE
    rig.log.release()
    assert rig.results[1:] == [{}, {T0: ErrorCode.INVALID_PRODUCER_EPOCH}]


def test_a_later_epoch_in_the_partition_is_rejected_without_a_query(rig: Rig) -> None:
    rig.append((7, 3))
    rig.coordinator.transactions.close()
    assert rig.verify((7, 2), TransactionSupport.ADD_PARTITION, T0, ("t", 1)) == {
        T0: ErrorCode.INVALID_PRODUCER_EPOCH,
        ("t", 1): ErrorCode.NOT_ENOUGH_REPLICAS,
    }


def test_a_rejected_batch_must_be_retried_before_later_ones(rig: Rig) -> None:
    producer = begin(rig.coordinator)
    index = abs_hash("tx") % 5
    rig.coordinator.transactions.on_resignation(index)
    old = TransactionSupport.DEFAULT_ERROR
    assert rig.verify(producer, old, sequence=3) == {T0: ErrorCode.NOT_ENOUGH_REPLICAS}
    assert rig.sentences == [
        "Unable to verify the partition has been added to the transaction. Underlying error: NOT_COORDINATOR"
    ]
    assert rig.verify(producer, old, sequence=2) == {T0: ErrorCode.NOT_ENOUGH_REPLICAS}
    rig.coordinator.transactions.on_election(index, 7)
    rig.coordinator.advance(5)
    add(rig.coordinator, producer, 0)
    assert rig.verify(producer, old, sequence=3) == {T0: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}
    assert rig.verify(producer, old, sequence=2) == {}
    assert rig.verify(producer, old, sequence=3) == {}


def test_a_new_leader_epoch_clears_rejected_batches(rig: Rig) -> None:
    producer = begin(rig.coordinator)
    add(rig.coordinator, producer, 0)
    index = abs_hash("tx") % 5
    rig.coordinator.transactions.on_resignation(index)
    old = TransactionSupport.DEFAULT_ERROR
    assert rig.verify(producer, old, sequence=2) == {T0: ErrorCode.NOT_ENOUGH_REPLICAS}
    rig.coordinator.transactions.on_election(index, 7)
    rig.coordinator.advance(5)
    assert rig.verify(producer, old, sequence=3) == {T0: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}
    rig.partitions.partition().leader_epoch += 2
    assert rig.verify(producer, old, sequence=3) == {}


@pytest.mark.parametrize(("epoch", "version", "is_kept"), [(1, 2, True), (2, 2, False), (1, 0, False)])
def test_a_marker_clears_rejected_batches(rig: Rig, epoch: int, version: int, is_kept: bool) -> None:
    producer = begin(rig.coordinator)[0], 1
    rig.coordinator.transactions.close()
    assert rig.verify(producer, sequence=0) == {T0: ErrorCode.NOT_ENOUGH_REPLICAS}
    assert rig.mark((producer[0], epoch), version=version) is ErrorCode.NONE
    assert bool(rig.verification._rejected) is is_kept


def test_a_late_marker_does_not_end_the_next_transaction(rig: Rig) -> None:
    producer = begin(rig.coordinator)
    rig.append(producer)
    assert rig.mark(producer) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert rig.mark((producer[0], 1)) is ErrorCode.NONE
    assert rig.mark((producer[0], 1)) is ErrorCode.NONE
    rig.append((producer[0], 1))
    assert rig.mark((producer[0], 1)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert rig.mark((producer[0], 1), version=0) is ErrorCode.NONE


def test_a_late_marker_does_not_end_a_transaction_whose_first_records_are_being_written(tmp_path: Any) -> None:
    rig = Rig(tmp_path, worker := HeldIoExecutor())
    producer_id, _ = begin(rig.coordinator)
    records = batch(producer_id=producer_id, producer_epoch=1, base_sequence=0, transactional=True)
    append = rig.partitions.replicas.appender.append("t", 0, records, acks=-1, wall_ms=NOW_MS)
    assert not append.is_done
    assert rig.mark((producer_id, 1)) is ErrorCode.INVALID_PRODUCER_EPOCH
    worker.let_write()
    assert (append.error, worker.writes) == (None, [])


def test_records_are_verified_while_the_marker_before_them_is_being_written(tmp_path: Any) -> None:
    """Else a delayed request could append them behind it, in a transaction that has no end."""
    rig = Rig(tmp_path, worker := HeldIoExecutor())
    producer = begin(rig.coordinator)
    rig.append(producer, worker=worker)
    old = TransactionSupport.DEFAULT_ERROR
    assert rig.verify(producer, old, sequence=1) == {}
    rig.mark(producer, version=0)
    assert rig.verify(producer, old, sequence=1) == {T0: ErrorCode.INVALID_TXN_STATE}
    worker.let_write()
    assert rig.verify(producer, old, sequence=1) == {T0: ErrorCode.INVALID_TXN_STATE}


def test_a_transaction_with_the_last_epoch_of_all_can_be_ended(rig: Rig) -> None:
    last = begin(rig.coordinator)[0], 32767
    rig.append(last)
    assert rig.mark((last[0], 32766)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert rig.mark(last) is ErrorCode.NONE


def test_deleted_partitions_need_no_marker(rig: Rig) -> None:
    marker = Marker(1, 0, is_commit=True, coordinator_epoch=0, version=2)
    written = rig.markers.write(marker, [("gone", 0), ("t", 9), T0])
    assert {error_code(result) for result in written.values()} == {ErrorCode.NONE}
    assert list(written) == [("gone", 0), ("t", 9), T0]
    rig.partitions.partition().go_offline()
    assert error_code(rig.markers.write(marker, [T0])[T0]) is ErrorCode.KAFKA_STORAGE_ERROR


def test_markers_of_other_leaders_are_one_request_each(rig: Rig) -> None:
    sent: list[tuple[int, WriteTxnMarkersRequest, Completion[Any]]] = []

    def send(broker_id: int, request: Any) -> Completion[Any]:
        sent.append((broker_id, request, Completion()))
        return sent[-1][2]

    for name, leader in (("two", 2), ("three", 3), ("none", -1)):
        rig.partitions.create(name, 2, replicas=(2, 3), leader=leader)
    rig.markers._send = send
    marker = Marker(7, 3, is_commit=True, coordinator_epoch=5, version=2)
    written = rig.markers.write(marker, [("two", 0), ("three", 0), ("none", 0), T0, ("two", 1)])
    done = {key for key, result in written.items() if result.is_done}
    assert done == {("none", 0), T0}
    assert error_code(written["none", 0]) is ErrorCode.LEADER_NOT_AVAILABLE
    (two, request, response), (three, _, lost) = sent
    (entry,) = request.markers
    assert (two, three) == (2, 3)
    assert [(topic.name, topic.partition_indexes) for topic in entry.topics] == [("two", [0, 1])]
    assert (entry.producer_id, entry.producer_epoch, entry.coordinator_epoch) == (7, 3, 5)
    results = [
        PartitionError(partition_index=0, error_code=0),
        PartitionError(partition_index=1, error_code=ErrorCode.KAFKA_STORAGE_ERROR),
    ]
    of_topic = Topic(name="two", partitions=results)
    of_producer = WritableTxnMarkerResult(producer_id=7, topics=[of_topic])
    response.complete(WriteTxnMarkersResponse(markers=[of_producer]))
    lost.complete(None)
    assert error_code(written["two", 0]) is ErrorCode.NONE
    assert error_code(written["two", 1]) is ErrorCode.KAFKA_STORAGE_ERROR
    assert error_code(written["three", 0]) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_marker_for_offsets_needs_an_active_group_coordinator(rig: Rig) -> None:
    rig.partitions.create("__consumer_offsets", 1)
    marker = Marker(1, 0, is_commit=True, coordinator_epoch=0, version=2)

    def write() -> ErrorCode:
        return error_code(rig.markers.write_one(marker, ("__consumer_offsets", 0)))

    rig.coordinator.runtime.on_resignation(0)
    assert write() is ErrorCode.NOT_LEADER_OR_FOLLOWER
    rig.coordinator.runtime.on_election(0, 9)
    rig.coordinator.runtime.shards[0].state = ShardState.LOADING
    assert write() is ErrorCode.NOT_LEADER_OR_FOLLOWER
    rig.coordinator.runtime.shards[0].state = ShardState.ACTIVE
    assert write() is ErrorCode.NONE
    assert TRANSACTIONS_TOPIC in rig.coordinator.holder.image.topics_by_name
