"""Guards replication/partition/replica_selector.py and backlog.py: from which replica a consumer had better read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.process.memory_limit import memory_bytes
from protocol.messages import stored_records
from replication.partition.append_history import AppendHistory, Appends
from replication.partition.replica_selector import Choose, ReadPlaces, by_backlog, by_rack
from tests.support.replica_harness import Client, World, fetched, offsets


def places(path: Path, choose: Choose = by_rack, memory: int = 1000, **topic: Any) -> World:
    """Broker 1 of rack1 leads; 2 and 3, of rack2 and rack3, follow; ten records."""
    world = World(path)
    world.replicas.appends = Appends(memory)
    world.fetching.select_replica = ReadPlaces(world.replicas, choose).select
    world.sessions.tells_watermarks = True
    world.create(replicas=(1, 2, 3), **topic)
    for _ in range(10):
        world.produce(acks=1)
    return world


def told(world: World, rack: str, offset: int = 0) -> int:
    return int(fetched(world.fetch(offset=offset, rack=rack, max_wait_ms=0)).preferred_read_replica)


def test_a_consumer_is_sent_to_the_follower_of_its_rack(tmp_path: Path) -> None:
    """Rule 2: and to nobody else where the leader is in it, or nobody is, or it names none."""
    world = places(tmp_path)
    for follower in (2, 3):
        world.fetch(replica=follower, offset=10)
    assert [told(world, rack) for rack in ("rack2", "rack3", "rack1", "rack9", "")] == [2, 3, -1, -1, -1]


def test_only_followers_in_sync_that_hold_the_offset_count(tmp_path: Path) -> None:
    """Rule 1: else a reader would be sent back and forth, for as long as the follower lags."""
    world = places(tmp_path, isr=(1, 2))
    world.fetch(replica=3, offset=10)
    world.fetch(replica=2, offset=4, log_start_offset=2)
    assert told(world, "rack3") == -1
    assert [told(world, "rack2", offset) for offset in (1, 2, 4, 5)] == [-1, 2, 2, -1]
    world.apply(world._broker(2, fenced=True))
    assert told(world, "rack2", 3) == -1


def test_of_several_in_the_rack_the_one_that_is_furthest(tmp_path: Path) -> None:
    """Rule 2."""
    world = places(tmp_path)
    broker = world._broker(3)
    assert isinstance(broker, stored_records.RegisterBrokerRecord)
    broker.rack = "rack2"
    world.apply(broker)
    world.fetch(replica=2, offset=6)
    world.fetch(replica=3, offset=7)
    assert told(world, "rack2") == 3
    world.fetch(replica=2, offset=8)
    assert told(world, "rack2") == 2


def test_who_does_not_lead_sends_nobody_elsewhere(tmp_path: Path) -> None:
    """A follower serves what is committed, as far as it knows; behind that there is nothing, behind its end an error."""
    world = places(tmp_path)
    world.fetch(replica=2, offset=5)
    world.fetch(replica=3, offset=5)
    world.change(leader=2)
    data = fetched(world.fetch(rack="rack2", max_wait_ms=0))
    assert (data.preferred_read_replica, offsets(data)) == (-1, [0, 1, 2, 3, 4])
    data = fetched(world.fetch(rack="rack2", offset=7, max_wait_ms=0))
    assert (data.error_code, offsets(data)) == (0, [])
    assert fetched(world.fetch(rack="rack2", offset=11, max_wait_ms=0)).error_code == 1


def test_who_reads_what_memory_does_not_hold_is_sent_to_a_follower(tmp_path: Path) -> None:
    """Rule 3, RocketMQ's (I4): whatever the rack is."""
    world = places(tmp_path, by_backlog, memory=300)
    for follower in (2, 3):
        world.fetch(replica=follower, offset=10)
    assert told(world, "", 9) == -1
    assert told(world, "", 0) == 3


def test_a_follower_hears_of_the_high_watermark_at_once(tmp_path: Path) -> None:
    """Its readers see no further; else it would hear when the next record comes, or its patience is over."""
    world = places(tmp_path)
    follower = Client(world, 12, replica=2, max_wait_ms=500)
    follower.fetch({("t", 0): 10})
    waiting = follower.fetch()
    assert not waiting.is_done
    world.fetch(replica=3, offset=10)
    world.settle()
    assert waiting.is_done
    assert fetched(waiting).high_watermark == 10


def test_a_follower_without_a_session_waits_for_records(tmp_path: Path) -> None:
    """Nobody knows what it was told: answered at once, it would ask again and again."""
    world = places(tmp_path)
    assert not world.fetch(replica=2, offset=10, max_wait_ms=500).is_done


@pytest.mark.parametrize("step", [1, 7, 50])
def test_the_counter_is_of_the_whole_broker(step: int) -> None:
    """I4: a quiet partition's records are pushed out of memory by the others'."""
    appends = Appends(64_000)
    quiet, busy = AppendHistory(appends), AppendHistory(appends)
    quiet.appended(0, 100)
    for number in range(0, 640, step):
        assert not quiet.is_deep(0, 0, 1, 100)
        busy.appended(number, 100 * step)
    for number in range(0, 20, step):
        busy.appended(640 + number, 100 * step)
    assert quiet.is_deep(0, 0, 1, 100)
    assert busy.is_deep(0, 0, 660, 66_000)
    assert not busy.is_deep(200, 0, 660, 66_000)


def test_what_was_written_before_the_start_counts_by_the_partitions_own_size() -> None:
    """Rule 3: nobody has noted when it was."""
    history = AppendHistory(Appends(1000))
    assert history.is_deep(0, 0, 100, 10_000)
    assert not history.is_deep(95, 0, 100, 10_000)


def test_memory_is_what_the_control_group_allows(tmp_path: Path) -> None:
    """Where it says so."""
    machine = memory_bytes(())
    limit = tmp_path / "memory.max"
    for text, expected in (("max\n", machine), ("1048576\n", 1 << 20), (f"{machine * 2}\n", machine)):
        limit.write_text(text)
        assert memory_bytes((str(limit), str(tmp_path / "none"))) == expected
