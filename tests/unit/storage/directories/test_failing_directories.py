"""Failed and missing log directories (log_manager.py rule 3, log_directory.py rule 2)."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.errors import ErrorCode, KafkaError
from storage.directories.future_replica import COMPLETE
from storage.directories.log_directory import CLEAN_SHUTDOWN
from storage.directories.log_maintenance import directory_checks
from storage.directories.partition_directory import FUTURE
from storage.io.checkpoint_file import PARTITION_METADATA
from storage.io.disk import Disk, StorageError
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import SMALL, TOPIC_ID, append, values_of
from tests.unit.storage.directories.test_log_manager import OTHER, created, started, write_checkpoints


def test_a_directory_goes_offline_alone(tmp_path: Path) -> None:
    disk = FaultyDisk()
    manager = started(tmp_path / "a", tmp_path / "b", disk=disk)
    lost, kept = (created(manager, partition=n, directory=f"{tmp_path}/{name}") for n, name in enumerate("ab"))
    append(lost, "x")
    append(kept, "y")
    disk.space_left = 0
    with pytest.raises(StorageError) as caught:
        append(lost, "z")
    disk.space_left = None
    manager.go_offline(lost.directory, caught.value)
    manager.go_offline(lost.directory, caught.value)  # the second call has no effect
    with pytest.raises(KafkaError) as refused:
        append(lost, "z")
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert set(manager.logs) == {("t", 1)}
    assert append(kept, "z") == 1
    with pytest.raises(StorageError, match=f"Cannot find the log of t-0: {tmp_path}/a is offline."):
        created(manager, partition=0)
    created(manager, partition=2)
    before = sorted(path.name for path in (tmp_path / "a").iterdir())
    write_checkpoints(manager)
    manager.shutdown()
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == before
    assert (tmp_path / "b" / CLEAN_SHUTDOWN).exists()
    assert manager.previous_broker_epoch == -1


def test_a_partition_of_an_unreadable_directory_is_not_created_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "recovery-point-offset-checkpoint").mkdir()
    manager = started(tmp_path / "a", tmp_path / "b")
    assert list(manager.offline) == [f"{tmp_path}/a"]
    with pytest.raises(StorageError, match="offline"):
        created(manager, is_new=False)
    created(manager, is_new=False, directory_id=manager.directory_ids[f"{tmp_path}/b"])


def test_a_new_partition_is_created_in_a_healthy_directory(tmp_path: Path) -> None:
    """Also for a topic with the name of a deleted one in the failed directory."""
    failed = StorageError("read", f"{tmp_path}/b", OSError(errno.EIO, "failed"))
    manager = started(tmp_path / "a", failed={f"{tmp_path}/b": failed})
    assert created(manager).directory == f"{tmp_path}/a"
    again = started(tmp_path / "c", tmp_path / "d")
    lost = created(again, directory=f"{tmp_path}/c")
    again.go_offline(lost.directory, failed)
    with pytest.raises(StorageError, match="offline"):
        created(again)
    assert again.get_or_create("t", 0, OTHER, SMALL).directory == f"{tmp_path}/d"


def test_a_partition_of_a_missing_directory_is_not_created_elsewhere(tmp_path: Path) -> None:
    manager = started(tmp_path / "a", tmp_path / "b")
    with pytest.raises(StorageError, match="Cannot find the log of t-0: its log directory is missing"):
        created(manager, is_new=False, directory_id=b"?" * 16)
    second = manager.directories[f"{tmp_path}/b"]
    assert created(manager, is_new=False, directory_id=second.directory_id).directory == second.path


def test_a_partition_of_a_missing_directory_is_created_elsewhere_if_other_brokers_have_its_records(
    tmp_path: Path,
) -> None:
    """Not while a directory is offline: it may be that one."""
    manager = started(tmp_path / "a", tmp_path / "b")
    assert created(manager, is_new=False, directory_id=b"?" * 16, has_copies=True).directory == f"{tmp_path}/a"
    failed = StorageError("read", f"{tmp_path}/b", OSError(errno.EIO, "failed"))
    manager = started(tmp_path / "c", failed={f"{tmp_path}/b": failed})
    with pytest.raises(StorageError, match="offline"):
        created(manager, is_new=False, directory_id=b"?" * 16, has_copies=True)


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_of_two_logs_the_one_without_a_topic_id_is_the_current_topics(tmp_path: Path, names: str) -> None:
    """It was created again and not flushed before the loss of power: the other one belongs to a deleted topic."""
    for name, topic_id in (("a", OTHER), ("b", TOPIC_ID)):
        manager = started(tmp_path / name)
        append(manager.get_or_create("t", 0, topic_id, SMALL), name)
        manager.shutdown()
    (tmp_path / "b" / "t-0" / PARTITION_METADATA).write_bytes(b"")
    manager = started(*(tmp_path / name for name in names), topic_id=TOPIC_ID)
    assert not manager.offline
    assert values_of(manager.get_or_create("t", 0, TOPIC_ID, SMALL)) == [(0, "b")]
    assert [stray.directory for stray in manager.strays] == [f"{tmp_path}/a"]


def complete_copy(directory: Path) -> Path:
    """A complete future replica without its log, as after a crash."""
    copy = directory / f"t-0.{'0' * 32}{FUTURE}"
    copy.mkdir(parents=True)
    (copy / COMPLETE).touch()
    return copy


def test_a_move_is_not_finished_while_a_directory_is_missing(tmp_path: Path) -> None:
    """The log may be in the missing directory."""
    copy = complete_copy(tmp_path / "a")
    failed = StorageError("read", f"{tmp_path}/b", OSError(errno.EIO, "failed"))
    manager = started(tmp_path / "a", failed={f"{tmp_path}/b": failed})
    assert copy.exists()
    assert manager.logs == {}
    here = manager.directories[f"{tmp_path}/a"].directory_id
    with pytest.raises(StorageError, match=r"Cannot find the log of t-0: .*/b is offline"):
        created(manager, is_new=False, directory_id=here)


@pytest.mark.parametrize("reads", range(3))
def test_a_move_is_finished_or_its_directory_is_offline_if_one_listing_fails(tmp_path: Path, reads: int) -> None:
    """Otherwise the log would be created again, without records."""
    complete_copy(tmp_path / "a")
    disk = FaultyDisk()
    listings = iter(range(100))

    def listdir(path: str) -> list[str]:
        if path == f"{tmp_path}/a" and next(listings) == reads:
            raise StorageError("list", path, OSError(errno.EIO, "failed"))
        return Disk.listdir(disk, path)

    disk.listdir = listdir  # type: ignore[method-assign]
    manager = started(tmp_path / "a", tmp_path / "b", disk=disk)
    assert list(manager.offline) == [f"{tmp_path}/a"] or list(manager.logs) == [("t", 0)]


def test_a_move_that_cannot_be_finished_takes_its_directory_offline_alone(tmp_path: Path) -> None:
    copy = complete_copy(tmp_path / "a")
    disk = FaultyDisk()
    fail = StorageError("rename", str(copy), OSError(errno.EIO, "failed"))

    def rename(source: str, target: str) -> None:
        del source, target
        raise fail

    disk.rename = rename  # type: ignore[method-assign]
    manager = started(tmp_path / "a", tmp_path / "b", disk=disk)
    assert manager.offline == {f"{tmp_path}/a": fail}


def test_a_replaced_directory_is_not_written_to(tmp_path: Path) -> None:
    manager = started(tmp_path / "a", tmp_path / "b")
    append(created(manager), "x")
    (tmp_path / "a").rename(tmp_path / "away")
    (tmp_path / "a").mkdir()
    with pytest.raises(StorageError, match="it is another directory now"):
        write_checkpoints(manager)
    with pytest.raises(StorageError, match="it is another directory now"):
        created(manager, partition=1, directory=f"{tmp_path}/a")
    outcomes = []
    for path, work in directory_checks(manager):
        try:
            work()
        except StorageError:
            outcomes.append(path)
    assert outcomes == [f"{tmp_path}/a"]
    assert list((tmp_path / "a").iterdir()) == []


@pytest.mark.parametrize("is_replaced", [False, True])
def test_no_commit_log_is_created_in_place_of_a_log_directory(tmp_path: Path, is_replaced: bool) -> None:
    """Its disk was unmounted; a start refuses a directory that has a commit log and no meta.properties."""
    config = replace(SMALL, barnabas_storage_engine="commitlog")
    manager = started(tmp_path / "a", config=config)
    log = manager.get_or_create("t", 0, TOPIC_ID, config)
    (tmp_path / "a").rename(tmp_path / "b")
    if is_replaced:
        (tmp_path / "a").mkdir()
    with pytest.raises(StorageError):
        log.open()
    assert [path.name for path in tmp_path.glob("a/*")] == []
    assert (tmp_path / "a").exists() == is_replaced


def test_a_returned_directory_with_a_deleted_topics_log_makes_it_a_stray(tmp_path: Path) -> None:
    for name, topic_id in (("a", TOPIC_ID), ("b", OTHER)):
        manager = started(tmp_path / name)
        append(manager.get_or_create("t", 0, topic_id, SMALL), name)
        manager.shutdown()
    for current in (TOPIC_ID, OTHER):
        manager = started(tmp_path / "a", tmp_path / "b", topic_id=current)
        log = manager.get_or_create("t", 0, current, SMALL)
        assert values_of(log) == [(0, "a" if current == TOPIC_ID else "b")]
        (stray,) = manager.strays
        assert stray is not log
        manager.shutdown()
    manager.rename_to_stray(stray)
    assert manager.logs == {("t", 0): log}
    assert any(path.name.endswith("-stray") for path in (tmp_path / "a").iterdir())


def test_the_start_fails_without_any_usable_directory(tmp_path: Path) -> None:
    (tmp_path / "recovery-point-offset-checkpoint").mkdir()
    with pytest.raises(StorageError, match="recovery-point-offset-checkpoint"):
        started(tmp_path)
