"""A look-up that would block waits for a reader thread."""

from __future__ import annotations

import os

import pytest

from protocol.errors import ErrorCode
from replication.partition.follower_progress import FetchPosition
from replication.partition.partition import Reader
from storage.io.disk import StorageError
from storage.io.would_block import WouldBlock
from storage.log.log import Isolation
from tests.support.replica_harness import AppendResults, HeldIoExecutor, ReplicaHarness, batch

HIGH = Reader(-1, Isolation.HIGH_WATERMARK)


@pytest.fixture
def results() -> AppendResults:
    return AppendResults()


@pytest.fixture
def world(tmp_path) -> ReplicaHarness:
    worker = HeldIoExecutor()
    made = ReplicaHarness(tmp_path, worker=worker)
    made.create("t")
    worker.holds_reads = True
    return made


def append(world, results, acks=1):
    world.replicas.append("t", 0, batch(), acks=acks, wall_ms=world.wall_ms, done=results.add)


def let_all_write(world):
    while world.worker.writes:
        world.worker.let_write()


def test_appends_keep_their_order_while_the_log_is_opened(world, results):
    for _ in range(3):
        append(world, results)
    assert (len(world.worker.reads), world.worker.writes, results) == (1, [], [])
    world.worker.let_read()
    append(world, results)
    let_all_write(world)
    assert results == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_an_append_made_in_a_callback_queues_behind_the_waiting_ones(world, results):
    order = []

    def then(code, info, error):
        order.append("refused")
        world.replicas.append("t", 0, batch(), acks=1, wall_ms=0, done=lambda *_: order.append("later"))

    world.replicas.append("t", 0, memoryview(bytearray(5)), acks=1, wall_ms=0, done=then)
    world.replicas.append("t", 0, batch(), acks=1, wall_ms=0, done=lambda *_: order.append("second"))
    world.worker.let_read()
    let_all_write(world)
    assert order == ["refused", "second", "later"]
    assert results == []


def test_a_failed_disk_read_fails_the_waiting_appends(world, results):
    append(world, results)
    append(world, results)
    world.worker.let_read(StorageError("read", "x"))
    assert results == [(ErrorCode.KAFKA_STORAGE_ERROR, None)] * 2
    assert world.partition().is_offline


def test_a_pending_look_up_is_not_run_in_a_recreated_topic(world, results):
    append(world, results)
    world.delete()
    world.create("t")
    world.worker.let_read()
    assert results == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, None)]
    assert os.listdir(world.partition().log.path) == ["partition.metadata"]


def test_deleting_a_partition_fails_its_waiting_appends_and_ignores_their_disk_errors(world, results):
    append(world, results)
    directory = world.partition().log.directory
    world.delete("t")
    assert results == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, None)]
    world.worker.let_read(StorageError("open", "x"))
    assert directory in world.log_manager.directories


def test_a_failed_directory_fails_waiting_appends_before_the_thread_returns(world, results):
    append(world, results)
    world.replicas.directory_failed(world.partition().log.directory, StorageError("write", "x"))
    assert results == [(ErrorCode.KAFKA_STORAGE_ERROR, None)]
    world.worker.let_read()
    assert len(results) == 1


def test_appends_that_wait_for_the_disk_fail_after_a_loss_of_leadership(world, results):
    append(world, results)
    world.change("t", leader=2, isr=[2], replicas=[1, 2])
    world.worker.let_read()
    assert results == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, None)]


def test_equal_look_ups_share_one_disk_read(world):
    completed = []
    for name in "ab":
        with pytest.raises(WouldBlock) as caught:
            world.replicas.read("t", 0, FetchPosition(0), 1000, HIGH, min_one_batch=True)
        world.replicas.await_disk(world.partition(), caught.value, lambda name=name: completed.append(name))
    assert (len(world.worker.reads), completed) == (1, [])
    world.worker.let_read()
    assert completed == ["a", "b"]
    assert world.replicas.read("t", 0, FetchPosition(0), 1000, HIGH, min_one_batch=True).size == 0


def test_the_isr_check_opens_no_log_while_followers_are_within_the_allowed_lag(tmp_path):
    world = ReplicaHarness(tmp_path)
    world.create("r", replicas=(1, 2), isr=(1, 2))
    world.replicas.check_isrs(10_000)
    assert not world.partition("r").log.is_open
    world.replicas.check_isrs(60_000)
    assert world.partition("r").log.is_open
