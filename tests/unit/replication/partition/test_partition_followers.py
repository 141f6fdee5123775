"""Rules of replication/partition/partition.py about followers and the ISR, on a log that is numbers only."""

from __future__ import annotations

import pytest

from protocol.errors import ErrorCode, KafkaError
from replication.partition.partition import Partition
from tests.support.partition_rig import LAG_MS, SELF, Rig, UnopenedLog, state


def test_follower_joins_when_it_has_the_high_watermark_and_this_epochs_start():
    """Rule 6 (F5)."""
    rig = Rig(replicas=(1, 2, 3), isr=(1, 3))
    rig.append(10)
    rig.fetch(3, 8)
    rig.fetch(2, 7)
    assert rig.partition.isr_with(2) is None
    rig.fetch(2, 8)
    assert rig.partition.isr_with(2) == (1, 3, 2)
    assert rig.partition.isr_with(3) is None
    rig.partition.wanted_isr = (1, 3, 2)
    assert rig.partition.isr_with(2) is None


def test_follower_does_not_join_before_this_epochs_start():
    """Rule 6: the high watermark of a new leader may lag behind what was committed."""
    rig = Rig(replicas=(1, 2, 3), isr=(1, 3))
    rig.append(10)
    rig.partition.lead(state(epoch=1, replicas=(1, 2, 3), isr=(1, 3)), 0)
    rig.fetch(2, 9)
    assert rig.partition.isr_with(2) is None
    rig.fetch(2, 10)
    assert rig.partition.isr_with(2) == (1, 3, 2)


def test_follower_that_has_not_been_at_the_end_for_too_long_leaves():
    """Rule 6: what counts is when it last had all that there was."""
    rig = Rig(replicas=(1, 2, 3))
    rig.append(10)
    rig.fetch(2, 10, mono_ms=1000)
    rig.fetch(3, 10, mono_ms=1000)
    rig.append(10)
    rig.fetch(2, 20, mono_ms=20_000)
    rig.fetch(3, 15, mono_ms=20_000)
    assert rig.partition.isr_without_laggards(LAG_MS, LAG_MS) is None
    assert rig.partition.isr_without_laggards(LAG_MS + 1001, LAG_MS) == (1, 2)


def test_follower_one_fetch_behind_a_steady_load_stays():
    """Rule 6: it had at each fetch what there was at the fetch before."""
    rig = Rig(replicas=(1, 2))
    for turn in range(100):
        rig.append(10)
        rig.fetch(2, turn * 10, mono_ms=turn * 1000)
    assert rig.partition.isr_without_laggards(100_000, LAG_MS) is None


def test_follower_of_a_log_that_nobody_uses_is_dropped_too():
    """Rule 6 and 7: looking for laggards settles what has to be known."""
    log = UnopenedLog(end=7)
    log.is_open = False
    partition = Partition(log, SELF, lambda key: None, lambda partition: None)
    partition.lead(state(replicas=(1, 2)), 0)
    assert partition.isr_without_laggards(LAG_MS + 1, LAG_MS) == (1,)
    assert partition.epoch_start_offset == 7
    partition.follow(state(leader=2, epoch=1, replicas=(1, 2)))
    assert partition.isr_without_laggards(LAG_MS + 1, LAG_MS) is None


def test_idle_follower_at_the_end_stays_though_it_does_not_fetch():
    """Rule 6: nothing to fetch is no lag."""
    rig = Rig(replicas=(1, 2))
    rig.append(10)
    rig.fetch(2, 10)
    assert rig.partition.isr_without_laggards(LAG_MS * 100, LAG_MS) is None


def test_follower_that_never_fetched_is_given_the_allowed_lag_from_the_election_on():
    """Rule 6."""
    rig = Rig(replicas=(1, 2), end=3)
    assert rig.partition.isr_without_laggards(LAG_MS, LAG_MS) is None
    assert rig.partition.isr_without_laggards(LAG_MS + 1, LAG_MS) == (1,)


def test_stranger_is_no_follower():
    """A broker that is no replica, or an older registration of one, changes nothing."""
    rig = Rig(replicas=(1, 2))
    rig.append(5)
    with pytest.raises(KafkaError) as caught:
        rig.fetch(9, 5)
    assert caught.value.code == ErrorCode.UNKNOWN_LEADER_EPOCH
    with pytest.raises(KafkaError) as caught:
        rig.fetch(9, 5, epoch=-1)
    assert caught.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    rig.fetch(2, 3, broker_epoch=7)
    with pytest.raises(KafkaError):
        rig.fetch(2, 5, broker_epoch=6)
    assert rig.partition.high_watermark == 3


def test_new_epoch_forgets_where_followers_were():
    """What a follower held under another leader may be cut off."""
    rig = Rig(replicas=(1, 2))
    rig.append(5)
    rig.fetch(2, 5)
    rig.partition.lead(state(epoch=1, replicas=(1, 2)), 0)
    rig.append(5)
    assert rig.partition.high_watermark == 5
    rig.fetch(2, 10, epoch=1)
    assert rig.partition.high_watermark == 10
