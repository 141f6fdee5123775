"""Rule 8 of replication/partition/replica_manager.py: new logs of which records are synced at once are ready before the first."""

from __future__ import annotations

from pathlib import Path

from protocol.errors import ErrorCode
from storage.io.disk import StorageError
from storage.io.flush_task import Sync
from tests.support.replica_harness import HeldWorker, World, batch


def opened(world: World, partitions: int) -> list[int]:
    return [index for index in range(partitions) if world.partition("t", index).log.is_open]


def test_the_first_record_of_such_a_topic_waits_for_a_sync_of_its_log_and_nothing_else(tmp_path: Path) -> None:
    """Names, epochs and the directory are durable by then."""
    worker = HeldWorker()
    world = World(tmp_path, worker=worker)
    world.create("t", flush_messages=1)
    worker.let_sync()
    world.replicas.append("t", 0, batch(), acks=-1, wall_ms=world.wall_ms, done=lambda *_: None)
    worker.let_write()
    ((sync, _),) = worker.syncs
    assert isinstance(sync, Sync)
    assert sync.is_of_files
    assert [file.path for file in sync.files] == [f"{world.partition('t').log.path}/00000000000000000000.log"]


def test_any_other_topic_is_opened_when_it_is_used(tmp_path: Path) -> None:
    """Nobody waits for its disk, and it may never be used."""
    world = World(tmp_path)
    world.create("t", partitions=3)
    assert opened(world, 3) == []


def test_one_is_opened_at_a_time(tmp_path: Path) -> None:
    """Who reads something in the same directory waits for one of a thousand; the syncs share their rounds."""
    worker = HeldWorker()
    worker.holds_reads = True
    world = World(tmp_path, worker=worker)
    world.create("t", partitions=3, flush_messages=1)
    for count in range(3):
        assert opened(world, 3) == list(range(count))
        assert len(worker.reads) == 1
        assert worker.syncs == []  # they are synced together
        worker.let_read()
    assert opened(world, 3) == [0, 1, 2]
    assert worker.reads == []
    assert len(worker.syncs) == 3


def test_what_is_gone_before_its_turn_is_passed_over(tmp_path: Path) -> None:
    """A topic that was deleted again, and one whose directory fails."""
    worker = HeldWorker()
    worker.holds_reads = True
    world = World(tmp_path, worker=worker, directories=2)
    world.create("t", partitions=2, flush_messages=1)
    world.create("u", partitions=4, flush_messages=1)
    homes = [world.partition("u", index).log.directory for index in range(4)]
    world.delete("t")
    worker.let_read()
    worker.let_read(StorageError("open", "x"))
    while worker.reads:
        worker.let_read()
    sound = [index for index in range(4) if homes[index] != homes[0]]
    assert [index for index in range(4) if world.partition("u", index).log.is_open] == sound
    assert world.partition("u", 0).is_offline


def test_an_append_need_not_wait_for_those_before_it(tmp_path: Path) -> None:
    """It opens its own log."""
    worker = HeldWorker()
    worker.holds_reads = True
    world = World(tmp_path, worker=worker)
    world.create("t", partitions=3, flush_messages=1)
    outcomes: list[ErrorCode] = []
    world.replicas.append("t", 2, batch(), acks=-1, wall_ms=world.wall_ms, done=lambda code, *_: outcomes.append(code))
    assert len(worker.reads) == 2
    worker.reads.reverse()
    worker.let_read()
    worker.let_write()
    worker.let_sync()
    assert outcomes == [ErrorCode.NONE]
    while worker.reads:
        worker.let_read()
    assert opened(world, 3) == [0, 1, 2]
