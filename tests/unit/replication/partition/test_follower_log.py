"""Guards replication/partition/follower_log.py: what a follower does to its log, and when it must not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protocol.records import BatchBuilder
from replication.partition.follower_log import Following, LeaderBounds
from replication.partition.partition import Partition
from storage.io.checkpoint_file import HIGH_WATERMARKS, read_offsets
from storage.io.disk import Disk, StorageError
from tests.support.faulty_disk import FaultyDisk
from tests.support.replica_harness import NOW_MS, HeldWorker, World

BOUNDS = LeaderBounds(high_watermark=1, log_start_offset=0)


def batches(*epochs: int, at: int = 0, size: int = 10) -> bytearray:
    """One record each, as leaders of these epochs have appended them."""
    data = bytearray()
    for offset, epoch in enumerate(epochs, at):
        builder = BatchBuilder(base_offset=offset, leader_epoch=epoch)
        builder.append(NOW_MS, None, bytes(size))
        data += builder.build()
    return data


class Rig:
    """A partition of broker 2, or of this one, and who follows."""

    def __init__(self, path: Path, *, is_led_here: bool = False, disk: Disk | None = None) -> None:
        self.worker = HeldWorker()
        self.world = World(path, worker=self.worker, disk=disk)
        self.world.create(replicas=(1, 2), leader=1 if is_led_here else 2)
        self.following = Following(self.world.replicas, self.world.log_manager, self.worker)
        self.ended: list[bool] = []
        self.opened = 0

    @property
    def partition(self) -> Partition:
        return self.world.partition()

    def open(self) -> None:
        self.following.open(self.partition, self._opened)

    def _opened(self) -> None:
        self.opened += 1

    def append(self, records: Any, bounds: LeaderBounds = BOUNDS) -> None:
        self.following.append(self.partition, records, bounds, NOW_MS, self.ended.append)

    def appended(self, records: Any, bounds: LeaderBounds = BOUNDS) -> None:
        self.append(records, bounds)
        self.worker.let_write()
        assert self.ended.pop() is True


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    rig = Rig(tmp_path)
    rig.open()
    assert rig.opened == 1
    return rig


def test_batches_are_taken_over_with_the_leaders_bounds(rig: Rig) -> None:
    """Rule 2: the high watermark as far as this log goes, the start as far as the high watermark goes."""
    rig.appended(batches(0, 0, 0), LeaderBounds(high_watermark=9, log_start_offset=2))
    partition = rig.partition
    assert (partition.log.log_end_offset, partition.high_watermark, partition.log.log_start_offset) == (3, 3, 2)
    rig.append(b"", LeaderBounds(high_watermark=3, log_start_offset=5))
    assert rig.ended == [True]
    assert partition.log.log_start_offset == 3


def test_more_than_a_segment_holds_comes_in_parts(tmp_path: Path) -> None:
    """The leader's segment may be larger than those that are allowed now."""
    rig = Rig(tmp_path)
    rig.world.create("small", replicas=(1, 2), leader=2, segment_bytes=1 << 20)
    partition = rig.world.partition("small")
    partition.log.open()
    rig.following.append(partition, batches(0, 0, 0, size=400_000), BOUNDS, NOW_MS, rig.ended.append)
    rig.worker.let_write()
    assert rig.ended == [True]
    assert partition.log.log_end_offset == 2


def test_a_log_that_is_written_to_is_not_asked_where_it_ends(tmp_path: Path) -> None:
    """Rule 3: what clients sent is on its way when another broker is elected."""
    rig = Rig(tmp_path, is_led_here=True)
    rig.world.produce()
    rig.world.change(leader=2)
    rig.open()
    assert rig.opened == 0
    rig.worker.let_write()
    rig.worker.let_sync()
    assert rig.opened == 1
    assert rig.partition.log.log_end_offset == 1


def test_where_logs_part_the_log_is_cut(rig: Rig) -> None:
    """The leader knows epoch 1 up to offset 2; the records of epoch 3 here are of a leader that lost."""
    rig.appended(batches(0))
    rig.world.change(leader=2)
    rig.open()
    rig.appended(batches(1, 1, at=1))
    rig.following.truncate(rig.partition, 0, 4, rig.ended.append)
    assert rig.ended == [True]
    assert rig.partition.log.log_end_offset == 1
    assert rig.partition.high_watermark == 1


def test_a_cut_before_the_logs_start_leaves_the_log_empty_there(rig: Rig) -> None:
    """A leader that lost records is the leader all the same: what comes next must continue where it ends."""
    rig.appended(batches(0, 0, 0), LeaderBounds(3, 2))
    rig.following.truncate(rig.partition, 0, 1, rig.ended.append)
    log = rig.partition.log
    assert (rig.ended, log.log_end_offset) == ([True], 1)
    assert log.log_start_offset == 1
    assert rig.partition.high_watermark == 1


def test_what_another_leader_does_not_have_is_not_cut(rig: Rig) -> None:
    """Rule 4: the leader changes while the cut waits for the log to be at rest."""
    rig.appended(batches(0, 0))
    rig.append(batches(0, at=2))
    rig.following.truncate(rig.partition, 0, 1, rig.ended.append)
    assert rig.ended == []
    rig.world.change(leader=2)
    rig.worker.let_write()
    rig.worker.let_sync()
    assert rig.ended == [True, True]
    assert rig.partition.log.log_end_offset == 3


def test_a_cut_waits_for_room(tmp_path: Path) -> None:
    """Rule 6: its checkpoints come first, and nothing is cut without them."""
    disk = FaultyDisk()
    rig = Rig(tmp_path, disk=disk)
    rig.open()
    rig.appended(batches(0, 0), LeaderBounds(high_watermark=2, log_start_offset=0))
    ((directory, write_checkpoints),) = rig.world.log_manager.checkpoint()
    write_checkpoints()

    def checkpoint() -> int:
        return read_offsets(disk, f"{directory}/{HIGH_WATERMARKS}")["t", 0]

    disk.room = 0
    rig.worker.holds_work = True
    rig.following.truncate(rig.partition, 0, 1, rig.ended.append)
    with pytest.raises(StorageError, match="No space"):
        rig.worker.writes[0][0]()
    assert (rig.ended, rig.partition.is_offline, rig.partition.log.log_end_offset, checkpoint()) == ([], False, 2, 2)
    disk.room = None
    rig.worker.let_write()
    assert (rig.ended, rig.partition.log.log_end_offset, checkpoint()) == ([True], 1, 1)


def test_a_cut_that_finds_no_room_until_the_end_fails(tmp_path: Path) -> None:
    """Rule 6: a shutdown does not wait for room."""
    disk = FaultyDisk()
    rig = Rig(tmp_path, disk=disk)
    rig.open()
    rig.appended(batches(0, 0))
    disk.room = 0
    rig.worker.holds_work = True
    rig.following.truncate(rig.partition, 0, 1, rig.ended.append)
    rig.worker.let_write(StorageError("write", rig.partition.log.path))
    assert (rig.ended, rig.partition.is_offline) == ([False], True)


def test_who_is_elected_while_it_writes_counts_what_it_has_written(rig: Rig) -> None:
    """Else nobody sees these records before the next ones are appended."""
    rig.world.change(isr=[1, 2])
    rig.append(batches(0))
    rig.world.change(leader=1, isr=[1])
    rig.partition.settle()
    rig.worker.let_write()
    assert rig.partition.high_watermark == 1


def test_a_directory_that_fails_ends_the_following(rig: Rig) -> None:
    """Rule 5: and whoever fetches is told, so that the partition is asked for no more."""
    told: list[bool] = []
    rig.world.replicas.on_following = lambda partition: told.append(partition.is_offline)
    rig.append(batches(0))
    rig.worker.let_write(StorageError("write", rig.partition.log.path))
    assert rig.ended == [False]
    assert told == [True]
    rig.open()
    assert rig.opened == 1
    rig.following.truncate(rig.partition, 0, 0, rig.ended.append)
    assert rig.ended == [False, False]
