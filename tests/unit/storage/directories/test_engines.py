"""The choice of the engine of a log, and the commit logs of log directories (engines.py, commit_logs.py)."""

from __future__ import annotations

from dataclasses import replace
from errno import ENOSPC
from pathlib import Path

import pytest

from storage.commitlog.commit_log import DIRECTORY, CommitLog
from storage.commitlog.commit_log_engine import CommitLogEngine
from storage.commitlog.frames import FrameKind
from storage.commitlog.log_file import LogFile
from storage.commitlog.slots import Slot
from storage.config.log_config import LogConfig
from storage.directories.future_logs import add_future_log, new_future_log, replace_with_future_log
from storage.directories.log_manager import LogManager
from storage.directories.partition_directory import FUTURE
from storage.inspection.commit_log_check import CommitLogCheck
from storage.io.deferred_file_ops import FileOp
from storage.io.disk import Disk, StorageError
from storage.log.log import Log
from storage.segments.segment_engine import SegmentEngine
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import (
    NOW_MS,
    SMALL,
    TOPIC_ID,
    ProducerInfo,
    append,
    flush,
    retained,
    values_of,
    write_checkpoint,
)
from tests.unit.storage.directories.test_log_manager import started

COMMIT_LOG = replace(SMALL, barnabas_storage_engine="commitlog")
OTHER_ID = bytes(16)


def log_of(manager: LogManager, config: LogConfig = COMMIT_LOG, topic: str = "t", **options: object) -> Log:
    return manager.get_or_create(topic, 0, TOPIC_ID, config, **options)  # type: ignore[arg-type]


def test_a_new_log_has_the_engine_of_its_settings(tmp_path: Path) -> None:
    manager = started(tmp_path)
    assert isinstance(log_of(manager).open().engine, CommitLogEngine)
    assert isinstance(log_of(manager, SMALL, "u").open().engine, SegmentEngine)


def test_a_compacted_log_is_stored_in_segments(tmp_path: Path) -> None:
    compacted = replace(COMMIT_LOG, cleanup_policy=frozenset({"compact"}))
    assert isinstance(log_of(started(tmp_path), compacted).open().engine, SegmentEngine)


@pytest.mark.parametrize(("first", "later"), [(SMALL, COMMIT_LOG), (COMMIT_LOG, SMALL)])
@pytest.mark.parametrize("stop", ["cleanly", "killed"])
def test_an_existing_log_keeps_its_engine(tmp_path: Path, first: LogConfig, later: LogConfig, stop: str) -> None:
    manager = started(tmp_path)
    append(log_of(manager, first), "a")
    if stop == "cleanly":
        manager.shutdown()
    again = started(tmp_path, config=later)
    log = log_of(again, later)
    append(log, "b")
    assert values_of(log) == [(0, "a"), (1, "b")]
    assert isinstance(log.open().engine, CommitLogEngine if first is COMMIT_LOG else SegmentEngine)


def test_a_log_directory_without_such_logs_has_no_commit_log(tmp_path: Path) -> None:
    append(log_of(started(tmp_path), SMALL), "a")
    assert not (tmp_path / "commitlog").exists()


def test_a_clean_stop_seals_the_commit_log(tmp_path: Path) -> None:
    manager = started(tmp_path)
    append(log_of(manager), "a")
    manager.shutdown()
    assert list((tmp_path / "commitlog").glob("*.queue"))
    disk = FaultyDisk()
    again = started(tmp_path, disk=disk)
    assert values_of(log_of(again)) == [(0, "a")]
    assert not disk.writes


def test_a_clean_stop_removes_a_commit_log_that_has_no_partition_left(tmp_path: Path) -> None:
    """Apache Kafka does not start on a log directory with it."""
    manager = started(tmp_path)
    append(log_of(manager), "x")
    manager.shutdown()
    assert (tmp_path / DIRECTORY).is_dir()
    manager = started(tmp_path)
    manager.delete(log_of(manager))
    manager.shutdown()
    assert not [path.name for path in tmp_path.iterdir() if path.is_dir()]
    append(log_of(started(tmp_path), topic="u"), "y")


@pytest.mark.pure_python("replaces a method of a compiled class")
def test_a_log_whose_producers_find_no_space_at_the_close_is_not_closed_cleanly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next start would look for no producers in its batches."""
    manager = started(tmp_path)
    append(log_of(manager), "a", producer=ProducerInfo(7, 0, 0))

    def full(self: CommitLog, slot: Slot, kind: FrameKind, payload: bytes) -> LogFile:
        raise StorageError("write", f"{tmp_path}/commitlog", OSError(ENOSPC, "full"))

    with monkeypatch.context() as patch:
        patch.setattr(CommitLog, "write_frame", full)
        manager.shutdown()
    again = log_of(started(tmp_path))
    assert again.needs_recovery
    assert again.open().producers.producers.keys() == {7}


def test_a_deleted_topic_does_not_return_with_its_name(tmp_path: Path) -> None:
    manager = started(tmp_path)
    append(log_of(manager), "a")
    manager.delete(manager.logs["t", 0])
    log = log_of(manager)
    assert log.log_end_offset == 0
    append(log, "b")
    assert values_of(log_of(started(tmp_path))) == [(0, "b")]


def test_partitions_that_are_deleted_together_share_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next use of their names waits for it: with a sync for each of 50,000 that took a minute."""
    manager = started(tmp_path)
    for partition in range(20):
        append(manager.get_or_create("t", partition, TOPIC_ID, COMMIT_LOG), "a")
    queue: list[FileOp] = []
    manager.submit_directory_op = lambda _, op: queue.append(op)
    for partition in range(20):
        manager.delete(manager.logs["t", partition])
    syncs: list[CommitLog] = []
    sync = CommitLog.sync

    def counted(log: CommitLog) -> None:
        syncs.append(log)
        sync(log)

    monkeypatch.setattr(CommitLog, "sync", counted)
    queue[0]()
    assert len(syncs) == 1
    assert not started(tmp_path).logs
    for op in queue[1:]:
        op()
    assert len(syncs) == 1


def test_a_partition_in_the_commit_log_has_no_directory(tmp_path: Path) -> None:
    manager = started(tmp_path)
    log = log_of(manager)
    assert not (tmp_path / "commitlog").exists(), "a new partition needs nothing"
    append(log, "a")
    flush(log)
    manager.shutdown()
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"commitlog"}
    assert values_of(started(tmp_path).logs["t", 0]) == [(0, "a")]


@pytest.mark.parametrize(
    ("current", "value", "stray"), [(TOPIC_ID, "a", OTHER_ID), (OTHER_ID, "b", TOPIC_ID)], ids=["first", "second"]
)
def test_a_log_of_a_deleted_topic_gives_way_to_that_of_the_current_one(
    tmp_path: Path, current: bytes, value: str, stray: bytes
) -> None:
    """The DROP was lost, and its name is used again."""
    manager = started(tmp_path)
    append(log_of(manager), "a")
    manager.logs.clear()
    append(manager.get_or_create("t", 0, OTHER_ID, COMMIT_LOG), "b")
    again = started(tmp_path, topic_id=current)
    assert values_of(again.logs["t", 0]) == [(0, value)]
    assert [log.files.topic_id for log in again.strays] == [stray]
    again.rename_to_stray(again.strays[0])
    assert again.logs["t", 0].files.topic_id == current
    for topic_id in (stray, current):
        last = started(tmp_path, topic_id=topic_id)
        assert not last.strays, "its frames were dropped, durably"
        assert values_of(last.logs["t", 0]) == [(0, value)]


def test_a_new_replica_starts_without_the_frames_of_an_earlier_one(tmp_path: Path) -> None:
    manager = started(tmp_path)
    append(log_of(manager), "a")
    held: list[FileOp] = []
    manager.submit_directory_op = lambda _, op: held.append(op)
    manager.delete(manager.logs["t", 0])
    log = log_of(manager)
    assert log.is_busy
    for op in held:
        op()
    append(log, "b")
    assert values_of(log_of(started(tmp_path))) == [(0, "b")]


def test_a_replica_that_returns_in_the_other_engine_waits_for_the_rename_of_its_directory(tmp_path: Path) -> None:
    """After a kill before the rename, the next start would find both, and refuse the log directory."""
    manager = started(tmp_path)
    append(log_of(manager, SMALL), "a")
    write_checkpoint(manager)
    held: list[FileOp] = []
    manager.submit_directory_op = lambda _, op: held.append(op)
    manager.delete(manager.logs["t", 0])
    log = log_of(manager)
    assert log.is_busy
    for op in held:
        op()
    assert not log.is_busy
    append(log, "b")
    assert values_of(log_of(started(tmp_path))) == [(0, "b")]


def test_a_name_that_is_used_again_twice_waits_for_checkpoints_without_its_first_log(tmp_path: Path) -> None:
    manager = started(tmp_path)
    append(log_of(manager), "a")
    flush(log_of(manager))
    write_checkpoint(manager)
    held: list[FileOp] = []
    manager.submit_directory_op = lambda _, op: held.append(op)
    for topic_id in (OTHER_ID, bytes(range(3, 19))):
        manager.delete(manager.logs["t", 0])
        log = manager.get_or_create("t", 0, topic_id, COMMIT_LOG)
        assert log.is_busy
    assert "t 0 1" in (tmp_path / "recovery-point-offset-checkpoint").read_text()
    for op in held:
        op()
    assert not log.is_busy
    assert "t 0 0" in (tmp_path / "recovery-point-offset-checkpoint").read_text()


def moved(manager: LogManager, log: Log) -> Log:
    """The log after a move to the other directory; it has a partition directory there."""
    target = next(path for path in manager.directories if path != log.directory)
    copy, work = new_future_log(manager, log, target, 0)
    work()
    add_future_log(manager, copy)
    append(copy, "a")
    flush(copy)
    copy.close()
    replace_with_future_log(manager, log, copy)
    return copy


def test_the_frames_of_a_moved_log_are_dropped_after_the_rename_of_its_directory(tmp_path: Path) -> None:
    roots = tmp_path / "a", tmp_path / "b"
    manager = started(*roots)
    append(log_of(manager), "a")
    copy = moved(manager, manager.logs["t", 0])
    manager.submit_directory_op = lambda _, op: None
    manager.delete(copy)
    again = started(*roots)
    assert values_of(again.logs["t", 0]) == [(0, "a")]
    path = Path(again.logs["t", 0].path)
    path.rename(f"{path}.{'0' * 32}-delete")
    assert not started(*roots).commit_logs.by_directory[str(path.parent)].slots


class Killed(BaseException):
    pass


def kill(*_: object) -> None:
    raise Killed


def test_a_move_that_a_crash_interrupted_before_the_last_rename_is_finished(tmp_path: Path) -> None:
    roots = tmp_path / "a", tmp_path / "b"
    manager = started(*roots)
    log = log_of(manager)
    append(log, "a")
    rename = manager.disk.rename

    def rename_or_die(source: str, target: str) -> None:
        if source.endswith(FUTURE):
            raise Killed
        rename(source, target)

    manager.disk.rename = rename_or_die  # type: ignore[method-assign]
    with pytest.raises(Killed):
        moved(manager, log)
    source, target = log.directory, next(path for path in manager.directories if path != log.directory)
    assert not started(Path(source)).logs, "the log may be in the other directory"
    again = started(*roots)
    assert again.logs["t", 0].directory == target
    assert values_of(again.logs["t", 0]) == [(0, "a")]
    assert not again.commit_logs.by_directory[source].slots


def test_a_copy_does_not_replace_the_log_that_went_on_without_its_directory(tmp_path: Path) -> None:
    roots = tmp_path / "a", tmp_path / "b"
    manager = started(*roots)
    log = log_of(manager)
    append(log, "a")
    manager.engines.drop_of = lambda path, topic_id: kill if path == log.path else None  # type: ignore[method-assign]
    with pytest.raises(Killed):
        moved(manager, log)
    append(started(Path(log.directory)).logs["t", 0], "b")
    again = started(*roots)
    assert values_of(again.logs["t", 0]) == [(0, "a"), (1, "b")]
    assert again.logs["t", 0].directory == log.directory


def test_a_failed_directory_takes_its_commit_log_with_it(tmp_path: Path) -> None:
    manager = started(tmp_path / "a", tmp_path / "b")
    log = log_of(manager)
    append(log, "a")
    manager.go_offline(log.directory, StorageError("write", log.path, OSError(5, "failed")))
    assert log.directory not in manager.commit_logs.by_directory
    manager.shutdown()


def test_a_log_moves_to_the_commit_log_of_another_directory(tmp_path: Path) -> None:
    manager = started(tmp_path / "a", tmp_path / "b")
    log = log_of(manager)
    append(log, "a")
    copy = moved(manager, log)
    assert values_of(copy) == [(0, "a")]
    assert not manager.commit_logs.by_directory[log.directory].slots


def test_a_replica_that_returns_after_a_move_is_found_and_deleted(tmp_path: Path) -> None:
    """Its frames are not those of a copy, as the frames of its predecessor were."""
    manager = started(tmp_path / "a", tmp_path / "b")
    append(log_of(manager), "a")
    directory = moved(manager, manager.logs["t", 0]).directory
    manager.delete(manager.logs["t", 0])
    log = log_of(manager)
    assert log.directory == directory
    append(log, "b")
    usage = manager.disk_usage(directory, [log])
    usage.run()
    assert usage.sizes[log.path] > 0
    manager.delete(log)
    assert not manager.commit_logs.by_directory[directory].slots
    assert values_of(log_of(manager)) == []


def test_the_usage_of_a_closed_log_is_that_of_its_frames(tmp_path: Path) -> None:
    manager = started(tmp_path)
    log = log_of(manager)
    append(log, "a")
    size = log.open().engine.size_bytes
    log.close()
    usage = manager.disk_usage(log.directory, [log])
    usage.run()
    assert (usage.sizes[log.path], usage.segments[log.path]) == (size, 1)


def test_retention_deletes_frames(tmp_path: Path) -> None:
    manager = started(tmp_path)
    log = log_of(manager, replace(COMMIT_LOG, segment_bytes=200, retention_bytes=250))
    for number in range(6):
        append(log, f"{number}" * 100)
    log.high_watermark = 6
    for _ in retained(manager, NOW_MS):
        pass
    start = log.log_start_offset
    assert 0 < start < 6
    assert log_of(started(tmp_path)).log_start_offset == start


def test_what_retention_deletes_is_removed_from_the_commit_log(tmp_path: Path) -> None:
    manager = started(tmp_path)
    manager.commit_logs.file_bytes = 4096
    assert manager.commit_logs.clean(str(tmp_path), NOW_MS, 1000, is_full=False) is None
    kept = log_of(manager)
    settings = replace(COMMIT_LOG, retention_bytes=0, segment_bytes=2000)
    short = manager.get_or_create("short", 0, bytes(16), settings)
    for number in range(40):
        append(kept, f"{number}")
        append(short, "x" * 700)
    short.high_watermark = short.log_end_offset
    before = values_of(kept)
    for _ in retained(manager, NOW_MS):
        pass
    used = sum(path.stat().st_size for path in (tmp_path / "commitlog").glob("*.clog"))
    steps = manager.commit_logs.clean(str(tmp_path), NOW_MS, 1000, is_full=False)
    assert steps is not None
    assert sum(steps) < used / 2
    assert sum(path.stat().st_size for path in (tmp_path / "commitlog").glob("*.clog")) < used / 2
    assert values_of(kept) == before
    manager.shutdown()
    assert values_of(log_of(started(tmp_path))) == before


def test_a_clean_stop_removes_the_run_of_an_unfinished_pass(tmp_path: Path) -> None:
    """Of settling it may have gigabytes, and barnabas doctor would report an issue after each stop."""
    manager = started(tmp_path)
    manager.commit_logs.file_bytes = 4096
    log = log_of(manager)
    for number in range(500):
        append(log, f"{number}" * 200)
    before = values_of(log)
    names = {path.name for path in (tmp_path / "commitlog").iterdir()}
    steps = manager.commit_logs.settle(str(tmp_path), NOW_MS, lambda: False)
    assert steps is not None
    next(steps)
    assert {path.name for path in (tmp_path / "commitlog").iterdir()} > names
    manager.shutdown()
    check = CommitLogCheck(Disk(), str(tmp_path), {(TOPIC_ID, 0): "t-0"})
    check.run()
    assert check.issues == []
    assert values_of(log_of(started(tmp_path))) == before


def test_a_failed_directory_is_not_cleaned(tmp_path: Path) -> None:
    manager = started(tmp_path)
    append(log_of(manager), "a")
    assert manager.commit_logs.clean(str(tmp_path), NOW_MS, 1000, is_full=False) is not None
    manager.go_offline(str(tmp_path), StorageError("write", str(tmp_path), OSError(5, "broken")))
    assert manager.commit_logs.clean(str(tmp_path), NOW_MS, 1000, is_full=False) is None
