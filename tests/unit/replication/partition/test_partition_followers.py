"""The rules of `Partition` about followers and the ISR, on a log without bytes."""

from __future__ import annotations

from typing import cast

import pytest

from protocol.errors import ErrorCode, KafkaError
from replication.partition.partition import Partition
from storage.io.disk_lookup import wait_for_disk
from storage.log.log import Log
from tests.support.logs import refused
from tests.support.partition_rig import LAG_MS, SELF, NumbersLog, Rig, state

pytestmark = pytest.mark.pure_python("a log of numbers replaces Log")


def test_a_follower_joins_at_the_high_watermark() -> None:
    rig = Rig(replicas=(1, 2, 3), isr=(1, 3), appended=10)
    rig.fetch(3, 8)
    rig.fetch(2, 7)
    assert rig.partition.expanded_isr(2) is None
    rig.fetch(2, 8)
    assert rig.partition.expanded_isr(2) == (1, 3, 2)
    assert rig.partition.expanded_isr(3) is None
    rig.partition.pending_isr = (1, 3, 2)
    assert rig.partition.expanded_isr(2) is None


def test_a_follower_does_not_join_below_the_epochs_start() -> None:
    rig = Rig(replicas=(1, 2, 3), isr=(1, 3), appended=10)
    rig.partition.make_leader(state(epoch=1, replicas=(1, 2, 3), isr=(1, 3)), 0)
    rig.fetch(2, 9)
    assert rig.partition.expanded_isr(2) is None
    rig.fetch(2, 10)
    assert rig.partition.expanded_isr(2) == (1, 3, 2)


def test_a_follower_leaves_that_did_not_reach_the_log_end_within_the_allowed_lag() -> None:
    rig = Rig(replicas=(1, 2, 3), appended=10)
    rig.fetch(2, 10, mono_ms=1000)
    rig.fetch(3, 10, mono_ms=1000)
    rig.append(10)
    rig.fetch(2, 20, mono_ms=20_000)
    rig.fetch(3, 15, mono_ms=20_000)
    assert rig.partition.shrunk_isr(LAG_MS, LAG_MS) is None
    assert rig.partition.shrunk_isr(LAG_MS + 1001, LAG_MS) == (1, 2)


def test_a_follower_one_fetch_behind_a_steady_load_stays() -> None:
    rig = Rig(replicas=(1, 2))
    for turn in range(100):
        rig.append(10)
        rig.fetch(2, turn * 10, mono_ms=turn * 1000)
    assert rig.partition.shrunk_isr(100_000, LAG_MS) is None


def test_a_silent_follower_of_an_unused_log_leaves() -> None:
    log = NumbersLog(end=7, is_open=False)
    partition = Partition(cast("Log", log), SELF, lambda key: None, lambda partition: None)
    partition.make_leader(state(replicas=(1, 2)), 0)
    assert wait_for_disk(partition.shrunk_isr, LAG_MS + 1, LAG_MS) == (1,)
    assert partition.epoch_start_offset == 7
    partition.make_follower(state(leader=2, epoch=1, replicas=(1, 2)))
    assert partition.shrunk_isr(LAG_MS + 1, LAG_MS) is None


def test_a_follower_at_the_log_end_stays_without_fetching() -> None:
    rig = Rig(replicas=(1, 2), appended=10)
    rig.fetch(2, 10)
    assert rig.partition.shrunk_isr(LAG_MS * 100, LAG_MS) is None


def test_fetches_of_other_brokers_and_older_registrations_change_nothing() -> None:
    rig = Rig(replicas=(1, 2), appended=5)
    refused(ErrorCode.UNKNOWN_LEADER_EPOCH, lambda: rig.fetch(9, 5))
    refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, lambda: rig.fetch(9, 5, epoch=-1))
    rig.fetch(2, 3, broker_epoch=7)
    with pytest.raises(KafkaError):
        rig.fetch(2, 5, broker_epoch=6)
    assert rig.partition.high_watermark == 3


def test_a_new_epoch_resets_the_followers_end_offsets() -> None:
    """They may truncate what they held under another leader."""
    rig = Rig(replicas=(1, 2), appended=5)
    rig.fetch(2, 5)
    rig.partition.make_leader(state(epoch=1, replicas=(1, 2)), 0)
    rig.append(5)
    assert rig.partition.high_watermark == 5
    rig.fetch(2, 10, epoch=1)
    assert rig.partition.high_watermark == 10
