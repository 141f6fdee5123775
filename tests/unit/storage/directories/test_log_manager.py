"""The log manager and partition directories (log_manager.py, log_maintenance.py, partition_directory.py)."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

import storage.directories.log_manager
from protocol.errors import KafkaError
from protocol.primitives import uuid_text
from storage.config.log_config import LogConfig
from storage.directories.future_logs import new_future_log
from storage.directories.log_directory import CLEAN_SHUTDOWN, MAX_PARTIAL_UPDATES, lock_directories
from storage.directories.log_maintenance import begin_checkpoints, due_deletions, expire_producers, logs_to_flush
from storage.directories.log_manager import LogManager
from storage.directories.partition_directory import parse_partition_dir_name, suffixed_dir_name
from storage.io.checkpoint_file import FIRST_DIRTY, HIGH_WATERMARKS, RECOVERY_POINTS, read_offsets
from storage.io.deferred_file_ops import FileOp
from storage.io.disk import Disk, StorageError
from storage.log.log import Log
from tests.support.batches import old_message
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import (
    BIG,
    NOW_MS,
    SMALL,
    SMALL_FILE_BYTES,
    TOPIC_ID,
    ProducerInfo,
    append,
    checkpoint_works,
    fill,
    flush,
    retained,
    truncated,
    values_of,
)

ID, OTHER = bytes(range(1, 17)), bytes(range(2, 18))


def started(
    *directories: Path,
    disk: Disk | None = None,
    config: LogConfig = SMALL,
    failed: dict[str, StorageError] | None = None,
    topic_id: bytes | None = None,
) -> LogManager:
    """A manager after load and recovery."""
    for directory in directories:
        directory.mkdir(exist_ok=True)
    manager = LogManager(
        disk or Disk(),
        {str(path): bytes([number] * 16) for number, path in enumerate(directories)},
        config,
        random_bytes=Random(1).randbytes,
        failed=failed or {},
    )
    manager.commit_logs.file_bytes = SMALL_FILE_BYTES
    manager.load(lambda _: topic_id)
    list(manager.recover())
    return manager


def created(
    manager: LogManager, topic: str = "t", partition: int = 0, *, directory: str | None = None, **options: object
) -> Log:
    if directory is not None:
        manager.placement.prefer((topic, partition), directory)
    return manager.get_or_create(topic, partition, TOPIC_ID, SMALL, **options)  # type: ignore[arg-type]


def write_checkpoints(manager: LogManager) -> list[str]:
    """Write the changed checkpoints; returns the directories."""
    works = checkpoint_works(manager)
    for _, work in works:
        work()
    return [path for path, _ in works]


def damage(log: Path) -> None:
    """Corrupt the last batch of a log file."""
    data = bytearray(log.read_bytes())
    data[-5] ^= 0xFF
    log.write_bytes(data)


# ---- making and finding ----------------------------------------------------------------------------------


def test_a_new_partition_has_a_directory_and_a_topic_id(tmp_path: Path) -> None:
    disk = FaultyDisk()
    manager = started(tmp_path, disk=disk)
    log = created(manager)
    assert (tmp_path / "t-0" / "partition.metadata").read_text() == f"version: 0\ntopic_id: {uuid_text(TOPIC_ID)}"
    assert [path.name for path in (tmp_path / "t-0").iterdir()] == ["partition.metadata"]
    assert manager.logs.get(("t", 0)) is log is created(manager)
    assert manager.logs.get(("t", 1)) is None
    assert disk.syncs == []
    append(log, "a")
    log.open().flush.begin()()
    assert f"{tmp_path}/t-0/partition.metadata" in disk.syncs


def test_the_directory_with_the_fewest_logs_gets_the_partition(tmp_path: Path) -> None:
    manager = started(tmp_path / "a", tmp_path / "b")
    for partition in range(5):
        created(manager, partition=partition, directory=f"{tmp_path}/a" if partition < 2 else None)
    assert sorted(path.name for path in (tmp_path / "a").glob("t-*")) == ["t-0", "t-1", "t-4"]
    assert sorted(path.name for path in (tmp_path / "b").glob("t-*")) == ["t-2", "t-3"]
    with pytest.raises(StorageError, match="not a log directory of this broker"):
        new_future_log(manager, manager.logs["t", 0], "/elsewhere", 0)


def test_other_names_are_left_alone(tmp_path: Path) -> None:
    for name in ("lost+found", "__cluster_metadata-0", "t-0.ab-stray", "t-0.ab-future", "-3", "t-", "t-x"):
        (tmp_path / name).mkdir()
    (tmp_path / "meta.properties").write_text("")
    (tmp_path / "a-b-12").mkdir()
    assert set(started(tmp_path).logs) == {("a-b", 12)}
    assert (tmp_path / "t-0.ab-stray").exists()


def test_partition_names_are_split_at_the_last_dash() -> None:
    """Suffixed names have Kafka's format and at most 255 characters."""
    assert parse_partition_dir_name("a-b.c_d-7") == ("a-b.c_d", 7)
    assert parse_partition_dir_name("a-7-delete") is None
    name = suffixed_dir_name("t" * 249, 12, bytes(range(16)), "-delete")
    assert len(name) == 255
    assert name.endswith("-12.000102030405060708090a0b0c0d0e0f-delete")
    assert suffixed_dir_name("t", 0, ID, "-stray") == f"t-0.{ID.hex()}-stray"


def test_a_partition_in_two_directories_fails_the_start(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "t-0").mkdir(parents=True)
    manager = LogManager(Disk(), {f"{tmp_path}/{n}": ID for n in "ab"}, SMALL, random_bytes=os.urandom)
    manager.load()
    ((directory, error),) = manager.offline.items()
    assert str(error) == f"Cannot use {directory}: t-0 is in {tmp_path}/a too; remove one of them."


def test_a_directory_with_another_topic_id_becomes_a_stray(manager: LogManager, tmp_path: Path) -> None:
    append(created(manager), "old")
    manager.shutdown()
    manager = started(tmp_path)
    log = manager.get_or_create("t", 0, OTHER, SMALL)
    assert log.log_end_offset == 0
    (stray,) = tmp_path.glob("t-0.*-stray")
    assert (stray / f"{0:020d}.log").stat().st_size > 0
    assert log.files.topic_id == OTHER


def test_a_directory_without_topic_id_gets_one(manager: LogManager, tmp_path: Path) -> None:
    append(created(manager), "old")
    manager.shutdown()
    (tmp_path / "t-0" / "partition.metadata").write_bytes(b"")
    log = created(started(tmp_path))
    assert values_of(log) == [(0, "old")]
    assert started(tmp_path).logs["t", 0].files.topic_id == TOPIC_ID


# ---- locks -----------------------------------------------------------------------------------------------


def test_directories_are_locked_together_until_the_shutdown(tmp_path: Path) -> None:
    paths = [f"{tmp_path}/{name}" for name in "ab"]
    for path in paths:
        os.mkdir(path)
    locks = lock_directories(Disk(), paths[:1])
    with pytest.raises(StorageError, match=rf"^Cannot lock {paths[0]}/\.lock: "):
        lock_directories(Disk(), paths[::-1])
    (other,) = lock_directories(Disk(), paths[1:])  # the refused call has released it
    other.release()
    manager = LogManager(Disk(), {paths[0]: ID}, SMALL, random_bytes=os.urandom, locks=locks)
    manager.load()
    manager.shutdown()
    for lock in lock_directories(Disk(), paths):
        lock.release()


# ---- clean and unclean -----------------------------------------------------------------------------------


def test_after_a_clean_shutdown_no_file_is_opened(manager: LogManager, tmp_path: Path) -> None:
    for partition in range(9):
        log = created(manager, partition=partition)
        append(log, "a", "b")
        log.high_watermark = 2
    manager.shutdown(broker_epoch=14)
    assert (tmp_path / CLEAN_SHUTDOWN).read_text() == '{"version":0,"brokerEpoch":14}'
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text().startswith("0\n9\nt 0 2\nt 1 2\n")
    disk = FaultyDisk()
    manager = started(tmp_path, disk=disk)
    assert not (tmp_path / CLEAN_SHUTDOWN).exists()
    assert manager.previous_broker_epoch == 14
    assert (disk.open_files, disk.reads) == (0, [])
    assert [log.checkpoint for log in manager.logs.values()] == [(2, 0, 2, -1)] * 9
    assert not any(log.needs_recovery or log.is_open for log in manager.logs.values())
    assert values_of(manager.logs["t", 3]) == [(0, "a"), (1, "b")]


def test_a_run_that_was_not_registered_keeps_the_broker_epoch_of_the_run_before(tmp_path: Path) -> None:
    """Otherwise the controller takes it for an unclean shutdown, and the broker is no eligible leader (KIP-966)."""
    started(tmp_path).shutdown(broker_epoch=14)
    started(tmp_path).shutdown(broker_epoch=-1)
    assert started(tmp_path).previous_broker_epoch == 14


def test_the_clean_shutdown_marker_is_deleted_durably_at_the_start(tmp_path: Path) -> None:
    started(tmp_path).shutdown()

    class Watching(Disk):
        synced: list[tuple[str, bool]]

        def sync_dir(self, path: str) -> None:
            self.synced.append((path, self.exists(f"{path}/{CLEAN_SHUTDOWN}")))
            super().sync_dir(path)

    disk = Watching()
    disk.synced = []
    started(tmp_path, disk=disk)
    assert disk.synced == [(str(tmp_path), False)]


def test_without_the_marker_every_log_is_recovered(manager: LogManager, tmp_path: Path) -> None:
    for value in "abc":
        append(created(manager), value)
    damage(tmp_path / "t-0" / f"{0:020d}.log")
    manager = started(tmp_path)
    assert manager.previous_broker_epoch == -1
    log = manager.logs["t", 0]
    assert (log.needs_recovery, log.is_open) == (True, False)
    assert values_of(log) == [(0, "a"), (1, "b")]
    assert not log.needs_recovery


def test_large_logs_are_recovered_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.directories.log_manager, "LAZY_RECOVERY_BYTES", 1500)
    manager = started(tmp_path)
    for partition, count in enumerate((2, 5, 9)):
        for _ in range(count):
            append(created(manager, partition=partition), BIG)
    flush(manager.logs["t", 2])
    write_checkpoints(manager)
    manager = LogManager(Disk(), {str(tmp_path): ID}, SMALL, random_bytes=os.urandom)
    manager.load()
    assert [log.name for log in manager.recover()] == ["t-1"]
    assert [log.is_open for _, log in sorted(manager.logs.items())] == [False, True, False]


@pytest.mark.parametrize("is_at_start", [True, False])
def test_a_log_that_cannot_be_opened_ends_neither_start_nor_shutdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_at_start: bool
) -> None:
    if is_at_start:
        monkeypatch.setattr(storage.directories.log_manager, "LAZY_RECOVERY_BYTES", 0)
    append(created(started(tmp_path)), "a")
    path = tmp_path / "t-0" / f"{0:020d}.log"
    path.write_bytes(old_message(1, NOW_MS))
    manager = started(tmp_path)
    with pytest.raises(KafkaError):
        manager.logs["t", 0].open()
    manager.shutdown()
    assert not (tmp_path / CLEAN_SHUTDOWN).exists()
    assert path.read_bytes() == old_message(1, NOW_MS)


@pytest.mark.parametrize(("limit", "is_clean"), [(5, True), (0, False)])
def test_a_shutdown_recovers_unused_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, is_clean: bool
) -> None:
    monkeypatch.setattr(storage.directories.log_manager, "RECOVERED_AT_SHUTDOWN", limit)
    append(created(started(tmp_path)), "a", "b")
    manager = started(tmp_path)
    manager.shutdown()
    assert (tmp_path / CLEAN_SHUTDOWN).exists() == is_clean
    manager = started(tmp_path)
    assert manager.logs["t", 0].needs_recovery != is_clean
    assert values_of(manager.logs["t", 0]) == [(0, "a"), (1, "b")]


def test_an_unreadable_marker_counts(tmp_path: Path) -> None:
    """Kafka before 3.7 wrote an empty file."""
    (tmp_path / CLEAN_SHUTDOWN).write_bytes(b"")
    (tmp_path / "t-0").mkdir()
    manager = started(tmp_path)
    assert manager.previous_broker_epoch == -1
    assert not manager.logs["t", 0].needs_recovery


def test_a_failed_shutdown_writes_no_marker(tmp_path: Path) -> None:
    disk = FaultyDisk()
    manager = started(tmp_path, disk=disk)
    append(created(manager), "a")
    disk.fail_syncs = errno.EIO
    manager.shutdown()
    assert not (tmp_path / CLEAN_SHUTDOWN).exists()
    assert str(tmp_path) in manager.offline


# ---- taking away -----------------------------------------------------------------------------------------


def test_a_deletion_renames_at_once_and_removes_after_the_delay(manager: LogManager, tmp_path: Path) -> None:
    log = manager.get_or_create("t", 0, TOPIC_ID, replace(SMALL, file_delete_delay_ms=0))
    append(log, "old")
    manager.delete(log)
    assert manager.logs.get(("t", 0)) is None
    (deleted,) = tmp_path.glob("t-0.*-delete")
    assert not due_deletions(manager, NOW_MS)
    assert append(created(manager), "new") == 0
    assert not due_deletions(manager, NOW_MS + 999)
    ((_, work),) = due_deletions(manager, NOW_MS + 1000)
    assert deleted.exists()
    work()
    assert not deleted.exists()
    assert not due_deletions(manager, NOW_MS * 2)


def test_a_shorter_delay_applies_to_earlier_deletions(manager: LogManager) -> None:
    manager.delete(created(manager))
    assert not due_deletions(manager, NOW_MS)
    manager.deletion_delay_ms = 5
    assert not due_deletions(manager, NOW_MS + 4)
    assert due_deletions(manager, NOW_MS + 5)


def test_directories_deleted_before_the_stop_are_removed_at_the_start(manager: LogManager, tmp_path: Path) -> None:
    log = created(manager)
    append(log, "old")
    manager.delete(log)
    manager = started(tmp_path)
    assert manager.logs == {}
    ((_, work),) = due_deletions(manager, NOW_MS)
    work()
    assert not list(tmp_path.glob("t-0*"))


# ---- from time to time -----------------------------------------------------------------------------------


def test_only_changed_checkpoints_are_written(manager: LogManager, tmp_path: Path) -> None:
    log = created(manager)
    fill(log, 6)
    flush(log)
    append(log, BIG)
    log.high_watermark = 7
    log.open().trim(3, NOW_MS)
    assert write_checkpoints(manager) == [str(tmp_path)]
    names = ("recovery-point", "log-start", "replication")
    contents = [(tmp_path / f"{name}-offset-checkpoint").read_text() for name in names]
    # Flushed to 6, but the segment that ends there was finished after that: its index is not durable.
    assert contents == ["0\n1\nt 0 4\n", "0\n1\nt 0 3\n", "0\n1\nt 0 7\n"]
    assert write_checkpoints(manager) == []
    (tmp_path / "log-start-offset-checkpoint").unlink()
    append(log, "more")
    log.high_watermark = 8
    assert write_checkpoints(manager) == [str(tmp_path)]
    assert (tmp_path / "replication-offset-checkpoint").read_text() == "0\n1\nt 0 8\n"
    assert not (tmp_path / "log-start-offset-checkpoint").exists(), "which has not changed"


def test_a_directory_with_pending_checkpoint_work_is_skipped(manager: LogManager, tmp_path: Path) -> None:
    log = created(manager)
    append(log, "a")
    log.high_watermark = 1
    ((_, slow),) = checkpoint_works(manager)
    append(log, "b")
    log.high_watermark = 2
    assert checkpoint_works(manager) == []
    slow()
    assert (tmp_path / "replication-offset-checkpoint").read_text() == "0\n1\nt 0 1\n"
    assert write_checkpoints(manager) == [str(tmp_path)]
    assert (tmp_path / "replication-offset-checkpoint").read_text() == "0\n1\nt 0 2\n"


def test_a_truncation_lowers_the_recovery_point_checkpoint(manager: LogManager, tmp_path: Path) -> None:
    log = created(manager)
    fill(log, 6)
    flush(log)
    write_checkpoints(manager)
    assert truncated(manager, log, 2)
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\nt 0 2\n"
    assert not truncated(manager, log, 2)
    truncated(manager, log, 1, is_full=True)  # which is in the segment with base offset 0
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\nt 0 0\n"


def test_pending_checkpoint_work_does_not_undo_a_truncation(manager: LogManager, tmp_path: Path) -> None:
    log = created(manager)
    fill(log, 6)
    flush(log)
    ((_, slow),) = checkpoint_works(manager)
    truncated(manager, log, 2)
    before = (tmp_path / "recovery-point-offset-checkpoint").read_text()
    slow()
    assert before == (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\nt 0 2\n"


def test_a_truncation_between_the_steps_of_a_checkpoint_is_not_undone(manager: LogManager, tmp_path: Path) -> None:
    log = created(manager)
    fill(log, 6)
    flush(log)
    ((_, steps),) = begin_checkpoints(manager)
    next(steps)
    truncated(manager, log, 2)
    assert list(steps) == []
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\nt 0 2\n"
    log.high_watermark = 1
    assert write_checkpoints(manager) == [str(tmp_path)], "the next checkpoint is not skipped"


def test_a_log_deleted_between_the_steps_of_a_checkpoint_is_not_in_it(manager: LogManager, tmp_path: Path) -> None:
    for topic in ("kept", "deleted"):
        fill(created(manager, topic), 3)
    ((_, steps),) = begin_checkpoints(manager)
    next(steps)
    next(steps)
    manager.delete(manager.logs["deleted", 0])
    with pytest.raises(StopIteration) as end:
        next(steps)
    end.value.value()
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text().splitlines()[2:] == ["kept 0 0"]
    assert not manager.directories[str(tmp_path)].checkpoints.may_contain(("deleted", 0))


def test_flushes_are_due_by_the_settings_of_each_log(manager: LogManager) -> None:
    soon = manager.get_or_create("soon", 0, ID, replace(SMALL, flush_ms=100))
    created(manager, "never")
    assert not any(logs_to_flush(manager, NOW_MS * 2))
    for log in manager.logs.values():
        append(log, "a")
    assert not any(logs_to_flush(manager, NOW_MS + 99))
    assert list(filter(None, logs_to_flush(manager, NOW_MS + 100))) == [soon]
    flush(soon)
    assert not any(logs_to_flush(manager, NOW_MS * 2))


def test_retention_opens_logs_that_may_have_expired_and_closes_them(tmp_path: Path) -> None:
    config = replace(SMALL, retention_ms=1000)
    manager = started(tmp_path, config=config)
    for partition in range(3):
        log = manager.get_or_create("t", partition, TOPIC_ID, config)
        for number in range(4):
            append(log, BIG, timestamp_ms=NOW_MS + partition * 5000 + number)
        log.high_watermark = 4
    manager.shutdown()
    disk = FaultyDisk()
    manager = started(tmp_path, disk=disk, config=config)
    assert sorted(log.name for log in retained(manager, NOW_MS + 1500)) == ["t-0", "t-1", "t-2"]
    starts = {log.partition: log.checkpoint.log_start_offset for log in manager.logs.values()}
    assert starts == {0: 4, 1: 0, 2: 0}
    assert not any(log.is_open for log in manager.logs.values())
    disk.reset_counters()
    assert list(retained(manager, NOW_MS + 1600)) == []
    assert disk.reads == []
    assert [log.name for log in retained(manager, NOW_MS + 6500)] == ["t-1"]
    assert manager.logs["t", 1].log_start_offset == 4


def test_a_disk_that_fails_during_retention_goes_offline(tmp_path: Path) -> None:
    disk = FaultyDisk()
    manager = started(tmp_path, disk=disk)
    append(created(manager), BIG)
    manager.shutdown()
    manager = started(tmp_path, disk=disk)
    disk.fail_reads = errno.EIO
    list(retained(manager, NOW_MS))
    assert list(manager.offline) == [str(tmp_path)]


def test_idle_producers_expire(manager: LogManager) -> None:
    log = created(manager)
    append(log, "a", producer=ProducerInfo(5, 0, 0))
    list(expire_producers(manager, NOW_MS + 1000))
    assert list(log.open().producers.producers) == [5]
    list(expire_producers(manager, NOW_MS + 86_400_001))
    assert not log.open().producers.producers


def test_open_descriptors_do_not_grow_with_the_partitions(tmp_path: Path) -> None:
    disk = FaultyDisk()
    manager = started(tmp_path, disk=disk)
    for partition in range(20):
        append(created(manager, partition=partition), "a")
    for _ in range(3):
        list(manager.file_handles.close_idle())
    assert disk.open_files == 0
    assert append(manager.logs["t", 3], "b") == 1


def test_a_truncation_lowers_the_first_dirty_offset(manager: LogManager, tmp_path: Path) -> None:
    """Kafka's maybeTruncateCheckpoint."""
    log = created(manager, "t", 0)
    for _ in range(6):
        append(log, "x")
    log.offsets.first_dirty_offset = 5
    write_checkpoints(manager)
    truncated(manager, log, 3)
    assert read_offsets(Disk(), f"{tmp_path}/{FIRST_DIRTY}") == {("t", 0): 3}
    truncated(manager, log, 1, is_full=True)
    assert read_offsets(Disk(), f"{tmp_path}/{FIRST_DIRTY}") == {("t", 0): 1}


def test_topics_that_are_created_again_share_one_checkpoint(manager: LogManager, tmp_path: Path) -> None:
    """Each checkpoint contains all logs: one for each new partition would take minutes in a large directory."""
    for partition in range(5):
        created(manager, "again", partition).high_watermark = 3
    write_checkpoints(manager)
    queue: list[FileOp] = []
    manager.submit_directory_op = lambda _, op: queue.append(op)
    for partition in range(5):
        manager.delete(manager.logs["again", partition])
    checkpoints = manager.directories[str(tmp_path)].checkpoints
    before = checkpoints.updates
    logs = [manager.get_or_create("again", partition, OTHER, SMALL) for partition in range(5)]
    assert checkpoints.updates == before + 1
    assert all(log.files.has_pending_ops for log in logs), "until the checkpoint is on disk"
    while any(log.files.has_pending_ops for log in logs):
        queue.pop(0)()
    assert not any(read_offsets(Disk(), str(tmp_path / HIGH_WATERMARKS)).values())


def test_a_checkpoint_in_the_background_does_not_spare_new_topics_one(manager: LogManager, tmp_path: Path) -> None:
    created(manager, "again").high_watermark = 3
    write_checkpoints(manager)
    manager.delete(manager.logs["again", 0])
    ((_, late),) = checkpoint_works(manager)
    manager.get_or_create("again", 0, OTHER, SMALL)
    assert not any(read_offsets(Disk(), str(tmp_path / HIGH_WATERMARKS)).values()), "which has not run yet"
    late()
    assert not any(read_offsets(Disk(), str(tmp_path / HIGH_WATERMARKS)).values())


def test_a_truncation_writes_the_offsets_of_one_log_and_keeps_those_of_the_others(
    manager: LogManager, tmp_path: Path
) -> None:
    """In a directory of 20,000 logs, gathering the offsets of all took 25 ms of the event loop for each."""
    for topic in ("t", "other"):
        fill(created(manager, topic), 6)
        flush(manager.logs[topic, 0])
    write_checkpoints(manager)
    file = f"{tmp_path}/{RECOVERY_POINTS}"
    known = read_offsets(Disk(), file)["other", 0]
    assert known > 0
    manager.logs["other", 0].open().truncate(0)  # without its checkpoint
    for _ in range(MAX_PARTIAL_UPDATES):
        append(manager.logs["t", 0], "a")
        truncated(manager, manager.logs["t", 0], 2)
        assert read_offsets(Disk(), file) == {("t", 0): 2, ("other", 0): known}
    append(manager.logs["t", 0], "a")
    truncated(manager, manager.logs["t", 0], 2)
    assert read_offsets(Disk(), file) == {("t", 0): 2, ("other", 0): 0}, (
        "the checkpoints in the background may all fail"
    )
