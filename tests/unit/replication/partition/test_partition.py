"""The rules of `Partition`, on a log without bytes."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest

from protocol.errors import ErrorCode
from replication.metadata.image import PartitionState
from replication.partition.follower_progress import DivergingEpoch, FetchPosition
from replication.partition.list_offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
)
from replication.partition.partition import (
    ACKS_ALL,
    ACKS_LEADER,
    Partition,
    Reader,
    end_key,
    state_key,
)
from storage.io.disk_lookup import DiskLookup, wait_for_disk
from storage.log.log import Log
from storage.log.log_reader import Isolation
from storage.log.log_validator import AppendOrigin
from tests.support.logs import refused
from tests.support.partition_rig import CONSUMER, LAG_MS, SELF, NumbersLog, Rig, state

pytestmark = pytest.mark.pure_python("a log of numbers replaces Log")

# ---------------------------------------------------------------- high watermark


def test_without_followers_an_append_is_committed_at_once() -> None:
    rig = Rig(appended=3)
    assert rig.partition.high_watermark == rig.log.high_watermark == 3
    assert rig.acks == [(0, 0)]
    assert rig.woken == [state_key("t", 0)]


def test_a_new_leader_without_followers_commits_its_whole_log() -> None:
    rig = Rig(end=7)
    assert rig.partition.high_watermark == 7
    assert rig.log.epoch_starts == [(0, 7)]


def test_the_high_watermark_is_the_lowest_end_offset_of_the_isr() -> None:
    rig = Rig(replicas=(1, 2, 3), appended=10)
    assert rig.partition.high_watermark == 0
    rig.fetch(2, 10)
    assert rig.partition.high_watermark == 0
    rig.fetch(3, 4)
    assert rig.partition.high_watermark == 4
    rig.fetch(3, 10)
    assert rig.partition.high_watermark == 10
    assert rig.acks == [(0, ErrorCode.NONE)]


def test_a_replica_outside_the_isr_and_far_behind_does_not_hold_back_the_high_watermark() -> None:
    rig = Rig(replicas=(1, 2, 3), isr=(1, 2), appended=10)
    rig.fetch(2, 10, mono_ms=LAG_MS * 2)
    rig.fetch(3, 1, mono_ms=LAG_MS * 2)
    assert rig.partition.high_watermark == 10


def test_the_high_watermark_waits_for_a_follower_close_behind_so_that_it_can_join_under_load() -> None:
    rig = Rig(replicas=(1, 2))
    rig.partition.make_leader(state(replicas=(1, 2), isr=(1,)), 0)
    rig.append(10)
    assert rig.partition.high_watermark == 10
    rig.fetch(2, 10, mono_ms=1)
    rig.append(5)
    assert rig.partition.high_watermark == 10
    rig.fetch(2, 15, mono_ms=2)
    assert rig.partition.high_watermark == 15
    assert rig.partition.expanded_isr(2) == (1, 2)
    rig.append(5)
    rig.partition.shrunk_isr(LAG_MS + 3, LAG_MS)
    assert rig.partition.high_watermark == 20


def test_the_high_watermark_counts_a_replica_in_the_pending_isr() -> None:
    rig = Rig(replicas=(1, 2), isr=(1,))
    rig.fetch(2, 0)
    rig.partition.pending_isr = (1, 2)
    rig.partition.followers[2].is_joining = False
    rig.append(5)
    assert rig.partition.high_watermark == 0
    rig.fetch(2, 5)
    assert rig.partition.high_watermark == 5


def test_a_pending_isr_is_kept_until_the_partition_epoch_changes() -> None:
    rig = Rig(replicas=(1, 2), isr=(1,))
    rig.partition.pending_isr = (1, 2)
    rig.partition.make_leader(state(replicas=(1, 2), isr=(1,)), 0)
    assert rig.partition.pending_isr == (1, 2)
    rig.partition.make_leader(PartitionState((1, 2), (1, 2), SELF, 0, 1), 0)
    assert rig.partition.pending_isr is None


def test_the_high_watermark_never_decreases() -> None:
    rig = Rig(replicas=(1, 2), appended=10)
    rig.fetch(2, 10)
    rig.fetch(2, 3)
    assert rig.partition.high_watermark == 10
    rig.append(1)
    assert rig.partition.high_watermark == 10


def test_the_high_watermark_does_not_advance_below_min_insync_replicas() -> None:
    """KIP-966."""
    rig = Rig(replicas=(1, 2, 3), min_insync_replicas=2, appended=4)
    rig.partition.make_leader(state(replicas=(1, 2, 3), isr=(1,)), 0)
    assert rig.partition.high_watermark == 0
    rig.append(1, acks=ACKS_LEADER)
    assert rig.acks == [(4, 0)]
    rig.partition.make_leader(state(replicas=(1, 2, 3), isr=(1, 2)), 0)
    rig.fetch(2, 5)
    assert rig.partition.high_watermark == 5
    assert rig.acks == [(4, 0), (0, 0)]


def test_an_isr_shrink_commits_what_only_the_removed_replica_lacked() -> None:
    rig = Rig(replicas=(1, 2), appended=4)
    assert rig.acks == []
    rig.partition.make_leader(state(replicas=(1, 2), isr=(1,)), 0)
    assert rig.partition.high_watermark == 4
    assert rig.acks == [(0, 0)]


# ---------------------------------------------------------------- acknowledgement


def test_min_insync_replicas_is_at_most_the_number_of_replicas() -> None:
    rig = Rig(min_insync_replicas=2)
    rig.append()
    assert rig.acks == [(0, 0)]


def test_waiting_producers_are_answered_in_offset_order_each_once() -> None:
    rig = Rig(replicas=(1, 2))
    for _ in range(4):
        rig.append(2)
    rig.fetch(2, 5)
    assert rig.acks == [(0, 0), (2, 0)]
    rig.fetch(2, 8)
    rig.fetch(2, 8)
    assert rig.acks == [(0, 0), (2, 0), (4, 0), (6, 0)]


def test_a_duplicate_waits_for_its_own_offset_not_for_later_ones() -> None:
    rig = Rig(replicas=(1, 2), appended=2)
    rig.append(2)
    rig.await_acks(SimpleNamespace(last_offset=1), ACKS_ALL, "again")
    rig.fetch(2, 2)
    assert rig.acks == [(0, 0), ("again", 0)]


def test_loss_of_leadership_fails_waiting_producers_and_wakes_readers() -> None:
    rig = Rig(replicas=(1, 2), flush_messages=1)
    rig.append(acks=ACKS_ALL)
    rig.append(acks=ACKS_LEADER)
    rig.woken.clear()
    rig.partition.make_follower(state(leader=2, epoch=1, replicas=(1, 2)))
    assert sorted(rig.acks) == [(0, ErrorCode.NOT_LEADER_OR_FOLLOWER), (1, ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    assert set(rig.woken) == {state_key("t", 0), end_key("t", 0)}
    refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, rig.append)


def test_an_isr_below_min_insync_replicas_is_reported_after_the_append() -> None:
    rig = Rig(replicas=(1, 2), min_insync_replicas=2)
    rig.append()
    rig.partition.log.high_watermark = 1
    rig.partition.isr = (1,)
    rig.await_acks(SimpleNamespace(last_offset=0), ACKS_ALL, "late")
    assert rig.acks == [("late", ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)]


# ---------------------------------------------------------------- flush.messages


def test_with_flush_messages_3_every_third_record_waits_for_a_flush() -> None:
    rig = Rig(flush_messages=3, appended=2)
    assert rig.partition.high_watermark == 2
    assert rig.requested_flushes == 0
    rig.append(1)
    assert rig.requested_flushes == 1
    assert rig.partition.needs_sync
    assert rig.partition.high_watermark == 2
    rig.flush()
    assert rig.partition.high_watermark == 3


def test_the_durable_end_offset_does_not_fall_below_acknowledged_records() -> None:
    rig = Rig(flush_messages=3)
    rig.append(2, acks=ACKS_LEADER)
    rig.append(5, acks=ACKS_LEADER)
    assert rig.acks == [(0, 0)]
    assert rig.partition.high_watermark == 2


@pytest.mark.parametrize("use", ["read", "append", "find_offset", "end_offset_for_epoch"])
def test_a_leader_opens_an_unused_log_at_the_first_use_of_any_kind(use: str) -> None:
    log = NumbersLog(end=7, is_open=False)
    log.high_watermark = 5
    partition = Partition(cast("Log", log), SELF, lambda key: None, lambda partition: None)
    partition.make_leader(state(), 0)
    partition.make_leader(state(), 0)
    assert not log.is_open
    assert partition.high_watermark == 5
    if use == "read":
        wait_for_disk(partition.read, FetchPosition(0), 100, CONSUMER, min_one_batch=True)
    elif use == "append":
        wait_for_disk(partition.prepare, cast("bytearray", 1), ACKS_ALL, 0, AppendOrigin.CLIENT)
    elif use == "find_offset":
        found = wait_for_disk(partition.find_offset, LATEST, Isolation.HIGH_WATERMARK, -1, leader_only=True)
        assert found.offset == 7
    else:
        assert wait_for_disk(partition.end_offset_for_epoch, 0, -1) == (0, 7)
    assert log.is_open
    assert partition.high_watermark == 7


def test_records_unflushed_at_a_crash_are_flushed_before_they_are_committed() -> None:
    rig = Rig(end=7, flush_messages=1)
    rig.log.flushed_end_offset = 4
    rig.log.high_watermark = 2
    rig.partition.make_leader(state(epoch=1), 0)
    assert rig.partition.high_watermark == 4
    assert rig.requested_flushes == 1
    rig.flush()
    assert rig.partition.high_watermark == 7


# ---------------------------------------------------------------- readers


def test_a_reader_with_a_diverging_log_receives_the_diverging_epoch() -> None:
    rig = Rig(epoch=1, appended=10)
    rig.partition.make_leader(state(epoch=4), 0)
    rig.append(5)
    read = partial(rig.read, leader_epoch=4, reader=Reader(2, Isolation.LOG_END))
    read(10, last_fetched_epoch=1)
    read(12, last_fetched_epoch=4)
    for offset, last_fetched_epoch, diverging in ((12, 1, (1, 10)), (12, 3, (1, 10)), (3, 0, (0, 0))):
        with pytest.raises(DivergingEpoch) as diverged:
            read(offset, last_fetched_epoch=last_fetched_epoch)
        assert (diverged.value.epoch, diverged.value.end_offset) == diverging
    rig.log.log_start_offset = 2
    for offset, last_fetched_epoch in ((3, 5), (1, 1)):  # an unknown epoch; a deleted offset
        refused(ErrorCode.OFFSET_OUT_OF_RANGE, partial(read, offset, last_fetched_epoch=last_fetched_epoch))


# ---------------------------------------------------------------- ListOffsets


def find(rig: Rig, timestamp: int, isolation: Isolation = Isolation.HIGH_WATERMARK) -> tuple[int, ...]:
    found = rig.partition.find_offset(timestamp, isolation, -1, leader_only=True)
    assert not isinstance(found, DiskLookup)
    return tuple(found)


def test_special_timestamps_find_the_ends_of_the_log() -> None:
    rig = Rig(replicas=(1, 2), isr=(1,), epoch=3, appended=10)
    rig.partition.followers[2].is_joining = True
    rig.partition.followers[2].end_offset = 10
    rig.append(2)
    rig.log.open_transaction = 6
    rig.log.log_start_offset = 2
    assert find(rig, LATEST) == (-1, 10, 3)
    assert find(rig, LATEST, Isolation.LAST_STABLE) == (-1, 6, 3)
    assert find(rig, LATEST, Isolation.LOG_END) == (-1, 12, 3)
    assert find(rig, EARLIEST) == find(rig, EARLIEST_LOCAL) == (-1, 2, 3)
    assert find(rig, LATEST_TIERED) == find(rig, EARLIEST_PENDING_UPLOAD) == (-1, -1, -1)


@pytest.mark.parametrize("timestamp", [MAX_TIMESTAMP, 0, 1000])
def test_an_offset_by_timestamp_is_returned_only_below_the_high_watermark(timestamp: int) -> None:
    rig = Rig(appended=5)
    assert find(rig, timestamp) == (-1, -1, -1)
    rig.log.by_time = (1000, 4, 0)
    assert find(rig, timestamp) == (1000, 4, 0)
    rig.log.by_time = (1000, 5, 0)
    assert find(rig, timestamp) == (-1, -1, -1)


def test_a_new_leader_does_not_return_a_latest_offset_below_its_epochs_start() -> None:
    rig = Rig(replicas=(1, 2), appended=5)
    rig.partition.make_leader(state(epoch=1, replicas=(1, 2)), 0)
    for timestamp in (LATEST, 1000):
        refused(ErrorCode.OFFSET_NOT_AVAILABLE, partial(find, rig, timestamp))
    assert find(rig, EARLIEST) == (-1, 0, 0)
    assert find(rig, LATEST, Isolation.LOG_END) == (-1, 5, 1)  # a follower out of range truncates its log there
    rig.fetch(2, 5)
    assert find(rig, LATEST) == (-1, 5, 1)
