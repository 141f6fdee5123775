"""The door through which records and offsets become part of a transaction; and markers in real partitions."""

from __future__ import annotations

from typing import Any

import pytest

from broker.coordinators.runtime.coordinator_runtime import ShardState
from broker.coordinators.runtime.java_compat import abs_hash
from broker.coordinators.transactions.transaction import Expected
from broker.coordinators.transactions.transaction_coordinator import TRANSACTIONS_TOPIC, Marker
from broker.coordinators.transactions.transaction_verification import Admission, Refusals, Support
from broker.coordinators.transactions.txn_marker_writer import LocalMarkers
from protocol.errors import ErrorCode
from tests.support.group_harness import LocalWorld
from tests.support.replica_harness import NOW_MS, World, batch
from tests.unit.broker.coordinators.transactions.test_transaction_coordinator import add, begin, end, world

T0 = ("t", 0)


class Rig:
    """A coordinator without partitions, and partitions without a coordinator, behind one door."""

    def __init__(self, path: Any) -> None:
        self.coordinator: LocalWorld = world()
        self.partitions = World(path)
        self.partitions.create("t", 2)
        self.admission = Admission(
            self.partitions.replicas,
            self.coordinator.transactions,
            self.coordinator.clock.deadlines,
            self.coordinator.clock,
        )
        self.markers = LocalMarkers(
            self.partitions.replicas, self.coordinator.runtime, self.admission, self.coordinator.clock
        )
        self.log = self.coordinator.transaction_logs[abs_hash("tx") % 5]
        self.told: list[dict[tuple[str, int], ErrorCode]] = []
        self.sentences: list[str | None] = []

    def admit(
        self,
        producer: tuple[int, int],
        support: Support = Support.IMPLICIT,
        *partitions: tuple[str, int],
        sequence: int = 0,
    ) -> dict[tuple[str, int], ErrorCode] | None:
        """Ask at the door; the answer if it comes at once."""
        before = len(self.told)
        wanted = dict.fromkeys(partitions or (T0,), sequence)
        self.admission.admit("tx", Expected(*producer), wanted, support, self.tell)
        return self.told[before] if len(self.told) > before else None

    def tell(self, refusals: Refusals) -> None:
        """What an asker is told."""
        self.told.append({key: error.code for key, error in refusals.items()})
        self.sentences = [error.message for error in refusals.values()]

    def append(self, producer: tuple[int, int], sequence: int = 0) -> None:
        """Records as the door lets them in."""
        done: list[ErrorCode] = []
        records = batch(producer_id=producer[0], producer_epoch=producer[1], base_sequence=sequence, transactional=True)
        self.partitions.replicas.append(
            "t", 0, records, acks=-1, wall_ms=NOW_MS, done=lambda code, _info, _error: done.append(code)
        )
        assert done == [ErrorCode.NONE]

    def mark(self, producer: tuple[int, int], *, version: int = 2, **marker: Any) -> ErrorCode:
        """Write a marker."""
        done: list[ErrorCode] = []
        fields = {"is_commit": True, "coordinator_epoch": 0, **marker}
        self.markers.write_one(Marker(*producer, **fields, version=version), T0, done.append)
        return done[0]


@pytest.fixture
def rig(tmp_path: Any) -> Rig:
    return Rig(tmp_path)


@pytest.mark.parametrize(
    ("support", "verdict"),
    [
        (Support.OLD, ErrorCode.INVALID_TXN_STATE),
        (Support.ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (Support.IMPLICIT, None),
    ],
)
def test_each_producer_is_told_what_it_knows(rig: Rig, support: Support, verdict: ErrorCode | None) -> None:
    """Rules 1 and 4: new producers are added, older ones looked for."""
    producer = begin(rig.coordinator)
    assert rig.admit(producer, support) == ({} if verdict is None else {T0: verdict})
    add(rig.coordinator, producer, 0)
    assert rig.admit(producer, support) == {}
    assert rig.admit((producer[0], 7), support) == {T0: ErrorCode.INVALID_PRODUCER_EPOCH}


def test_where_records_of_the_transaction_are_nobody_is_asked(rig: Rig) -> None:
    """Rule 1: until its marker comes, and only in its epoch."""
    producer = begin(rig.coordinator)
    assert rig.admit(producer) == {}
    rig.append(producer)
    rig.coordinator.transactions.close()
    assert rig.admit(producer) == {}
    assert rig.admit(producer, Support.IMPLICIT, T0, ("t", 1)) == {("t", 1): ErrorCode.NOT_ENOUGH_REPLICAS}
    assert rig.mark((producer[0], 1)) is ErrorCode.NONE
    assert rig.admit((producer[0], 1)) == {T0: ErrorCode.NOT_ENOUGH_REPLICAS}


def test_without_verification_old_producers_are_believed(rig: Rig) -> None:
    """transaction.partition.verification.enable=false; new ones are added even so."""
    producer = begin(rig.coordinator)
    rig.admission.does_verify = False
    assert rig.admit((producer[0], 5), Support.OLD) == {}
    assert rig.admit((producer[0], 5)) == {T0: ErrorCode.INVALID_PRODUCER_EPOCH}


def test_a_marker_closes_the_door_that_somebody_is_going_through(rig: Rig) -> None:
    """Rule 2: records behind that marker would never be ended."""
    producer = begin(rig.coordinator)
    rig.log.is_holding = True
    assert rig.admit(producer, Support.IMPLICIT, T0, ("t", 1)) is None
    assert rig.mark((producer[0], 1), is_commit=False) is ErrorCode.NONE
    rig.log.release()
    assert rig.told == [{T0: ErrorCode.INVALID_TXN_STATE}]


def test_the_marker_of_the_last_transaction_does_not_close_the_door_of_the_next(rig: Rig) -> None:
    """Rule 2: who waits for the end of the last transaction sees its markers come."""
    producer = begin(rig.coordinator)
    add(rig.coordinator, producer, 0)
    rig.append(producer)
    rig.coordinator.data.refusals[T0] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    _, following = end(rig.coordinator, producer)
    assert rig.admit(following) is None
    assert rig.mark(following) is ErrorCode.NONE
    rig.coordinator.data.refusals.clear()
    rig.coordinator.advance(60)
    assert rig.told == []
    rig.coordinator.advance(60)
    assert rig.told == [{}]


def test_the_marker_of_the_last_transaction_may_come_while_the_coordinator_is_asked_about_the_next(rig: Rig) -> None:
    """Rule 2: it was on its way before, and what comes after it belongs to the next one."""
    producer = begin(rig.coordinator)
    add(rig.coordinator, producer, 0)
    rig.append(producer)
    _, following = end(rig.coordinator, producer)
    rig.coordinator.advance(60)
    rig.log.is_holding = True
    assert rig.admit(following) is None
    assert rig.mark(following) is ErrorCode.NONE
    rig.log.release()
    assert rig.told == [{}]


def test_a_producer_is_answered_in_order(rig: Rig) -> None:
    """Rule 3: the second question waits for the first."""
    producer = begin(rig.coordinator)
    add(rig.coordinator, producer, 0)
    rig.coordinator.data.refusals[T0] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    _, following = end(rig.coordinator, producer)
    rig.coordinator.data.refusals.clear()
    rig.coordinator.advance(90)
    assert rig.admit(following) is None  # it looks again after 20 ms
    rig.coordinator.advance(15)  # meanwhile the last transaction has ended
    assert rig.admit(following, Support.IMPLICIT, ("t", 1)) is None
    rig.coordinator.advance(10)
    assert rig.told == [{}, {}]


def test_a_partition_that_knows_a_later_epoch_says_so_itself(rig: Rig) -> None:
    """Rule 5: also when the coordinator has forgotten the producer."""
    rig.append((7, 3))
    rig.coordinator.transactions.close()
    assert rig.admit((7, 2), Support.IMPLICIT, T0, ("t", 1)) == {
        T0: ErrorCode.INVALID_PRODUCER_EPOCH,
        ("t", 1): ErrorCode.NOT_ENOUGH_REPLICAS,
    }


def test_what_was_turned_away_comes_first(rig: Rig) -> None:
    """Rule 3: records behind it would make its second coming a gap in the past."""
    producer = begin(rig.coordinator)
    index = abs_hash("tx") % 5
    rig.coordinator.transactions.resigned(index)
    old = Support.OLD
    assert rig.admit(producer, old, sequence=3) == {T0: ErrorCode.NOT_ENOUGH_REPLICAS}
    assert rig.sentences == [
        "Unable to verify the partition has been added to the transaction. Underlying error: NOT_COORDINATOR"
    ]
    assert rig.admit(producer, old, sequence=2) == {T0: ErrorCode.NOT_ENOUGH_REPLICAS}
    rig.coordinator.transactions.elected(index, 7)
    rig.coordinator.advance(5)
    add(rig.coordinator, producer, 0)
    assert rig.admit(producer, old, sequence=3) == {T0: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}
    assert rig.admit(producer, old, sequence=2) == {}
    assert rig.admit(producer, old, sequence=3) == {}


def test_what_was_turned_away_may_have_come_in_elsewhere(rig: Rig) -> None:
    """Rule 3: a partition that was led by others meanwhile does not wait for it."""
    producer = begin(rig.coordinator)
    add(rig.coordinator, producer, 0)
    index = abs_hash("tx") % 5
    rig.coordinator.transactions.resigned(index)
    old = Support.OLD
    assert rig.admit(producer, old, sequence=2) == {T0: ErrorCode.NOT_ENOUGH_REPLICAS}
    rig.coordinator.transactions.elected(index, 7)
    rig.coordinator.advance(5)
    assert rig.admit(producer, old, sequence=3) == {T0: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}
    rig.partitions.partition().leader_epoch += 2
    assert rig.admit(producer, old, sequence=3) == {}


@pytest.mark.parametrize(("epoch", "version", "is_kept"), [(1, 2, True), (2, 2, False), (1, 0, False)])
def test_a_marker_ends_what_was_turned_away(rig: Rig, epoch: int, version: int, is_kept: bool) -> None:
    """Rule 3: but not where it ends the transaction before, whose marker has the epoch of the next one since version 2."""
    producer = begin(rig.coordinator)[0], 1
    rig.coordinator.transactions.close()
    assert rig.admit(producer, sequence=0) == {T0: ErrorCode.NOT_ENOUGH_REPLICAS}
    assert rig.mark((producer[0], epoch), version=version) is ErrorCode.NONE
    assert bool(rig.admission._turned_away) is is_kept


def test_a_late_marker_does_not_end_the_next_transaction(rig: Rig) -> None:
    """markers.py rule 3: with version 2 the epoch tells; before, nothing can."""
    producer = begin(rig.coordinator)
    rig.append(producer)
    assert rig.mark(producer) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert rig.mark((producer[0], 1)) is ErrorCode.NONE
    assert rig.mark((producer[0], 1)) is ErrorCode.NONE
    rig.append((producer[0], 1))
    assert rig.mark((producer[0], 1)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert rig.mark((producer[0], 1), version=0) is ErrorCode.NONE


def test_partitions_that_are_no_more_count_as_marked(rig: Rig) -> None:
    """markers.py rule 1: but one that cannot be written to says why."""
    done: list[tuple[tuple[str, int], ErrorCode]] = []
    marker = Marker(1, 0, is_commit=True, coordinator_epoch=0, version=2)
    rig.markers.write(marker, [("gone", 0), ("t", 9), T0], lambda *told: done.append(told))
    assert done == [(("gone", 0), ErrorCode.NONE), (("t", 9), ErrorCode.NONE), (T0, ErrorCode.NONE)]
    rig.partitions.partition().go_offline()
    rig.markers.write(marker, [T0], lambda *told: done.append(told))
    assert done[3:] == [(T0, ErrorCode.KAFKA_STORAGE_ERROR)]


def test_offsets_of_a_group_that_is_not_here_get_no_marker(rig: Rig) -> None:
    """markers.py rule 2: the group coordinator must have been loaded first."""
    rig.partitions.create("__consumer_offsets", 1)
    done: list[ErrorCode] = []
    marker = Marker(1, 0, is_commit=True, coordinator_epoch=0, version=2)
    rig.coordinator.runtime.resigned(0)
    rig.markers.write_one(marker, ("__consumer_offsets", 0), done.append)
    assert done == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    rig.coordinator.runtime.elected(0, 9)
    rig.coordinator.runtime.shards[0].state = ShardState.LOADING
    rig.markers.write_one(marker, ("__consumer_offsets", 0), done.append)
    assert done.pop() is ErrorCode.NOT_LEADER_OR_FOLLOWER
    rig.coordinator.runtime.shards[0].state = ShardState.ACTIVE
    rig.markers.write_one(marker, ("__consumer_offsets", 0), done.append)
    assert done[1:] == [ErrorCode.NONE]
    assert TRANSACTIONS_TOPIC in rig.coordinator.holder.image.topics_by_name
