"""The state of a transactional id: transitions and records."""

from __future__ import annotations

import pytest

from broker.coordinators.runtime.stored_records import encode_record
from broker.coordinators.transactions.transaction import (
    LAST_EPOCH,
    NO_PRODUCER_ID,
    TV_0,
    TV_2,
    ProducerIdAndEpoch,
    State,
    TransactionMetadata,
    new_transaction,
)
from broker.coordinators.transactions.transaction_records import (
    read_transaction,
    read_transactional_id,
    transaction_record,
    transaction_tombstone,
)
from protocol.errors import MalformedRequest

T0 = frozenset({("t", 0)})


def begun(epoch: int = 3) -> TransactionMetadata:
    return new_transaction("tx", 7, 1000, 5)._replace(epoch=epoch)


def ended(transaction: TransactionMetadata, version: int = TV_2, new_id: int = NO_PRODUCER_ID) -> TransactionMetadata:
    prepared = transaction.prepared(is_commit=True, version=version, wall_ms=20, new_producer_id=new_id)
    return prepared.completed(30)


def test_a_transaction_begins_with_its_first_partition() -> None:
    transaction = begun().with_partitions(T0, TV_2, 10)
    more = transaction.with_partitions(frozenset({("t", 1)}), TV_2, 15)
    assert (more.state, more.started_wall_ms, more.updated_wall_ms) == (State.ONGOING, 10, 15)
    assert more.partitions == {("t", 0), ("t", 1)}
    again = ended(more).with_partitions(T0, TV_2, 40)
    assert (again.started_wall_ms, again.partitions) == (40, T0)


def test_the_fencing_epoch_is_not_incremented() -> None:
    transaction = begun(32767).with_partitions(T0, TV_2, 10)
    prepared = transaction.prepared(is_commit=True, version=TV_2, wall_ms=20, new_producer_id=9)
    assert (prepared.epoch, prepared.completed(30).producer_id, prepared.completed(30).epoch) == (32767, 9, 0)


@pytest.mark.parametrize(
    ("expected", "identity"),
    [
        (None, (7, 4, -1)),
        (ProducerIdAndEpoch(7, 3), (7, 4, 3)),
        (ProducerIdAndEpoch(7, 2), (7, 3, 2)),
        (ProducerIdAndEpoch(7, 1), None),
    ],
)
def test_init_producer_id_returns_the_next_epoch(
    expected: ProducerIdAndEpoch | None, identity: tuple[int, int, int] | None
) -> None:
    transaction = begun()._replace(last_epoch=2)
    next_state = transaction.initialized(2000, expected, NO_PRODUCER_ID, 9)
    found = None if next_state is None else (next_state.producer_id, next_state.epoch, next_state.last_epoch)
    assert found == identity


def test_init_at_the_last_epoch_switches_the_producer_id() -> None:
    transaction = begun(LAST_EPOCH)
    assert transaction.needs_producer_id(None)
    assert transaction.needs_producer_id(ProducerIdAndEpoch(7, LAST_EPOCH))
    next_state = transaction.initialized(2000, ProducerIdAndEpoch(7, LAST_EPOCH), 9, 9)
    assert next_state is not None
    assert (next_state.producer_id, next_state.epoch, next_state.previous_producer_id) == (9, 0, 7)
    again = next_state.initialized(2000, ProducerIdAndEpoch(7, LAST_EPOCH), NO_PRODUCER_ID, 10)
    assert again is not None
    assert (again.producer_id, again.epoch) == (9, 0)


STATES = [
    begun(),
    begun().with_partitions(T0 | {("u", 3), ("t", 2)}, TV_2, 10),
    begun().with_partitions(T0, TV_2, 10).prepared(is_commit=True, version=2, wall_ms=11, new_producer_id=12),
    begun().with_partitions(T0, TV_0, 10).prepared(is_commit=False, version=0, wall_ms=11, new_producer_id=-1),
    ended(begun().with_partitions(T0, TV_2, 10)),
]


@pytest.mark.parametrize("transaction", STATES, ids=lambda transaction: transaction.state.label)
def test_records_keep_all_but_the_last_epoch(transaction: TransactionMetadata) -> None:
    key, value = encode_record(transaction_record(transaction, has_versions=True))
    assert value is not None
    assert read_transactional_id(key) == "tx"
    assert read_transaction("tx", value) == transaction._replace(last_epoch=-1)


def test_records_of_version_0_have_no_tagged_fields() -> None:
    _, value = encode_record(transaction_record(STATES[2], has_versions=False))
    assert value is not None
    assert value[:2] == b"\0\0"
    found = read_transaction("tx", value)
    assert (found.state, found.client_version, found.next_producer_id) == (State.PREPARE_COMMIT, 0, -1)


@pytest.mark.parametrize(
    "value", [b"", b"\0\2" + bytes(40), b"\0\1" + bytes(3), b"\0\0" + bytes(14) + b"\x09" + bytes(20)]
)
def test_a_malformed_transaction_record_is_rejected(value: bytes) -> None:
    with pytest.raises(MalformedRequest):
        read_transaction("tx", value)


def test_a_tombstone_has_no_value() -> None:
    key, value = encode_record(transaction_tombstone("tx"))
    assert read_transactional_id(key) == "tx"
    assert value is None
