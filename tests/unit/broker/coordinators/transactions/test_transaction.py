"""One transactional id: its steps, and its records."""

from __future__ import annotations

import pytest

from broker.coordinators.runtime.coordinator_runtime import encode_record
from broker.coordinators.transactions.transaction import (
    LAST_EPOCH,
    NO_PRODUCER_ID,
    WITH_BUMPS,
    WITHOUT_BUMPS,
    Expected,
    State,
    Transaction,
    first,
)
from broker.coordinators.transactions.transaction_records import (
    read_transaction,
    read_transactional_id,
    transaction_record,
    transaction_tombstone,
)
from protocol.errors import MalformedRequest

T0 = frozenset({("t", 0)})


def begun(epoch: int = 3) -> Transaction:
    return first("tx", 7, 1000, 5)._replace(epoch=epoch)


def ended(transaction: Transaction, version: int = WITH_BUMPS, new_id: int = NO_PRODUCER_ID) -> Transaction:
    prepared = transaction.prepared(is_commit=True, version=version, wall_ms=20, new_producer_id=new_id)
    return prepared.completed(30)


def test_a_transaction_begins_with_its_first_partition() -> None:
    """Rule 2: its time runs from there."""
    known = begun().extended(T0, WITH_BUMPS, 10)
    more = known.extended(frozenset({("t", 1)}), WITH_BUMPS, 15)
    assert (more.state, more.started_wall_ms, more.updated_wall_ms) == (State.ONGOING, 10, 15)
    assert more.partitions == {("t", 0), ("t", 1)}
    again = ended(more).extended(T0, WITH_BUMPS, 40)
    assert (again.started_wall_ms, again.partitions) == (40, T0)


@pytest.mark.parametrize(("version", "epochs"), [(WITH_BUMPS, (4, 3)), (WITHOUT_BUMPS, (3, -1))])
def test_every_end_raises_the_epoch_since_version_2(version: int, epochs: tuple[int, int]) -> None:
    """Rule 3: and the one before is remembered."""
    known = ended(begun().extended(T0, version, 10), version)
    assert (known.state, known.partitions) == (State.COMPLETE_COMMIT, frozenset())
    assert (known.epoch, known.last_epoch) == epochs


def test_the_last_epoch_ends_with_another_producer_id() -> None:
    """Rule 4: markers go out with the epoch that nobody is given, and then the new id begins at 0."""
    known = begun(LAST_EPOCH).extended(T0, WITH_BUMPS, 10)
    prepared = known.prepared(is_commit=False, version=WITH_BUMPS, wall_ms=20, new_producer_id=9)
    assert (prepared.producer_id, prepared.epoch, prepared.next_producer_id) == (7, 32767, 9)
    completed = prepared.completed(30)
    assert (completed.producer_id, completed.epoch, completed.previous_producer_id) == (9, 0, 7)
    assert completed.next_producer_id == NO_PRODUCER_ID
    assert completed.was(Expected(7, LAST_EPOCH))
    assert not completed.was(Expected(7, 5))


def test_no_epoch_follows_the_one_that_fences() -> None:
    """Rule 4: such a producer has been left by an older broker, and goes on with another id too."""
    known = begun(32767).extended(T0, WITH_BUMPS, 10)
    prepared = known.prepared(is_commit=True, version=WITH_BUMPS, wall_ms=20, new_producer_id=9)
    assert (prepared.epoch, prepared.completed(30).producer_id, prepared.completed(30).epoch) == (32767, 9, 0)


@pytest.mark.parametrize(
    ("expected", "identity"),
    [
        (None, (7, 4, -1)),
        (Expected(7, 3), (7, 4, 3)),
        (Expected(7, 2), (7, 3, 2)),
        (Expected(7, 1), None),
    ],
)
def test_a_producer_begins_anew_with_the_next_epoch(
    expected: Expected | None, identity: tuple[int, int, int] | None
) -> None:
    """Rule 3: who asks twice gets the same epoch twice; who is older gets none."""
    known = begun()._replace(last_epoch=2)
    following = known.initialized(2000, expected, NO_PRODUCER_ID, 9)
    found = None if following is None else (following.producer_id, following.epoch, following.last_epoch)
    assert found == identity


def test_who_begins_anew_with_the_last_epoch_gets_another_producer_id() -> None:
    """Rule 4."""
    known = begun(LAST_EPOCH)
    assert known.needs_producer_id(None)
    assert known.needs_producer_id(Expected(7, LAST_EPOCH))
    following = known.initialized(2000, Expected(7, LAST_EPOCH), 9, 9)
    assert following is not None
    assert (following.producer_id, following.epoch, following.previous_producer_id) == (9, 0, 7)
    again = following.initialized(2000, Expected(7, LAST_EPOCH), NO_PRODUCER_ID, 10)
    assert again is not None
    assert (again.producer_id, again.epoch) == (9, 0)


STATES = [
    begun(),
    begun().extended(T0 | {("u", 3), ("t", 2)}, WITH_BUMPS, 10),
    begun().extended(T0, WITH_BUMPS, 10).prepared(is_commit=True, version=2, wall_ms=11, new_producer_id=12),
    begun().extended(T0, WITHOUT_BUMPS, 10).prepared(is_commit=False, version=0, wall_ms=11, new_producer_id=-1),
    ended(begun().extended(T0, WITH_BUMPS, 10)),
]


@pytest.mark.parametrize("known", STATES, ids=lambda known: known.state.label)
def test_records_keep_all_but_the_last_epoch(known: Transaction) -> None:
    """transaction.py rule 5."""
    key, value = encode_record(transaction_record(known, has_versions=True))
    assert value is not None
    assert read_transactional_id(key) == "tx"
    assert read_transaction("tx", value) == known._replace(last_epoch=-1)


def test_records_of_version_0_know_no_versions() -> None:
    """For clusters that are older."""
    _, value = encode_record(transaction_record(STATES[2], has_versions=False))
    assert value is not None
    assert value[:2] == b"\0\0"
    found = read_transaction("tx", value)
    assert (found.state, found.client_version, found.next_producer_id) == (State.PREPARE_COMMIT, 0, -1)


@pytest.mark.parametrize(
    "value", [b"", b"\0\2" + bytes(40), b"\0\1" + bytes(3), b"\0\0" + bytes(14) + b"\x09" + bytes(20)]
)
def test_what_is_no_transaction_is_refused(value: bytes) -> None:
    """transaction_records.py rule 1: of no version, cut off, in no state."""
    with pytest.raises(MalformedRequest):
        read_transaction("tx", value)


def test_a_tombstone_has_no_value() -> None:
    """transaction_records.py rule 2."""
    key, value = encode_record(transaction_tombstone("tx"))
    assert read_transactional_id(key) == "tx"
    assert value is None
