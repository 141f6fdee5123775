"""Wakeup of waiting follower fetches."""

from __future__ import annotations

from pathlib import Path

from broker.handlers.records.follower_wakeup import FIRST_WAKEUP_MS, SECOND_WAKEUP_MS, FollowerWakeup
from tests.support.replica_harness import Client, ReplicaHarness, named


def test_follower_fetches_complete_when_another_partition_is_led(tmp_path: Path) -> None:
    harness = ReplicaHarness(tmp_path)
    harness.replicas.on_leadership_changed = FollowerWakeup(
        harness.sessions, harness.timers, lambda: harness.mono_ms
    ).on_leadership_change
    harness.create("old", replicas=(1, 2))
    harness.pass_time(SECOND_WAKEUP_MS)
    follower = Client(harness, replica=2, max_wait_ms=500)
    consumer = Client(harness, max_wait_ms=500)
    for client in (follower, consumer):
        client.fetch({("old", 0): 0}, max_wait_ms=0)
    reading = consumer.fetch()
    harness.create("new", replicas=(1, 2), partitions=3)
    for pause_ms in (FIRST_WAKEUP_MS, SECOND_WAKEUP_MS - FIRST_WAKEUP_MS):
        waiting = follower.fetch()
        harness.pass_time(pause_ms - 1)
        assert not waiting.is_done
        harness.pass_time(1)
        assert waiting.is_done
        assert named(waiting) == []
    assert not reading.is_done


def test_partitions_without_followers_cause_no_wakeup(tmp_path: Path) -> None:
    harness = ReplicaHarness(tmp_path)
    wakeup = FollowerWakeup(harness.sessions, harness.timers, lambda: harness.mono_ms)
    harness.replicas.on_leadership_changed = wakeup.on_leadership_change
    harness.create("alone", partitions=3)
    assert len(harness.timers) == 0
