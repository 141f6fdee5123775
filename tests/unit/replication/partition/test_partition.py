"""Rules of replication/partition/partition.py, on a log that is numbers only."""

from __future__ import annotations

import pytest

from protocol.errors import ErrorCode, KafkaError
from replication.metadata.image import PartitionState
from replication.partition.partition import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    Diverged,
    FetchPosition,
    Partition,
    Reader,
    end_key,
    state_key,
)
from storage.log.log import Isolation
from storage.log.log_validator import Origin
from tests.support.partition_rig import LAG_MS, SELF, Rig, UnopenedLog, state

# ---------------------------------------------------------------- high watermark


def test_only_replica_moves_the_high_watermark_with_its_log():
    """Rule 2 and 5: with nobody to wait for, an append is committed at once, and readers hear of it."""
    rig = Rig()
    rig.append(3)
    assert rig.partition.high_watermark == rig.log.high_watermark == 3
    assert rig.settled == [(0, 0)]
    assert rig.woken == [end_key("t", 0), state_key("t", 0)]


def test_new_leader_without_followers_commits_what_its_log_holds():
    """Rule 2."""
    rig = Rig(end=7)
    assert rig.partition.high_watermark == 7
    assert rig.log.epochs == [(0, 7)]


def test_high_watermark_is_the_least_end_of_the_isr():
    """Rule 2 (F5)."""
    rig = Rig(replicas=(1, 2, 3))
    rig.append(10)
    assert rig.partition.high_watermark == 0
    rig.fetch(2, 10)
    assert rig.partition.high_watermark == 0
    rig.fetch(3, 4)
    assert rig.partition.high_watermark == 4
    rig.fetch(3, 10)
    assert rig.partition.high_watermark == 10
    assert rig.settled == [(0, ErrorCode.NONE)]


def test_replica_outside_the_isr_and_far_behind_holds_nothing_up():
    """Rule 2."""
    rig = Rig(replicas=(1, 2, 3), isr=(1, 2))
    rig.append(10)
    rig.fetch(2, 10, mono_ms=LAG_MS * 2)
    rig.fetch(3, 1, mono_ms=LAG_MS * 2)
    assert rig.partition.high_watermark == 10


def test_high_watermark_waits_for_a_follower_close_behind_so_that_it_can_join_under_load():
    """Rule 2 and 6: else the high watermark would run away from it with every append."""
    rig = Rig(replicas=(1, 2))
    rig.partition.lead(state(replicas=(1, 2), isr=(1,)), 0)
    rig.append(10)
    assert rig.partition.high_watermark == 10
    rig.fetch(2, 10, mono_ms=1)
    rig.append(5)
    assert rig.partition.high_watermark == 10
    rig.fetch(2, 15, mono_ms=2)
    assert rig.partition.high_watermark == 15
    assert rig.partition.isr_with(2) == (1, 2)
    rig.append(5)
    rig.partition.isr_without_laggards(LAG_MS + 3, LAG_MS)
    assert rig.partition.high_watermark == 20


def test_high_watermark_counts_a_replica_that_the_controller_was_asked_to_add():
    """Rule 2: it may be in the ISR already."""
    rig = Rig(replicas=(1, 2), isr=(1,))
    rig.fetch(2, 0)
    rig.partition.wanted_isr = (1, 2)
    rig.partition.followers[2].is_joining = False
    rig.append(5)
    assert rig.partition.high_watermark == 0
    rig.fetch(2, 5)
    assert rig.partition.high_watermark == 5


def test_what_was_asked_for_stands_until_the_partition_has_changed():
    """Rule 2: news that are of something else do not say that it was refused."""
    rig = Rig(replicas=(1, 2), isr=(1,))
    rig.partition.wanted_isr = (1, 2)
    rig.partition.lead(state(replicas=(1, 2), isr=(1,)), 0)
    assert rig.partition.wanted_isr == (1, 2)
    rig.partition.lead(PartitionState((1, 2), (1, 2), SELF, 0, 1), 0)
    assert rig.partition.wanted_isr is None


def test_high_watermark_never_goes_back():
    """Rule 1: a follower that asks for less after truncating does not lower it."""
    rig = Rig(replicas=(1, 2))
    rig.append(10)
    rig.fetch(2, 10)
    rig.fetch(2, 3)
    assert rig.partition.high_watermark == 10
    rig.append(1)
    assert rig.partition.high_watermark == 10


def test_high_watermark_stands_still_below_min_insync_replicas():
    """Rule 2 (KIP-966)."""
    rig = Rig(replicas=(1, 2, 3), min_insync_replicas=2)
    rig.append(4)
    rig.partition.lead(state(replicas=(1, 2, 3), isr=(1,)), 0)
    assert rig.partition.high_watermark == 0
    rig.append(1, acks=ACKS_LEADER)
    assert rig.settled == [(4, 0)]
    rig.partition.lead(state(replicas=(1, 2, 3), isr=(1, 2)), 0)
    rig.fetch(2, 5)
    assert rig.partition.high_watermark == 5
    assert rig.settled == [(4, 0), (0, 0)]


def test_shrinking_isr_commits_what_only_the_lost_one_lacked():
    """Rule 2."""
    rig = Rig(replicas=(1, 2))
    rig.append(4)
    assert rig.settled == []
    rig.partition.lead(state(replicas=(1, 2), isr=(1,)), 0)
    assert rig.partition.high_watermark == 4
    assert rig.settled == [(0, 0)]


# ---------------------------------------------------------------- acknowledgement


def test_acks_all_is_refused_below_min_insync_replicas():
    """NOT_ENOUGH_REPLICAS before anything is appended; acks=1 is not concerned."""
    rig = Rig(replicas=(1, 2, 3), isr=(1,), min_insync_replicas=2)
    with pytest.raises(KafkaError) as caught:
        rig.append()
    assert caught.value.code == ErrorCode.NOT_ENOUGH_REPLICAS
    rig.append(acks=ACKS_LEADER)
    rig.append(acks=ACKS_NONE)


def test_min_insync_replicas_counts_no_more_than_there_are_replicas():
    """As in Kafka: min.insync.replicas=2 on one replica is 1."""
    rig = Rig(min_insync_replicas=2)
    rig.append()
    assert rig.settled == [(0, 0)]


def test_acks_one_waits_for_nobody_else():
    """Rule 4."""
    rig = Rig(replicas=(1, 2))
    rig.append(acks=ACKS_LEADER)
    assert rig.settled == [(0, 0)]
    assert rig.partition.high_watermark == 0


def test_waiters_are_settled_in_order_each_once():
    """Rule 4."""
    rig = Rig(replicas=(1, 2))
    for _ in range(4):
        rig.append(2)
    rig.fetch(2, 5)
    assert rig.settled == [(0, 0), (2, 0)]
    rig.fetch(2, 8)
    rig.fetch(2, 8)
    assert rig.settled == [(0, 0), (2, 0), (4, 0), (6, 0)]


def test_duplicate_waits_for_its_own_offset_not_for_those_behind_it():
    """Rule 4: a repeated batch lies before others that wait already."""
    rig = Rig(replicas=(1, 2))
    rig.append(2)
    rig.append(2)
    rig.partition.await_acknowledgement(ACKS_ALL, 2, lambda code: rig.settled.append(("again", code)))
    rig.fetch(2, 2)
    assert rig.settled == [(0, 0), ("again", 0)]


def test_losing_leadership_settles_all_with_an_error_and_wakes_readers():
    """Rule 4 and 5."""
    rig = Rig(replicas=(1, 2), flush_messages=1)
    rig.append(acks=ACKS_ALL)
    rig.append(acks=ACKS_LEADER)
    rig.woken.clear()
    rig.partition.follow(state(leader=2, epoch=1, replicas=(1, 2)))
    assert sorted(rig.settled) == [(0, ErrorCode.NOT_LEADER_OR_FOLLOWER), (1, ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    assert set(rig.woken) == {state_key("t", 0), end_key("t", 0)}
    with pytest.raises(KafkaError) as caught:
        rig.append()
    assert caught.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_failed_directory_settles_all_with_a_storage_error():
    """Rule 4."""
    rig = Rig(replicas=(1, 2))
    rig.append()
    rig.partition.go_offline()
    assert rig.settled == [(0, ErrorCode.KAFKA_STORAGE_ERROR)]


def test_isr_that_shrank_too_far_is_told_after_the_append():
    """NOT_ENOUGH_REPLICAS_AFTER_APPEND when the offset is committed but fewer replicas hold it than wanted."""
    rig = Rig(replicas=(1, 2), min_insync_replicas=2)
    rig.append()
    rig.partition.high_watermark = 1
    rig.partition.isr = (1,)
    assert rig.partition.acknowledged(ACKS_ALL, 1) == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


# ---------------------------------------------------------------- durable means counted


def test_unsynced_records_do_not_count_when_every_one_must_be_synced():
    """Rule 3 (D12b): neither acks=1 nor the high watermark moves before the sync."""
    rig = Rig(flush_messages=1)
    rig.append(2)
    rig.append(1, acks=ACKS_LEADER)
    assert rig.partition.needs_sync
    assert rig.wanted_syncs == 2
    assert rig.partition.high_watermark == 0
    assert rig.settled == []
    rig.sync()
    assert not rig.partition.needs_sync
    assert rig.partition.high_watermark == 3
    assert sorted(rig.settled) == [(0, 0), (2, 0)]


def test_only_every_nth_record_waits_for_a_sync():
    """Rule 3: flush.messages=3."""
    rig = Rig(flush_messages=3)
    rig.append(2)
    assert rig.partition.high_watermark == 2
    assert rig.wanted_syncs == 0
    rig.append(1)
    assert rig.wanted_syncs == 1
    assert rig.partition.needs_sync
    assert rig.partition.high_watermark == 2
    rig.sync()
    assert rig.partition.high_watermark == 3


def test_own_end_does_not_fall_behind_what_was_acknowledged():
    """Rule 1 and 3: the N-th record holds itself up, not those acknowledged without a sync."""
    rig = Rig(flush_messages=3)
    rig.append(2, acks=ACKS_LEADER)
    rig.append(5, acks=ACKS_LEADER)
    assert rig.settled == [(0, 0)]
    assert rig.partition.high_watermark == 2


@pytest.mark.parametrize("use", ["read", "append", "find_offset", "end_offset_for_epoch"])
def test_leading_does_not_open_a_log_that_nobody_uses(use):
    """Rule 6 (D11): the first use of any kind settles the high watermark."""
    log = UnopenedLog(end=7)
    log.is_open, log.high_watermark = False, 5
    partition = Partition(log, SELF, lambda key: None, lambda partition: None)
    partition.lead(state(), 0)
    partition.lead(state(), 0)
    assert not log.is_open
    assert partition.high_watermark == 5
    if use == "read":
        reader = Reader(-1, Isolation.HIGH_WATERMARK)
        partition.read(FetchPosition(0), 100, reader, min_one_batch=True)
    elif use == "append":
        partition.prepare(1, ACKS_ALL, 0, Origin.CLIENT)
    elif use == "find_offset":
        assert partition.find_offset(LATEST, Isolation.HIGH_WATERMARK, -1, leader_only=True).offset == 7
    else:
        assert partition.end_offset_for_epoch(0, -1) == (0, 7)
    assert log.is_open
    assert partition.high_watermark == 7


def test_leader_whose_log_was_not_synced_before_a_crash_wants_a_sync_at_the_first_use():
    """Rule 3 and 6: what a crash may have left unsynced is not shown before it is safe."""
    rig = Rig(end=7, flush_messages=1)
    rig.log.flushed_end_offset = 4
    rig.log.high_watermark = 2
    rig.partition.lead(state(epoch=1), 0)
    assert rig.partition.high_watermark == 4
    assert rig.wanted_syncs == 1
    rig.sync()
    assert rig.partition.high_watermark == 7


# ---------------------------------------------------------------- readers


@pytest.mark.parametrize(
    ("believed", "code"),
    [(4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH), (5, None), (-1, None)],
)
def test_reader_with_another_epoch_is_refused(believed, code):
    """F6."""
    rig = Rig(epoch=5)
    read = lambda: rig.partition.read(  # noqa: E731
        FetchPosition(0, believed), 100, Reader(-1, Isolation.HIGH_WATERMARK), min_one_batch=True
    )
    if code is None:
        assert read().isolation == Isolation.HIGH_WATERMARK
    else:
        with pytest.raises(KafkaError) as caught:
            read()
        assert caught.value.code == code


def test_follower_replica_serves_only_those_who_may_read_it():
    """F6, F1: NOT_LEADER_OR_FOLLOWER, unless the reader does not insist on the leader."""
    rig = Rig()
    rig.partition.follow(state(leader=2, epoch=1))
    position = FetchPosition(0)
    with pytest.raises(KafkaError) as caught:
        rig.partition.read(position, 100, Reader(-1, Isolation.HIGH_WATERMARK), min_one_batch=True)
    assert caught.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    rig.partition.read(position, 100, Reader(-2, Isolation.HIGH_WATERMARK, leader_only=False), min_one_batch=True)


def test_reader_whose_log_is_another_one_is_told_where_they_part():
    """F4's diverging epoch: the last epoch in common and its end."""
    rig = Rig(epoch=1)
    rig.append(10)
    rig.partition.lead(state(epoch=4), 0)
    rig.append(5)
    reader = Reader(2, Isolation.LOG_END)

    def read(offset, last_fetched_epoch):
        rig.partition.read(FetchPosition(offset, 4, last_fetched_epoch), 100, reader, min_one_batch=True)

    read(10, 1)
    read(12, 4)
    with pytest.raises(Diverged) as diverged:
        read(12, 1)
    assert (diverged.value.epoch, diverged.value.end_offset) == (1, 10)
    with pytest.raises(Diverged) as diverged:
        read(12, 3)
    assert (diverged.value.epoch, diverged.value.end_offset) == (1, 10)
    with pytest.raises(Diverged) as diverged:
        read(3, 0)
    assert (diverged.value.epoch, diverged.value.end_offset) == (0, 0)
    rig.log.log_start_offset = 2
    for offset, last_fetched_epoch in ((3, 5), (1, 1)):  # an epoch from the future; an offset that is gone
        with pytest.raises(KafkaError) as caught:
            read(offset, last_fetched_epoch)
        assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


# ---------------------------------------------------------------- ListOffsets


def find(rig, timestamp, isolation=Isolation.HIGH_WATERMARK):
    return tuple(rig.partition.find_offset(timestamp, isolation, -1, leader_only=True))


def test_stand_ins_for_a_time():
    """Latest by isolation, earliest, and what tiered storage would know."""
    rig = Rig(replicas=(1, 2), isr=(1,), epoch=3)
    rig.append(10)
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
def test_offset_found_by_time_is_told_only_when_it_may_be_read(timestamp):
    """Nothing at or after the time, or not committed yet: -1."""
    rig = Rig()
    rig.append(5)
    assert find(rig, timestamp) == (-1, -1, -1)
    rig.log.by_time = (1000, 4, 0)
    assert find(rig, timestamp) == (1000, 4, 0)
    rig.log.by_time = (1000, 5, 0)
    assert find(rig, timestamp) == (-1, -1, -1)


def test_new_leader_does_not_tell_a_latest_offset_that_is_too_low():
    """OFFSET_NOT_AVAILABLE until the high watermark has reached the epoch's start."""
    rig = Rig(replicas=(1, 2))
    rig.append(5)
    rig.partition.lead(state(epoch=1, replicas=(1, 2)), 0)
    for timestamp in (LATEST, 1000):
        with pytest.raises(KafkaError) as caught:
            find(rig, timestamp)
        assert caught.value.code == ErrorCode.OFFSET_NOT_AVAILABLE
    assert find(rig, EARLIEST) == (-1, 0, 0)
    rig.fetch(2, 5)
    assert find(rig, LATEST) == (-1, 5, 1)
