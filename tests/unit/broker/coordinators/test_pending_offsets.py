"""Offsets of open transactions: pending_offsets.py, and its use by the offset manager."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from broker.coordinators.classic.group_records import (
    CommitKey,
    OffsetAndMetadata,
    encode_commit_key,
    encode_commit_value,
)
from broker.coordinators.offset_manager import OffsetMetadataManager
from broker.coordinators.pending_offsets import PendingOffset, PendingOffsets
from protocol.messages.groups import OffsetFetchRequestGroup
from tests.support.executed_instructions import executed_instructions
from tests.support.messages import message
from tests.support.seeds import seed_of

FEW, MANY = 10, 1_000
ROUNDS, STEPS = 20, 200
VALUE = OffsetAndMetadata(7, -1, "", 1)
FETCH = message(OffsetFetchRequestGroup, group_id="g", topics=[{"name": "t", "partition_indexes": [3]}])


def test_offsets_by_partition_are_those_by_producer() -> None:
    seed = seed_of()
    print(f"SEED={seed}")
    rng = random.Random(seed)
    for _ in range(ROUNDS):
        play(rng)


def play(rng: random.Random) -> None:
    found: PendingOffsets[str] = PendingOffsets()
    expected: dict[int, dict[str, PendingOffset]] = {}
    for number in range(STEPS):
        producer, key = rng.randrange(5), rng.choice("abcdef")
        step = rng.randrange(4)
        if step == 0:
            offset = PendingOffset(number, VALUE)
            found.add(producer, key, offset)
            expected.setdefault(producer, {})[key] = offset
        elif step == 1:
            before = rng.choice([None, rng.randrange(number + 1)])
            found.supersede(key, before)
            for pending in expected.values():
                if key in pending and (before is None or pending[key].number < before):
                    pending[key] = pending[key]._replace(committed=None)
        elif step == 2:
            found.remove(key)
            for pending in expected.values():
                pending.pop(key, None)
        else:
            assert found.pop(producer) == expected.pop(producer, {})
        assert found.by_producer == expected
        keys = {one for pending in expected.values() for one in pending}
        assert (set(found.keys), {one for one in "abcdef" if one in found}) == (keys, keys)


def with_transactions(count: int) -> OffsetMetadataManager:
    """Each transaction has the offset of one partition."""
    manager = OffsetMetadataManager(4096)
    for producer in range(count):
        manager.apply(CommitKey("g", "t", producer), VALUE, producer)
    return manager


def loading(count: int) -> OffsetMetadataManager:
    manager = OffsetMetadataManager(4096)
    for producer in range(count):
        manager.load(encode_commit_key("g", "t", producer), encode_commit_value(VALUE), producer)
    return manager


def commit(manager: OffsetMetadataManager) -> None:
    manager.apply(CommitKey("g", "u", 0), VALUE, -1)


def delete(manager: OffsetMetadataManager) -> None:
    manager.apply(CommitKey("g", "u", 0), None, -1)


def commit_transaction(manager: OffsetMetadataManager) -> None:
    manager.end_transaction(3, is_commit=True)


def fetch_stable(manager: OffsetMetadataManager) -> None:
    manager.fetch(FETCH, is_stable=True)


def load_commit(manager: OffsetMetadataManager) -> None:
    manager.load(encode_commit_key("g", "u", 0), encode_commit_value(VALUE), -1)


def load_marker(manager: OffsetMetadataManager) -> None:
    manager.load_marker(3, is_commit=True)


@pytest.mark.pure_python("counts the instructions of a compiled module")
@pytest.mark.parametrize(
    ("make", "action"),
    [
        (with_transactions, commit),
        (with_transactions, delete),
        (with_transactions, commit_transaction),
        (with_transactions, fetch_stable),
        (loading, load_commit),
        (loading, load_marker),
    ],
)
def test_the_work_does_not_grow_with_transactions_of_other_partitions(
    make: Callable[[int], OffsetMetadataManager], action: Callable[[OffsetMetadataManager], None]
) -> None:
    action(make(FEW))  # classes of messages are completed at their first use
    few, many = make(FEW), make(MANY)
    assert executed_instructions(lambda: action(many)) == executed_instructions(lambda: action(few))
