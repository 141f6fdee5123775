"""Rules of replication/partition/isr_tracker.py, on real logs in a directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from replication.partition.partition import FetchPosition, Reader
from storage.log.log import Isolation
from tests.support.replica_harness import World, waiting


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_follower_that_catches_up_is_proposed_for_the_isr(world):
    """F5: the wish goes to the controller, once; its answer comes with the image."""
    wishes = []
    world.replicas.on_isr_wanted = lambda partition, isr: wishes.append(isr)
    world.create("r", replicas=(1, 2, 3), isr=(1,))
    world.load("r", batches=2)
    follower = Reader(2, Isolation.LOG_END, broker_epoch=102)

    def fetch(offset):
        position = FetchPosition(offset, 0)
        waiting(lambda: world.replicas.read("r", 0, position, 1000, follower, min_one_batch=True, fetched_mono_ms=9))

    fetch(1)
    assert wishes == []
    fetch(2)
    fetch(2)
    assert wishes == [(1, 2)]
    world.change("r", isr=[1, 2])
    assert world.partition("r").isr == (1, 2)
    assert world.partition("r").wanted_isr is None


def test_fenced_or_outdated_broker_is_not_proposed(world):
    """Only an active broker, in the registration that it fetches with, may join (KIP-903)."""
    wishes = []
    world.replicas.on_isr_wanted = lambda partition, isr: wishes.append(isr)
    world.create("r", replicas=(1, 2), isr=(1,))

    def fetch(broker_epoch):
        follower = Reader(2, Isolation.LOG_END, broker_epoch=broker_epoch)
        waiting(
            lambda: world.replicas.read(
                "r", 0, FetchPosition(0, 0), 1000, follower, min_one_batch=True, fetched_mono_ms=9
            )
        )

    fetch(99)
    assert wishes == []
    world.apply(world._broker(2, fenced=True))
    fetch(102)
    assert wishes == []
    world.apply(world._broker(2))
    fetch(102)
    assert wishes == [(1, 2)]


def test_follower_that_falls_behind_is_proposed_to_leave(world):
    """F5's other side, asked from time to time."""
    wishes = []
    world.replicas.on_isr_wanted = lambda partition, isr: wishes.append(isr)
    world.create("r", replicas=(1, 2))
    world.load("r")
    world.replicas.check_isrs(30_000)
    assert wishes == []
    world.replicas.check_isrs(30_001)
    world.replicas.check_isrs(60_000)
    assert wishes == [(1,)]


def test_who_has_left_and_says_nothing_is_not_proposed_again(world):
    """Rule 2: with fewer in sync than there have to be, it has all that is committed."""
    wishes = []
    world.replicas.on_isr_wanted = lambda partition, isr: wishes.append(isr)
    world.create("r", replicas=(1, 2), min_insync_replicas=2)
    world.fetch("r", offset=0, replica=2, max_wait_ms=0)
    world.load("r")
    world.pass_time(30_001)
    world.replicas.check_isrs(world.mono_ms)
    world.change("r", isr=[1])
    world.apply(world._broker(2))
    assert wishes == [(1,)]
    world.fetch("r", offset=1, replica=2, max_wait_ms=0)
    assert wishes == [(1,), (1, 2)]


def test_who_has_all_is_proposed_as_soon_as_it_may_join(world):
    """Rule 2: in its session it says nothing of the partition again."""
    wishes = []
    world.replicas.on_isr_wanted = lambda partition, isr: wishes.append(isr)
    world.create("r", replicas=(1, 2), isr=(1,))
    world.apply(world._broker(2, fenced=True))
    session = world.fetch("r", offset=0, replica=2, session=(0, 0), max_wait_ms=0).message.session_id
    world.pass_time(60_000)
    world.fetch_all({}, replica=2, session=(session, 1), max_wait_ms=0)
    assert wishes == []
    world.apply(world._broker(2))
    assert wishes == [(1, 2)]
