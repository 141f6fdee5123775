"""Rule 5 of replication/partition/replica_manager.py: whoever would wait for the disk waits for a thread instead."""

from __future__ import annotations

import os

import pytest

from protocol.errors import ErrorCode
from replication.partition.partition import FetchPosition, Reader
from storage.io.disk import StorageError
from storage.io.would_block import WouldBlock
from storage.log.log import Isolation
from tests.support.replica_harness import HeldWorker, World, batch

HIGH = Reader(-1, Isolation.HIGH_WATERMARK)


class Outcomes(list):
    """Error code and base offset of every append that ended, in that order."""

    def note(self, code, info, error):
        self.append((code, None if info is None else info.base_offset))


@pytest.fixture
def world(tmp_path) -> World:
    worker = HeldWorker()
    made = World(tmp_path, worker=worker)
    made.create("t")
    worker.holds_reads = True
    return made


def append(world, outcomes, acks=1):
    world.replicas.append("t", 0, batch(), acks=acks, wall_ms=world.wall_ms, done=outcomes.note)


def let_all_write(world):
    while world.worker.writes:
        world.worker.let_write()


def test_appends_keep_their_order_while_the_log_is_opened(world):
    """Coordinators rely on it."""
    outcomes = Outcomes()
    for _ in range(3):
        append(world, outcomes)
    assert (len(world.worker.reads), world.worker.writes, outcomes) == (1, [], [])
    world.worker.let_read()
    append(world, outcomes)
    let_all_write(world)
    assert outcomes == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_an_append_made_by_who_is_told_of_one_comes_behind_those_that_wait(world):
    """The queue is open until it is empty."""
    outcomes, order = Outcomes(), []

    def then(code, info, error):
        order.append("refused")
        world.replicas.append("t", 0, batch(), acks=1, wall_ms=0, done=lambda *_: order.append("later"))

    world.replicas.append("t", 0, memoryview(bytearray(5)), acks=1, wall_ms=0, done=then)
    world.replicas.append("t", 0, batch(), acks=1, wall_ms=0, done=lambda *_: order.append("second"))
    world.worker.let_read()
    let_all_write(world)
    assert order == ["refused", "second", "later"]
    assert outcomes == []


def test_a_failing_disk_takes_the_directory_offline_and_refuses_who_waits(world):
    """Rule 4 of replica_manager.py."""
    outcomes = Outcomes()
    append(world, outcomes)
    append(world, outcomes)
    world.worker.let_read(StorageError("read", "x"))
    assert outcomes == [(ErrorCode.KAFKA_STORAGE_ERROR, None)] * 2
    assert world.partition().is_offline


def test_what_waits_to_be_read_is_not_looked_for_in_a_topic_that_was_made_again(world):
    """The files of the same name are others (storage/io/path_guard.py)."""
    outcomes = Outcomes()
    append(world, outcomes)
    world.delete()
    world.create("t")
    world.worker.let_read()
    assert outcomes == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, None)]
    assert os.listdir(world.partition().log.path) == ["partition.metadata"]


def test_a_partition_that_is_deleted_meanwhile_refuses_who_waits(world):
    """And a thread that fails over it is not to blame."""
    outcomes = Outcomes()
    append(world, outcomes)
    directory = world.partition().log.directory
    world.delete("t")
    assert outcomes == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, None)]
    world.worker.let_read(StorageError("open", "x"))
    assert directory in world.log_manager.directories


def test_a_directory_that_fails_meanwhile_refuses_at_once(world):
    """Though the thread may hang for long."""
    outcomes = Outcomes()
    append(world, outcomes)
    world.replicas.directory_failed(world.partition().log.directory, StorageError("write", "x"))
    assert outcomes == [(ErrorCode.KAFKA_STORAGE_ERROR, None)]
    world.worker.let_read()
    assert len(outcomes) == 1


def test_a_leader_that_is_deposed_meanwhile_refuses(world):
    """What would have been appended is the new leader's affair."""
    outcomes = Outcomes()
    append(world, outcomes)
    world.change("t", leader=2, isr=[2], replicas=[1, 2])
    world.worker.let_read()
    assert outcomes == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, None)]


def test_all_who_wait_for_the_same_are_told_when_it_is_done(world):
    """One opening for all."""
    told = []
    for name in "ab":
        with pytest.raises(WouldBlock) as caught:
            world.replicas.read("t", 0, FetchPosition(0), 1000, HIGH, min_one_batch=True)
        world.replicas.await_disk(world.partition(), caught.value, lambda name=name: told.append(name))
    assert (len(world.worker.reads), told) == (1, [])
    world.worker.let_read()
    assert told == ["a", "b"]
    assert world.replicas.read("t", 0, FetchPosition(0), 1000, HIGH, min_one_batch=True).size == 0


def test_followers_within_their_time_cost_no_opening(tmp_path):
    """Rule 6 of partition.py: a log is not opened in order to look at it."""
    world = World(tmp_path)
    world.create("r", replicas=(1, 2), isr=(1, 2))
    world.replicas.check_isrs(10_000)
    assert not world.partition("r").log.is_open
    world.replicas.check_isrs(60_000)
    assert world.partition("r").log.is_open
