"""The rules of `IsrTracker`, on real logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protocol.messages import stored_records
from replication.partition.partition import Reader
from storage.log.log_reader import Isolation
from tests.support.replica_harness import ReplicaHarness


@pytest.fixture
def harness(tmp_path: Path) -> ReplicaHarness:
    return ReplicaHarness(tmp_path)


@pytest.fixture
def proposals(harness: ReplicaHarness) -> list[tuple[int, ...]]:
    """The ISRs proposed to the controller."""
    found: list[tuple[int, ...]] = []
    harness.replicas.on_isr_proposed = lambda partition, isr: found.append(isr)
    return found


def fetch(harness: ReplicaHarness, offset: int, broker_epoch: int = 102) -> None:
    harness.read(Reader(2, Isolation.LOG_END, broker_epoch=broker_epoch), "r", offset, epoch=0, fetched_mono_ms=9)


def test_a_follower_that_caught_up_is_proposed_once(harness: ReplicaHarness, proposals: list[tuple[int, ...]]) -> None:
    harness.create("r", replicas=(1, 2, 3), isr=(1,))
    harness.load("r", batches=2)
    fetch(harness, 1)
    assert proposals == []
    fetch(harness, 2)
    fetch(harness, 2)
    assert proposals == [(1, 2)]
    harness.change("r", isr=[1, 2])
    assert harness.partition("r").isr == (1, 2)
    assert harness.partition("r").pending_isr is None


def test_a_fenced_broker_or_older_registration_is_not_proposed(
    harness: ReplicaHarness, proposals: list[tuple[int, ...]]
) -> None:
    """KIP-903."""
    harness.create("r", replicas=(1, 2), isr=(1,))
    fetch(harness, 0, broker_epoch=99)
    assert proposals == []
    harness.apply(harness._broker(2, fenced=True))
    fetch(harness, 0)
    assert proposals == []
    harness.apply(harness._broker(2))
    fetch(harness, 0)
    assert proposals == [(1, 2)]


def test_the_high_watermark_does_not_wait_for_a_joining_follower_whose_broker_is_fenced(
    harness: ReplicaHarness, proposals: list[tuple[int, ...]]
) -> None:
    """It was killed when it had nearly caught up."""
    harness.create("r", replicas=(1, 2), isr=(1,))
    harness.load("r", batches=2)
    fetch(harness, 1)
    append = harness.append("r")
    assert (append.is_done, proposals) == (False, [])
    harness.apply(harness._broker(2, fenced=True))
    assert append.value.base_offset == 2


def test_a_follower_that_fell_behind_is_proposed_for_removal_once(
    harness: ReplicaHarness, proposals: list[tuple[int, ...]]
) -> None:
    harness.create("r", replicas=(1, 2))
    harness.load("r")
    harness.replicas.check_isrs(30_000)
    assert proposals == []
    harness.replicas.check_isrs(30_001)
    harness.replicas.check_isrs(60_000)
    assert proposals == [(1,)]


def test_a_removed_silent_follower_is_not_proposed_again(
    harness: ReplicaHarness, proposals: list[tuple[int, ...]]
) -> None:
    """With too few replicas in sync it may hold everything that is committed."""
    harness.create("r", replicas=(1, 2), min_insync_replicas=2)
    harness.fetch("r", offset=0, replica=2, max_wait_ms=0)
    harness.load("r")
    harness.pass_time(30_001)
    harness.replicas.check_isrs(harness.mono_ms)
    harness.change("r", isr=[1])
    harness.apply(harness._broker(2))
    assert proposals == [(1,)]
    harness.fetch("r", offset=1, replica=2, max_wait_ms=0)
    assert proposals == [(1,), (1, 2)]


def begin_session_of_fenced(harness: ReplicaHarness) -> int:
    """Broker 2, fenced and not in sync, fetches partition r; a minute passes. Returns the id of its fetch session."""
    harness.create("r", replicas=(1, 2), isr=(1,))
    harness.apply(harness._broker(2, fenced=True))
    session: int = harness.fetch("r", offset=0, replica=2, session=(0, 0), max_wait_ms=0).message.session_id
    harness.pass_time(60_000)
    return session


def test_a_caught_up_follower_is_proposed_when_its_broker_is_unfenced(
    harness: ReplicaHarness, proposals: list[tuple[int, ...]]
) -> None:
    """Its fetch session does not name the partition again."""
    session = begin_session_of_fenced(harness)
    harness.fetch_all({}, replica=2, session=(session, 1), max_wait_ms=0)
    assert proposals == []
    harness.apply(harness._broker(2))
    assert proposals == [(1, 2)]


def test_a_caught_up_follower_that_fetches_after_its_broker_is_unfenced_is_proposed_by_the_check(
    harness: ReplicaHarness, proposals: list[tuple[int, ...]]
) -> None:
    session = begin_session_of_fenced(harness)
    harness.apply(harness._broker(2))
    harness.replicas.check_isrs(harness.mono_ms)
    assert proposals == []
    harness.fetch_all({}, replica=2, session=(session, 1), max_wait_ms=0)
    assert proposals == []
    harness.replicas.check_isrs(harness.mono_ms)
    assert proposals == [(1, 2)]


def test_a_follower_whose_log_directory_is_offline_is_not_proposed(
    harness: ReplicaHarness, proposals: list[tuple[int, ...]]
) -> None:
    """It has fetched everything until its directory failed, and the controller's removal is a metadata change."""
    first, second = b"a" * 16, b"b" * 16
    harness.create("r", replicas=(1, 2))
    harness.change("r", directories=[first, first])
    harness.fetch("r", offset=0, replica=2, max_wait_ms=0)
    harness.apply(registration_change(harness, [second]))
    harness.change("r", isr=[1])
    fetch(harness, 0)
    assert proposals == []
    harness.change("r", directories=[first, second])
    assert proposals == [(1, 2)]


def registration_change(harness: ReplicaHarness, directories: list[Any]) -> Any:
    """A BrokerRegistrationChangeRecord of broker 2, for a log directory that failed."""
    epoch = harness.image.brokers[2].epoch
    return stored_records.BrokerRegistrationChangeRecord(broker_id=2, broker_epoch=epoch, log_dirs=directories)
