"""Guards broker/handlers/records/follower_wakeup.py: followers that wait for records hear that there is more to fetch."""

from __future__ import annotations

from pathlib import Path

from broker.handlers.records.follower_wakeup import LATE_MS, SOON_MS, FollowerCalls
from tests.support.replica_harness import Client, World, named


def test_followers_are_answered_when_another_partition_is_led(tmp_path: Path) -> None:
    """Rule 1: soon, and again; the answer tells nothing, and their sessions go on. Consumers wait on."""
    world = World(tmp_path)
    world.replicas.on_leadership = FollowerCalls(world.sessions, world.deadlines, lambda: world.mono_ms).led
    world.create("old", replicas=(1, 2))
    world.pass_time(LATE_MS)
    follower = Client(world, replica=2, max_wait_ms=500)
    consumer = Client(world, max_wait_ms=500)
    for client in (follower, consumer):
        client.fetch({("old", 0): 0}, max_wait_ms=0)
    reading = consumer.fetch()
    world.create("new", replicas=(1, 2), partitions=3)
    for pause_ms in (SOON_MS, LATE_MS - SOON_MS):
        waiting = follower.fetch()
        world.pass_time(pause_ms - 1)
        assert not waiting.is_done
        world.pass_time(1)
        assert waiting.is_done
        assert named(waiting) == []
    assert not reading.is_done


def test_nobody_is_called_for_a_partition_without_followers(tmp_path: Path) -> None:
    """A broker alone has nobody to call."""
    world = World(tmp_path)
    calls = FollowerCalls(world.sessions, world.deadlines, lambda: world.mono_ms)
    world.replicas.on_leadership = calls.led
    world.create("alone", partitions=3)
    assert len(world.deadlines) == 0
