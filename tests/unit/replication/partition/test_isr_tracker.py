"""The rules of `IsrTracker`, on real logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from replication.partition.follower_progress import FetchPosition
from replication.partition.partition import Reader
from storage.log.log import Isolation
from tests.support.replica_harness import ReplicaHarness, with_disk_reads


@pytest.fixture
def world(tmp_path: Path) -> ReplicaHarness:
    return ReplicaHarness(tmp_path)


@pytest.fixture
def proposals(world: ReplicaHarness) -> list[tuple[int, ...]]:
    """The ISRs proposed to the controller."""
    found: list[tuple[int, ...]] = []
    world.replicas.on_isr_proposed = lambda partition, isr: found.append(isr)
    return found


def test_a_follower_that_caught_up_is_proposed_once(world, proposals):
    world.create("r", replicas=(1, 2, 3), isr=(1,))
    world.load("r", batches=2)
    follower = Reader(2, Isolation.LOG_END, broker_epoch=102)

    def fetch(offset):
        position = FetchPosition(offset, 0)
        with_disk_reads(
            lambda: world.replicas.read("r", 0, position, 1000, follower, min_one_batch=True, fetched_mono_ms=9)
        )

    fetch(1)
    assert proposals == []
    fetch(2)
    fetch(2)
    assert proposals == [(1, 2)]
    world.change("r", isr=[1, 2])
    assert world.partition("r").isr == (1, 2)
    assert world.partition("r").pending_isr is None


def test_a_fenced_broker_or_older_registration_is_not_proposed(world, proposals):
    """KIP-903."""
    world.create("r", replicas=(1, 2), isr=(1,))

    def fetch(broker_epoch):
        follower = Reader(2, Isolation.LOG_END, broker_epoch=broker_epoch)
        position = FetchPosition(0, 0)
        with_disk_reads(
            lambda: world.replicas.read("r", 0, position, 1000, follower, min_one_batch=True, fetched_mono_ms=9)
        )

    fetch(99)
    assert proposals == []
    world.apply(world._broker(2, fenced=True))
    fetch(102)
    assert proposals == []
    world.apply(world._broker(2))
    fetch(102)
    assert proposals == [(1, 2)]


def test_a_follower_that_fell_behind_is_proposed_for_removal_once(world, proposals):
    world.create("r", replicas=(1, 2))
    world.load("r")
    world.replicas.check_isrs(30_000)
    assert proposals == []
    world.replicas.check_isrs(30_001)
    world.replicas.check_isrs(60_000)
    assert proposals == [(1,)]


def test_a_removed_silent_follower_is_not_proposed_again(world, proposals):
    """With too few replicas in sync it may hold everything that is committed."""
    world.create("r", replicas=(1, 2), min_insync_replicas=2)
    world.fetch("r", offset=0, replica=2, max_wait_ms=0)
    world.load("r")
    world.pass_time(30_001)
    world.replicas.check_isrs(world.mono_ms)
    world.change("r", isr=[1])
    world.apply(world._broker(2))
    assert proposals == [(1,)]
    world.fetch("r", offset=1, replica=2, max_wait_ms=0)
    assert proposals == [(1,), (1, 2)]


def test_a_caught_up_follower_is_proposed_when_its_broker_is_unfenced(world, proposals):
    """Its fetch session does not name the partition again."""
    world.create("r", replicas=(1, 2), isr=(1,))
    world.apply(world._broker(2, fenced=True))
    session = world.fetch("r", offset=0, replica=2, session=(0, 0), max_wait_ms=0).message.session_id
    world.pass_time(60_000)
    world.fetch_all({}, replica=2, session=(session, 1), max_wait_ms=0)
    assert proposals == []
    world.apply(world._broker(2))
    assert proposals == [(1, 2)]
