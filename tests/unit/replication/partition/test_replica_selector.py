"""The rules of `ReplicaSelector` and `AppendHistory`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.process.resource_limits import memory_bytes
from protocol.messages import stored_records
from replication.partition.append_history import AppendedBytes, AppendHistory
from replication.partition.replica_selector import ReplicaSelector, SelectReplica, by_backlog, by_rack
from tests.support.replica_harness import Client, ReplicaHarness, fetched, offsets


def replica_harness(path: Path, select: SelectReplica = by_rack, memory: int = 1000, **topic: Any) -> ReplicaHarness:
    """Broker 1 in rack1 leads; 2 and 3, in rack2 and rack3, follow; ten records."""
    harness = ReplicaHarness(path)
    harness.replicas.appended_bytes = AppendedBytes(memory)
    harness.fetching.services.select_replica = ReplicaSelector(harness.replicas, select).select
    harness.sessions.sends_high_watermarks = True
    harness.create(replicas=(1, 2, 3), **topic)
    for _ in range(10):
        harness.produce(acks=1)
    return harness


def preferred_replica(harness: ReplicaHarness, rack: str, offset: int = 0) -> int:
    return int(fetched(harness.fetch(offset=offset, rack=rack, max_wait_ms=0)).preferred_read_replica)


def test_a_consumer_is_redirected_to_the_follower_in_its_rack(tmp_path: Path) -> None:
    harness = replica_harness(tmp_path)
    for follower in (2, 3):
        harness.fetch(replica=follower, offset=10)
    assert [preferred_replica(harness, rack) for rack in ("rack2", "rack3", "rack1", "rack9", "")] == [2, 3, -1, -1, -1]


def test_only_in_sync_followers_that_hold_the_offset_are_candidates(tmp_path: Path) -> None:
    harness = replica_harness(tmp_path, isr=(1, 2))
    harness.fetch(replica=3, offset=10)
    harness.fetch(replica=2, offset=4, log_start_offset=2)
    assert preferred_replica(harness, "rack3") == -1
    assert [preferred_replica(harness, "rack2", offset) for offset in (1, 2, 4, 5)] == [-1, 2, 2, -1]
    harness.apply(harness._broker(2, fenced=True))
    assert preferred_replica(harness, "rack2", 3) == -1


def test_a_follower_without_the_consumers_listener_is_not_selected(tmp_path: Path) -> None:
    harness = replica_harness(tmp_path)
    harness.fetch(replica=2, offset=10)
    broker = harness._broker(2)
    assert isinstance(broker, stored_records.RegisterBrokerRecord)
    broker.end_points[0].name = "INTERNAL"
    harness.apply(broker)
    assert preferred_replica(harness, "rack2") == -1


def test_the_follower_with_the_highest_end_offset_is_selected(tmp_path: Path) -> None:
    harness = replica_harness(tmp_path)
    broker = harness._broker(3)
    assert isinstance(broker, stored_records.RegisterBrokerRecord)
    broker.rack = "rack2"
    harness.apply(broker)
    harness.fetch(replica=2, offset=6)
    harness.fetch(replica=3, offset=7)
    assert preferred_replica(harness, "rack2") == 3
    harness.fetch(replica=2, offset=8)
    assert preferred_replica(harness, "rack2") == 2


def test_a_follower_does_not_redirect_and_serves_committed_records(tmp_path: Path) -> None:
    harness = replica_harness(tmp_path)
    harness.fetch(replica=2, offset=5)
    harness.fetch(replica=3, offset=5)
    harness.change(leader=2)
    data = fetched(harness.fetch(rack="rack2", max_wait_ms=0))
    assert (data.preferred_read_replica, offsets(data)) == (-1, [0, 1, 2, 3, 4])
    data = fetched(harness.fetch(rack="rack2", offset=7, max_wait_ms=0))
    assert (data.error_code, offsets(data)) == (0, [])
    assert fetched(harness.fetch(rack="rack2", offset=11, max_wait_ms=0)).error_code == 1


def test_by_backlog_a_consumer_of_old_records_is_redirected(tmp_path: Path) -> None:
    harness = replica_harness(tmp_path, by_backlog, memory=300)
    for follower in (2, 3):
        harness.fetch(replica=follower, offset=10)
    assert preferred_replica(harness, "", 9) == -1
    assert preferred_replica(harness, "", 0) == 3


def test_a_waiting_follower_fetch_returns_a_new_high_watermark_at_once(tmp_path: Path) -> None:
    harness = replica_harness(tmp_path)
    follower = Client(harness, 12, replica=2, max_wait_ms=500)
    follower.fetch({("t", 0): 10})
    waiting = follower.fetch()
    assert not waiting.is_done
    harness.fetch(replica=3, offset=10)
    harness.drain_purgatory()
    assert waiting.is_done
    assert fetched(waiting).high_watermark == 10


def test_without_a_session_a_follower_fetch_waits_for_records(tmp_path: Path) -> None:
    harness = replica_harness(tmp_path)
    assert not harness.fetch(replica=2, offset=10, max_wait_ms=500).is_done


@pytest.mark.parametrize("step", [1, 7, 50])
def test_appends_to_other_partitions_push_records_out_of_memory(step: int) -> None:
    counter = AppendedBytes(64_000)
    quiet, busy = AppendHistory(counter), AppendHistory(counter)
    quiet.on_append(0, 100)
    for number in range(0, 640, step):
        assert not quiet.exceeds_memory(0, 0, 1, 100)
        busy.on_append(number, 100 * step)
    for number in range(0, 20, step):
        busy.on_append(640 + number, 100 * step)
    assert quiet.exceeds_memory(0, 0, 1, 100)
    assert busy.exceeds_memory(0, 0, 660, 66_000)
    assert not busy.exceeds_memory(200, 0, 660, 66_000)


def test_records_from_before_the_start_count_by_the_partitions_size() -> None:
    history = AppendHistory(AppendedBytes(1000))
    assert history.exceeds_memory(0, 0, 100, 10_000)
    assert not history.exceeds_memory(95, 0, 100, 10_000)


def test_memory_is_limited_by_the_control_group(tmp_path: Path) -> None:
    machine = memory_bytes(())
    limit = tmp_path / "memory.max"
    for text, expected in (("max\n", machine), ("1048576\n", 1 << 20), (f"{machine * 2}\n", machine)):
        limit.write_text(text)
        assert memory_bytes((str(limit), str(tmp_path / "none"))) == expected
