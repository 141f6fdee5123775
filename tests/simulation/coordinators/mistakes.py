"""Mistakes that coordinators could make, to be planted: the simulation has to find each.

NOT HERE How many histories that may take (test_coordinators.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest import MonkeyPatch  # noqa: PT013

import broker.coordinators.consumer.consumer_group_records
import broker.coordinators.consumer.group_upgrade
import broker.coordinators.consumer.target_assignment_updater
import broker.coordinators.group_coordinator
import broker.coordinators.offset_manager
from broker.coordinators.classic.group_records import group_tombstone, read_group
from broker.coordinators.consumer.reconciliation import step
from broker.coordinators.offset_manager import CommittedOffsets
from broker.coordinators.runtime.coordinator_runtime import Shard, StoredRecord
from broker.coordinators.transactions.transaction_coordinator import TransactionCoordinator
from protocol.errors import ErrorCode

Plant = Callable[[MonkeyPatch], None]


def _nothing(*_: object, **__: object) -> None:
    """Do nothing."""


def an_aborted_transaction_counts_when_it_is_read_back(monkeypatch: MonkeyPatch) -> None:
    right = CommittedOffsets.load_marker
    monkeypatch.setattr(CommittedOffsets, "load_marker", lambda self, producer, _: right(self, producer, True))


def a_later_commit_is_overruled_by_the_end_of_a_transaction(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(broker.coordinators.offset_manager, "_overrule", _nothing)


def a_decided_transaction_is_left_as_it_is(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionCoordinator, "_prepare_again", _nothing)


def offsets_outlive_their_group(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(CommittedOffsets, "tombstones", lambda *_: [])


def a_deleted_offset_comes_back(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(CommittedOffsets, "_tombstones_of", lambda *_: [])


def what_is_to_be_given_up_is_forgotten(monkeypatch: MonkeyPatch) -> None:
    right = broker.coordinators.consumer.consumer_group_records._moved

    def wrong(member: Any, value: Any) -> Any:
        return right(member, value)._replace(revoking={})

    monkeypatch.setattr(broker.coordinators.consumer.consumer_group_records, "_moved", wrong)


def a_partition_is_given_before_it_is_free(monkeypatch: MonkeyPatch) -> None:
    def wrong(member: Any, epoch: int, target: Any, subscribed: Any, _: Any, owned: Any, **rest: Any) -> Any:
        return step(member, epoch, target, subscribed, lambda *_: True, owned, **rest)

    monkeypatch.setattr(broker.coordinators.consumer.target_assignment_updater, "step", wrong)


def an_upgrade_leaves_the_classic_group(monkeypatch: MonkeyPatch) -> None:
    def wrong(group_id: str) -> StoredRecord:
        return group_tombstone(f"not {group_id}")

    monkeypatch.setattr(broker.coordinators.consumer.group_upgrade, "group_tombstone", wrong)


def a_group_begins_anew_with_its_coordinator(monkeypatch: MonkeyPatch) -> None:
    def wrong(group_id: str, value: bytes) -> Any:
        group = read_group(group_id, value)
        group.generation = 0
        return group

    monkeypatch.setattr(broker.coordinators.group_coordinator, "read_group", wrong)


def what_the_log_refused_is_done_nevertheless(monkeypatch: MonkeyPatch) -> None:
    right = Shard._append

    def wrong(self: Any, batch: bytearray, commit: Any) -> bool:
        right(self, batch, commit)
        commit.error = ErrorCode.NONE
        return True

    monkeypatch.setattr(Shard, "_append", wrong)


MISTAKES: list[Plant] = [
    an_aborted_transaction_counts_when_it_is_read_back,
    a_later_commit_is_overruled_by_the_end_of_a_transaction,
    a_decided_transaction_is_left_as_it_is,
    offsets_outlive_their_group,
    a_deleted_offset_comes_back,
    what_is_to_be_given_up_is_forgotten,
    a_partition_is_given_before_it_is_free,
    an_upgrade_leaves_the_classic_group,
    a_group_begins_anew_with_its_coordinator,
    what_the_log_refused_is_done_nevertheless,
]
