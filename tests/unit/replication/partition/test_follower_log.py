"""The rules of `FollowerLog`, on real logs."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from protocol.batch_builder import BatchBuilder
from replication.completion import Completion
from replication.io_executor import Begin, IoResult
from replication.partition.follower_log import FollowerLog, LeaderOffsets
from replication.partition.list_offsets import LATEST
from replication.partition.partition import Partition
from storage.io.checkpoint_file import HIGH_WATERMARKS, read_offsets
from storage.io.disk import Disk, StorageError
from storage.io.disk_lookup import DiskLookup
from storage.log import log_validator
from storage.log.log_reader import Isolation
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import checkpoint_works
from tests.support.replica_harness import NOW_MS, HeldIoExecutor, ReplicaHarness, batch
from tests.unit.replication.partition.test_engine_moves import set_engine
from tests.unit.replication.partition.test_log_dir_moves import stepped_harness

OFFSETS = LeaderOffsets(high_watermark=1, log_start_offset=0)


def batches(*epochs: int, at: int = 0, size: int = 10) -> bytearray:
    """One record per batch, in these leader epochs."""
    data = bytearray()
    for offset, epoch in enumerate(epochs, at):
        builder = BatchBuilder(base_offset=offset, leader_epoch=epoch)
        builder.append(NOW_MS, None, bytes(size))
        data += builder.build()
    return data


class Rig:
    """A partition led by broker 2 or by this one, and the follower log."""

    def __init__(
        self, path: Path, *, is_led_here: bool = False, disk: Disk | None = None, worker: HeldIoExecutor | None = None
    ) -> None:
        self.worker = worker or HeldIoExecutor()
        self.harness = ReplicaHarness(path, worker=self.worker, disk=disk)
        self.harness.create(replicas=(1, 2), leader=1 if is_led_here else 2)
        self.follower_log = FollowerLog(self.harness.replicas, self.worker)
        self.results: list[bool] = []
        self.opened = 0

    @property
    def partition(self) -> Partition:
        return self.harness.partition()

    def open(self) -> None:
        self.follower_log.open(self.partition).then(self._on_open)

    def _on_open(self, opened: Completion[bool]) -> None:
        self.opened += opened.value

    def append(self, records: Any, leader_offsets: LeaderOffsets = OFFSETS) -> None:
        self._await(self.follower_log.append(self.partition, records, leader_offsets, NOW_MS))

    def truncate_to_epoch(self, epoch: int, end_offset: int) -> None:
        self._await(self.follower_log.truncate_to_epoch(self.partition, epoch, end_offset))

    def _await(self, write: Completion[bool]) -> None:
        write.then(lambda written: self.results.append(written.value))

    def append_and_write(self, records: Any, leader_offsets: LeaderOffsets = OFFSETS) -> None:
        self.append(records, leader_offsets)
        self.worker.let_write()
        assert self.results.pop() is True


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    rig = Rig(tmp_path)
    rig.open()
    assert rig.opened == 1
    return rig


def test_the_high_watermark_is_capped_by_the_log_end_and_the_log_start_by_the_high_watermark(rig: Rig) -> None:
    rig.append_and_write(batches(0, 0, 0), LeaderOffsets(high_watermark=9, log_start_offset=2))
    partition = rig.partition
    assert (partition.log.log_end_offset, partition.high_watermark, partition.log.log_start_offset) == (3, 3, 2)
    rig.append(b"", LeaderOffsets(high_watermark=3, log_start_offset=5))
    assert rig.results == [True]
    assert partition.log.log_start_offset == 3


def test_offsets_without_batches_wait_until_a_moved_log_has_its_files(tmp_path: Path) -> None:
    harness = stepped_harness(tmp_path, 1, replicas=(1, 2), barnabas_storage_engine="segments")
    harness.change(leader=2)
    follower_log = FollowerLog(harness.replicas, harness.executor)
    set_engine(harness, "commitlog")
    replaced = harness.log
    while harness.log is replaced:
        harness.executor.step()
    assert harness.log.files.has_pending_ops
    append = follower_log.append(harness.partition(), b"", LeaderOffsets(high_watermark=1, log_start_offset=1), NOW_MS)
    assert not append.is_done
    harness.executor.run_all()
    assert append.value
    assert harness.log.log_start_offset == 1


def test_a_response_larger_than_a_segment_is_appended_in_part(tmp_path: Path) -> None:
    """The leader's segments may be larger."""
    rig = Rig(tmp_path)
    rig.harness.create("small", replicas=(1, 2), leader=2, segment_bytes=1 << 20)
    partition = rig.harness.partition("small")
    partition.log.open()
    append = rig.follower_log.append(partition, batches(0, 0, 0, size=400_000), OFFSETS, NOW_MS)
    rig.worker.let_write()
    assert append.value
    assert partition.log.log_end_offset == 2


@pytest.mark.pure_python("replaces a function of a compiled module")
def test_the_first_batches_of_an_empty_log_are_checked_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = []

    def crc_is_valid(_records: Any, position: int, _header: Any) -> bool:
        checked.append(position)
        return True

    monkeypatch.setattr(log_validator, "crc_is_valid", crc_is_valid)
    rig.append_and_write(batches(0, 0))
    assert len(checked) == 2


def test_batches_of_one_response_for_a_commit_log_are_one_write(tmp_path: Path) -> None:
    disk = FaultyDisk()
    rig = Rig(tmp_path, disk=disk)
    rig.harness.create("c", partitions=3, replicas=(1, 2), leader=2, barnabas_storage_engine="commitlog")
    partitions = [rig.harness.partition("c", index) for index in range(3)]
    for partition in partitions:
        rig.follower_log.open(partition)
    rig.follower_log.gather()
    appends = [rig.follower_log.append(partition, batches(0, 0), OFFSETS, NOW_MS) for partition in partitions]
    assert not rig.worker.writes
    rig.follower_log.write_gathered()
    disk.reset_counters()
    rig.worker.let_write()
    assert len([path for path, position, _ in disk.writes if path.endswith(".clog") and position]) == 1
    assert [append.value for append in appends] == [True] * 3
    assert [partition.log.log_end_offset for partition in partitions] == [2] * 3


def test_a_failed_write_of_a_response_fails_all_its_batches_for_a_commit_log(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.harness.create("c", partitions=2, replicas=(1, 2), leader=2, barnabas_storage_engine="commitlog")
    partitions = [rig.harness.partition("c", index) for index in range(2)]
    for partition in partitions:
        rig.follower_log.open(partition)
    rig.follower_log.gather()
    appends = [rig.follower_log.append(partition, batches(0), OFFSETS, NOW_MS) for partition in partitions]
    rig.follower_log.write_gathered()
    rig.worker.let_write(StorageError("write", "file"))
    assert [append.value for append in appends] == [False] * 2
    assert all(partition.is_offline for partition in partitions)


def test_a_log_with_pending_writes_is_opened_after_them(tmp_path: Path) -> None:
    rig = Rig(tmp_path, is_led_here=True)
    rig.harness.produce()
    rig.harness.change(leader=2)
    rig.open()
    assert rig.opened == 0
    rig.worker.let_write()
    rig.worker.let_sync()
    assert rig.opened == 1
    assert rig.partition.log.log_end_offset == 1


@pytest.mark.parametrize("engine", ["segments", "commitlog"])
def test_a_log_is_synced_before_its_first_fetch_from_a_leader(engine: str, tmp_path: Path) -> None:
    """A fetch position confirms records to the leader, also those that this broker wrote as the leader before."""
    rig = Rig(tmp_path, worker=LateSyncs())
    rig.harness.create("f", replicas=(1, 2), leader=1, flush_messages=1, barnabas_storage_engine=engine)
    partition = rig.harness.partition("f")
    rig.harness.produce("f", records=batch(), acks=1)
    rig.worker.let_write()
    rig.harness.change("f", leader=2)
    opened = rig.follower_log.open(partition)
    assert (partition.log.log_end_offset, opened.is_done) == (1, False)
    while rig.worker.syncs:
        rig.worker.let_sync()
    assert (opened.value, partition.needs_sync) == (True, False)


def test_a_log_that_cannot_be_synced_is_not_fetched(tmp_path: Path) -> None:
    disk = FaultyDisk()
    rig = Rig(tmp_path, worker=LateSyncs(), disk=disk)
    rig.harness.create("f", replicas=(1, 2), leader=1, flush_messages=1)
    rig.harness.produce("f", records=batch(), acks=1)
    rig.worker.let_write()
    rig.harness.change("f", leader=2)
    opened = rig.follower_log.open(rig.harness.partition("f"))
    disk.fail_syncs = errno.EIO
    while rig.worker.syncs:
        rig.worker.let_sync()
    assert (opened.value, rig.harness.partition("f").is_offline) == (False, True)


def test_a_diverging_log_is_truncated(rig: Rig) -> None:
    rig.append_and_write(batches(0))
    rig.harness.change(leader=2)
    rig.open()
    rig.append_and_write(batches(1, 1, at=1))
    rig.truncate_to_epoch(0, 4)
    assert rig.results == [True]
    assert rig.partition.log.log_end_offset == 1
    assert rig.partition.high_watermark == 1


def test_a_truncation_below_the_log_start_leaves_an_empty_log_there(rig: Rig) -> None:
    rig.append_and_write(batches(0, 0, 0), LeaderOffsets(3, 2))
    rig.truncate_to_epoch(0, 1)
    log = rig.partition.log
    assert (rig.results, log.log_end_offset) == ([True], 1)
    assert log.log_start_offset == 1
    assert rig.partition.high_watermark == 1


def test_a_truncation_is_skipped_when_the_leader_epoch_changes(rig: Rig) -> None:
    rig.append_and_write(batches(0, 0))
    rig.append(batches(0, at=2))
    rig.truncate_to_epoch(0, 1)
    assert rig.results == []
    rig.harness.change(leader=2)
    rig.worker.let_write()
    rig.worker.let_sync()
    assert rig.results == [True, True]
    assert rig.partition.log.log_end_offset == 3


def test_a_truncation_waits_for_disk_space_before_it_changes_anything(tmp_path: Path) -> None:
    disk = FaultyDisk()
    rig = Rig(tmp_path, disk=disk)
    rig.open()
    rig.append_and_write(batches(0, 0), LeaderOffsets(high_watermark=2, log_start_offset=0))
    ((directory, write_checkpoints),) = checkpoint_works(rig.harness.log_manager)
    write_checkpoints()

    size = size_of_log(rig)

    def checkpoint() -> int:
        return read_offsets(disk, f"{directory}/{HIGH_WATERMARKS}")["t", 0]

    disk.space_left = 0
    rig.worker.holds_reads = True
    rig.truncate_to_epoch(0, 1)
    with pytest.raises(StorageError, match="No space"):
        rig.worker.reads[0].run()
    assert (rig.results, rig.partition.is_offline, size_of_log(rig), checkpoint()) == ([], False, size, 2)
    disk.space_left = None
    rig.worker.let_read()
    assert (rig.results, rig.partition.log.log_end_offset, checkpoint()) == ([True], 1, 1)
    assert size_of_log(rig) < size


def size_of_log(rig: Rig) -> int:
    """The size of the only segment."""
    (path,) = Path(rig.partition.log.path).glob("*.log")
    return path.stat().st_size


@pytest.mark.parametrize("engine", ["segments", "commitlog"])
def test_a_truncation_writes_in_a_thread_and_the_log_is_closed_meanwhile(tmp_path: Path, engine: str) -> None:
    disk = FaultyDisk()
    rig = Rig(tmp_path, disk=disk)
    rig.harness.create("e", replicas=(1, 2), leader=2, barnabas_storage_engine=engine)
    partition = rig.harness.partition("e")
    rig.follower_log.open(partition)
    rig.follower_log.append(partition, batches(0, 0, 0), LeaderOffsets(1, 0), NOW_MS)
    rig.worker.let_write()
    rig.worker.holds_reads = True
    disk.reset_counters()
    rig._await(rig.follower_log.truncate_to_epoch(partition, 0, 2))
    log = partition.log
    assert not log.is_open
    assert isinstance(partition.find_offset(LATEST, Isolation.HIGH_WATERMARK, -1, leader_only=False), DiskLookup)
    assert not disk.writes
    assert not disk.syncs
    assert log.open_lookup() is log.open_lookup(), "other uses wait for the truncation"
    rig.worker.let_read()
    assert rig.results == [True]
    assert disk.syncs
    assert log.log_end_offset == 2
    rig.worker.holds_reads = False
    append = rig.follower_log.append(partition, batches(0, at=2), LeaderOffsets(3, 0), NOW_MS)
    rig.worker.let_write()
    assert (append.value, log.log_end_offset) == (True, 3)


def three_records() -> bytes:
    """One batch with the offsets 0 to 2."""
    builder = BatchBuilder(base_offset=0, leader_epoch=0)
    for _ in range(3):
        builder.append(NOW_MS, None, b"x")
    return bytes(builder.build())


@pytest.mark.parametrize("engine", ["segments", "commitlog"])
@pytest.mark.parametrize("has_new_leader", [False, True])
def test_an_empty_log_moves_in_a_thread_to_the_leaders_batch_that_contains_its_start(
    tmp_path: Path, engine: str, *, has_new_leader: bool
) -> None:
    """After DeleteRecords the leader's log start may be inside a batch."""
    disk = FaultyDisk()
    rig = Rig(tmp_path, disk=disk)
    rig.harness.create("e", replicas=(1, 2), leader=2, barnabas_storage_engine=engine)
    partition = rig.harness.partition("e")
    rig.follower_log.open(partition)
    rig._await(rig.follower_log.truncate_fully_and_start_at(partition, 2))
    assert rig.results == [True]
    rig.worker.holds_reads = True
    disk.reset_counters()
    append = rig.follower_log.append(partition, three_records(), LeaderOffsets(3, 2), NOW_MS)
    log = partition.log
    assert (log.is_open, disk.writes, disk.syncs) == (False, [], [])
    if has_new_leader:
        rig.harness.change("e", leader=2)
    rig.worker.let_read()
    if has_new_leader:
        assert (append.value, rig.worker.writes) == (True, [])
        return
    assert not append.is_done
    rig.worker.let_write()
    assert append.value
    assert (log.log_start_offset, log.log_end_offset, partition.high_watermark) == (2, 3, 3)


def test_a_full_truncation_that_finds_no_space_is_repeated(tmp_path: Path) -> None:
    disk = FaultyDisk()
    rig = Rig(tmp_path, disk=disk)
    rig.open()
    rig.append_and_write(batches(0, 0))
    rig.worker.holds_reads = True
    rig._await(rig.follower_log.truncate_fully_and_start_at(rig.partition, 7))
    disk.space_left = 0
    for _ in range(2):
        with pytest.raises(StorageError, match="No space"):
            rig.worker.reads[0].run()
    disk.space_left = None
    rig.worker.let_read()
    log = rig.partition.log
    assert (rig.results, log.log_start_offset, log.log_end_offset) == ([True], 7, 7)
    rig.append_and_write(batches(0, at=7))
    assert log.log_end_offset == 8


def test_a_truncation_waits_for_a_flush(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.open()
    rig.append_and_write(batches(0, 0))
    rig.harness.replicas.flushes.sync(rig.partition)
    rig.truncate_to_epoch(0, 1)
    assert (rig.results, rig.partition.log.log_end_offset) == ([], 2)
    rig.worker.let_sync()
    rig.worker.let_sync()
    assert (rig.results, rig.partition.log.log_end_offset) == ([True], 1)


class LateSyncs(HeldIoExecutor):
    """Flushes begin when the test releases them, as in a later round of their directory."""

    def sync(self, directory: str, begin: Begin) -> IoResult:
        def run() -> None:
            begin()()

        return super().sync(directory, lambda: run)


@pytest.mark.parametrize("engine", ["segments", "commitlog"])
def test_an_append_whose_flush_begins_during_a_truncation_waits_for_it(tmp_path: Path, engine: str) -> None:
    """The new leader's log has diverged, and the flush for the previous one waits for its round."""
    rig = Rig(tmp_path, worker=LateSyncs())
    rig.harness.create("f", replicas=(1, 2, 3), leader=2, flush_messages=1, barnabas_storage_engine=engine)
    partition = rig.harness.partition("f")
    rig.follower_log.open(partition)
    append = rig.follower_log.append(partition, batches(0, 0), LeaderOffsets(2, 0), NOW_MS)
    rig.worker.let_write()
    rig.harness.change("f", leader=3)
    rig.worker.holds_reads = True
    truncation = rig.follower_log.truncate_to_epoch(partition, 0, 1)
    while rig.worker.syncs:
        rig.worker.let_sync()
    assert not append.is_done
    rig.worker.let_read()
    assert truncation.value
    while rig.worker.syncs:
        rig.worker.let_sync()
    assert append.value
    assert (partition.log.log_end_offset, partition.high_watermark) == (1, 1)


def test_a_partition_deleted_during_its_truncation_is_not_fetched(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.open()
    rig.append_and_write(batches(0, 0))
    rig.worker.holds_reads = True
    rig.truncate_to_epoch(0, 1)
    rig.harness.delete("t")
    rig.worker.let_read()
    assert rig.results == [False]


def test_a_truncation_that_never_gets_disk_space_fails(tmp_path: Path) -> None:
    disk = FaultyDisk()
    rig = Rig(tmp_path, disk=disk)
    rig.open()
    rig.append_and_write(batches(0, 0))
    disk.space_left = 0
    rig.worker.holds_reads = True
    rig.truncate_to_epoch(0, 1)
    rig.worker.let_read(StorageError("write", rig.partition.log.path))
    assert (rig.results, rig.partition.is_offline) == ([False], True)


def test_a_leader_elected_during_a_write_commits_the_written_records(rig: Rig) -> None:
    rig.harness.change(isr=[1, 2])
    rig.append(batches(0))
    rig.harness.change(leader=1, isr=[1])
    rig.partition.open_leader_log()
    rig.worker.let_write()
    assert rig.partition.high_watermark == 1


def test_a_failed_directory_stops_replication(rig: Rig) -> None:
    reported: list[bool] = []
    rig.harness.replicas.on_partition_changed = lambda partition: reported.append(partition.is_offline)
    rig.append(batches(0))
    rig.worker.let_write(StorageError("write", rig.partition.log.path))
    assert rig.results == [False]
    assert reported == [True]
    rig.open()
    assert rig.opened == 1
    rig.truncate_to_epoch(0, 0)
    assert rig.results == [False, False]
