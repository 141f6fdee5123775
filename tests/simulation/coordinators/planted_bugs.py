"""Planted bugs of the coordinators: the simulator must find each.

NOT HERE The number of seeds (tests/simulation/test_planted_bugs.py).
"""

from __future__ import annotations

from typing import Any

from pytest import MonkeyPatch  # noqa: PT013

import broker.coordinators.consumer.consumer_group_records
import broker.coordinators.consumer.group_upgrade
import broker.coordinators.consumer.target_assignment_updater
import broker.coordinators.group_coordinator
from broker.coordinators.classic.group_records import group_tombstone, read_group
from broker.coordinators.consumer.reconciliation import build_current_assignment
from broker.coordinators.offset_manager import OffsetMetadataManager
from broker.coordinators.pending_offsets import PendingOffsets
from broker.coordinators.runtime.coordinator_runtime import Shard
from broker.coordinators.runtime.stored_records import StoredRecord
from broker.coordinators.transactions.transaction_coordinator import TransactionCoordinator
from replication.completion import Completion, completed


def an_aborted_transaction_is_loaded_as_committed(monkeypatch: MonkeyPatch) -> None:
    original = OffsetMetadataManager.load_marker
    monkeypatch.setattr(OffsetMetadataManager, "load_marker", lambda self, producer, _: original(self, producer, True))


def the_end_of_a_transaction_overwrites_a_later_commit(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(PendingOffsets, "supersede", lambda *_: None)


def a_prepared_transaction_is_not_completed(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionCoordinator, "_retry_prepare", lambda *_, **__: None)


def offsets_survive_their_group(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(OffsetMetadataManager, "tombstones", lambda *_: [])


def a_deleted_offset_has_no_tombstone(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(OffsetMetadataManager, "_tombstones_of", lambda *_: [])


def partitions_to_revoke_are_not_stored(monkeypatch: MonkeyPatch) -> None:
    original = broker.coordinators.consumer.consumer_group_records._with_current_assignment

    def planted(member: Any, value: Any) -> Any:
        return original(member, value)._replace(revoking={})

    monkeypatch.setattr(broker.coordinators.consumer.consumer_group_records, "_with_current_assignment", planted)


def a_partition_is_assigned_before_it_is_revoked(monkeypatch: MonkeyPatch) -> None:
    def planted(member: Any, epoch: int, target: Any, subscribed: Any, _: Any, owned: Any, **rest: Any) -> Any:
        return build_current_assignment(member, epoch, target, subscribed, lambda *_: True, owned, **rest)

    monkeypatch.setattr(broker.coordinators.consumer.target_assignment_updater, "build_current_assignment", planted)


def an_upgrade_keeps_the_classic_group(monkeypatch: MonkeyPatch) -> None:
    def planted(group_id: str) -> StoredRecord:
        return group_tombstone(f"not {group_id}")

    monkeypatch.setattr(broker.coordinators.consumer.group_upgrade, "group_tombstone", planted)


def the_generation_restarts_after_a_reload(monkeypatch: MonkeyPatch) -> None:
    def planted(group_id: str, value: bytes) -> Any:
        group = read_group(group_id, value)
        group.generation = 0
        return group

    monkeypatch.setattr(broker.coordinators.group_coordinator, "read_group", planted)


def a_rejected_append_is_applied(monkeypatch: MonkeyPatch) -> None:
    original = Shard._append

    def planted(self: Any, batch: bytearray) -> Completion[Any]:
        appended = original(self, batch)
        return completed(None) if appended.is_done else appended

    monkeypatch.setattr(Shard, "_append", planted)
