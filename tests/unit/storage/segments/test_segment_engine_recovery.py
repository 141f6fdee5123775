"""The segment engine across restarts and crashes: open, recovery, truncation, sync."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from protocol.errors import ErrorCode, KafkaError
from storage.config.log_config import LogConfig
from storage.engine import AbortedTransaction
from storage.io.disk import Disk, File, StorageError
from storage.io.disk_lookup import wait_for_disk
from storage.io.file_handle_cache import FileHandleCache
from storage.segments.segment_engine import SegmentEngine
from tests.support.batches import old_message
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import refused
from tests.support.segments import NOW_MS, append, bases, batch, contents, filled, opened, read, sync_files

SMALL = LogConfig(segment_bytes=10_000, index_interval_bytes=2000)


def recovered(
    directory: Path, recovery_point: int, config: LogConfig = SMALL, compacted_end: int = 0
) -> tuple[SegmentEngine, list[int]]:
    """An engine after an unclean stop, and the base offsets that the recovery visited."""
    engine = SegmentEngine(Disk(), str(directory), config)
    engine.compacted_end = compacted_end
    visited: list[int] = []
    engine.recover(engine.open(recovery_point) or 0, lambda _, __, header: visited.append(header.base_offset))
    return engine, visited


# ---- opening ---------------------------------------------------------------------------------------------


def test_a_clean_partition_is_opened_without_opening_a_file(tmp_path: Path) -> None:
    filled(tmp_path, 45, config=SMALL).close()
    disk = FaultyDisk()
    engine = opened(tmp_path, SMALL, disk=disk)
    assert engine.start_offset == 0
    assert engine.size_bytes == 45_000
    assert (disk.open_files, disk.reads) == (0, [])
    assert engine.end_offset == engine.flushed_end_offset == 45
    assert disk.open_files == 1
    assert {Path(path).name[:20] for path, _, _ in disk.reads} == {f"{40:020d}"}


def test_a_reopened_partition_continues(tmp_path: Path) -> None:
    engine = filled(tmp_path / "a", 25, config=SMALL)
    engine.close()
    engine = opened(tmp_path / "a", SMALL)
    for number in range(25, 50):
        append(engine, batch(number, timestamp_ms=NOW_MS + number, size=1000))
    engine.close()
    filled(tmp_path / "b", 50, config=SMALL).close()
    a, b = contents(tmp_path / "a"), contents(tmp_path / "b")
    # The stop left one time entry more, as Kafka's stop does.
    stopped_in = f"{20:020d}.timeindex"
    assert (len(a.pop(stopped_in)), len(b.pop(stopped_in))) == (48, 36)
    assert a == b


def test_close_truncates_unpublished_bytes(tmp_path: Path) -> None:
    engine = filled(tmp_path, 5)
    engine._active.file.pwrite(b"x" * 500, 5000)
    engine.close()
    assert (tmp_path / f"{0:020d}.log").stat().st_size == 5000


def test_idle_partitions_hold_no_descriptor(tmp_path: Path) -> None:
    disk = Disk()
    open_files = FileHandleCache(disk)
    filled(tmp_path, 25, config=SMALL).close()
    engine = SegmentEngine(disk, str(tmp_path), SMALL, open_files=open_files)
    engine.open(None)
    engine.register_files()
    for offset in range(25):
        read(engine, offset)
    assert (disk.open_files, len(open_files)) == (3, 3)
    list(open_files.close_idle())
    assert read(engine, 3, 1000) == batch(3, timestamp_ms=NOW_MS + 3, size=1000)
    list(open_files.close_idle())
    assert disk.open_files == 1
    list(open_files.close_idle())
    assert (disk.open_files, len(open_files)) == (0, 0)
    append(engine, batch(25, size=1000))
    list(open_files.close_idle())
    assert disk.open_files == 1
    assert read(engine, 25) == batch(25, size=1000)
    assert read(engine, 3, 1000) == batch(3, timestamp_ms=NOW_MS + 3, size=1000)


def test_orphaned_indexes_and_renamed_files_are_deleted(tmp_path: Path) -> None:
    filled(tmp_path, 15, config=SMALL).close()
    expected = contents(tmp_path)
    for name in (
        f"{77:020d}.index",
        f"{77:020d}.timeindex",
        f"{77:020d}.txnindex",
        f"{3:020d}.log.deleted",
        f"{3:020d}.index.deleted",
        f"{3:020d}.log.cleaned",
        f"{3:020d}.snapshot.deleted",
    ):
        (tmp_path / name).write_bytes(b"12345678")
    kept = ["leader-epoch-checkpoint", "partition.metadata", f"{15:020d}.snapshot", f"{9:020d}-0000000001.checkpoint"]
    for name in [*kept, f"{4:020d}-0000000001.checkpoint.deleted"]:
        (tmp_path / name).write_bytes(b"")
        expected[name] = b""
    engine = opened(tmp_path, SMALL)
    assert bases(engine) == [0, 10]
    engine.close()
    assert contents(tmp_path) == expected


# ---- recovery --------------------------------------------------------------------------------------------


def test_recovery_checks_from_the_segment_of_the_recovery_point_on(tmp_path: Path) -> None:
    filled(tmp_path, 45, config=SMALL).close()
    before = contents(tmp_path)
    for point, first in ((0, 0), (9, 0), (10, 10), (37, 30), (45, 40)):
        engine, visited = recovered(tmp_path, point)
        assert visited == list(range(first, 45))
        assert (engine.end_offset, engine.flushed_end_offset) == (45, point)
        assert contents(tmp_path) == before
        engine.close()


def test_before_recovery_only_older_segments_can_be_read(tmp_path: Path) -> None:
    filled(tmp_path, 25, config=SMALL).close()
    engine = SegmentEngine(Disk(), str(tmp_path), SMALL)
    assert engine.open(13) == 10
    assert bytes(engine.view().read_batches(10, 10**6)) == b""
    log = tmp_path / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[:5000])
    engine = SegmentEngine(Disk(), str(tmp_path), SMALL)
    assert engine.open(13) == 10
    assert bytes(engine.view().read_batches(5, 10**6)) == b""


@pytest.mark.parametrize("kept", [0, 1, 999, 1000, 1001, 4500, 9000, 9999])
def test_everything_after_a_corrupt_batch_is_deleted(tmp_path: Path, kept: int) -> None:
    filled(tmp_path, 45, config=SMALL).close()
    log = tmp_path / f"{20:020d}.log"
    log.write_bytes(log.read_bytes()[:kept])
    engine, visited = recovered(tmp_path, 12)
    end_offset = 20 + kept // 1000
    assert visited == list(range(10, end_offset))
    assert bases(engine) == [0, 10, 20]
    assert (engine.end_offset, engine.size_bytes) == (end_offset, 1000 * end_offset)
    append(engine, batch(end_offset, size=1000))
    assert read(engine, end_offset) == batch(end_offset, size=1000)
    engine.close()
    _, visited = recovered(tmp_path, 0)
    assert visited == list(range(end_offset + 1))


def test_a_log_may_have_gaps_below_the_compacted_end(tmp_path: Path) -> None:
    filled(tmp_path, 45, config=SMALL).close()
    log = tmp_path / f"{20:020d}.log"
    log.write_bytes(log.read_bytes()[:3000])
    _, visited = recovered(tmp_path, 12, compacted_end=30)
    assert visited == [*range(10, 23), *range(30, 45)]


def test_the_flushed_end_is_never_above_the_recovered_end(tmp_path: Path) -> None:
    filled(tmp_path, 15, config=SMALL).close()
    engine, _ = recovered(tmp_path, 99)
    assert engine.flushed_end_offset == engine.end_offset == 15


def test_a_segment_without_index_is_recovered_also_after_a_clean_stop(tmp_path: Path) -> None:
    filled(tmp_path, 35, config=SMALL).close()
    before = contents(tmp_path)
    (tmp_path / f"{10:020d}.timeindex").unlink()
    engine = SegmentEngine(Disk(), str(tmp_path), SMALL)
    assert engine.open(None) == 10
    engine.recover(10, lambda *_: None)
    assert engine.flushed_end_offset == 35
    engine.close()
    assert contents(tmp_path) == before


# ---- aborted transactions --------------------------------------------------------------------------------


def test_an_aborted_transaction_is_indexed_in_the_segment_of_its_marker(tmp_path: Path) -> None:
    engine = filled(tmp_path, 13, config=SMALL)
    engine.add_aborted(AbortedTransaction(1, 5, 12, 5))
    for number in range(13, 32):
        append(engine, batch(number, size=1000))
    engine.add_aborted(AbortedTransaction(2, 8, 31, 13))
    assert wait_for_disk(engine.aborted, 0, 32) == engine.view().aborted(0, 32)
    assert sorted(path.name for path in tmp_path.glob("*.txnindex")) == [f"{n:020d}.txnindex" for n in (10, 30)]


# ---- cutting ---------------------------------------------------------------------------------------------


def test_trim_renames_whole_segments_below_the_offset(tmp_path: Path) -> None:
    engine = filled(tmp_path, 35, config=SMALL)
    assert engine.trim(9) == []
    deleted_files = engine.trim(25)
    assert bases(engine) == [20, 30]
    assert sorted(Path(path).name for path in deleted_files) == sorted(
        f"{base:020d}{suffix}.deleted" for base in (0, 10) for suffix in (".log", ".index", ".timeindex")
    )
    assert len(engine.trim(10**9)) == 3


# ---- durability ------------------------------------------------------------------------------------------


def synced(disk: FaultyDisk) -> list[str]:
    names = [Path(path).name.lstrip("0") for path in disk.syncs]
    disk.syncs.clear()
    return names


def test_a_sync_covers_the_active_log_and_finished_segments_with_their_indexes(tmp_path: Path) -> None:
    disk = FaultyDisk()
    engine = filled(tmp_path, 5, config=SMALL, disk=disk)
    work = engine.collect_sync()
    assert work.end_offset == 5
    assert engine.flushed_end_offset == 0
    sync_files(work)
    engine.mark_flushed(5)
    assert synced(disk) == [".log"]
    assert engine.flushed_end_offset == 5
    sync_files(engine.collect_sync())
    engine.mark_flushed(5)
    assert synced(disk) == []
    for number in range(5, 25):
        append(engine, batch(number, size=1000))
    sync_files(engine.collect_sync())
    names = synced(disk)
    assert set(names) == {".log", ".index", ".timeindex", "10.log", "10.index", "10.timeindex", "20.log"}
    engine.mark_flushed(25)
    engine.roll(NOW_MS)
    sync_files(engine.collect_sync())
    assert set(synced(disk)) == {"20.log", "20.index", "20.timeindex"}


def test_new_directory_entries_are_synced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyDisk()
    directories: list[str] = []
    real = disk.open_directory

    def observed(path: str) -> File:
        directories.append(path)
        return real(path)

    monkeypatch.setattr(disk, "open_directory", observed)
    engine = filled(tmp_path, 5, config=SMALL, disk=disk)
    sync_files(engine.collect_sync())
    append(engine, batch(5, size=1000))
    sync_files(engine.collect_sync())
    assert directories == [str(tmp_path)]
    for number in range(6, 12):
        append(engine, batch(number, size=1000))
    sync_files(engine.collect_sync())
    assert directories == [str(tmp_path)] * 2


def test_sync_work_is_independent_of_later_changes(tmp_path: Path) -> None:
    engine = filled(tmp_path / "t", 25, config=SMALL)
    work = engine.collect_sync()
    for path in engine.trim(20):
        Path(path).unlink()
    (tmp_path / "t").rename(tmp_path / "t-delete")
    sync_files(work)


def test_the_recovery_point_waits_for_the_indexes_of_finished_segments(tmp_path: Path) -> None:
    engine = filled(tmp_path, 10, config=SMALL)
    before_the_roll = engine.collect_sync()
    engine.roll(NOW_MS)
    sync_files(before_the_roll)
    engine.mark_flushed(10)
    assert (engine.flushed_end_offset, engine.recovery_point) == (10, 0)
    work = engine.collect_sync()
    assert engine.recovery_point == 0
    sync_files(work)
    engine.mark_flushed(work.end_offset)
    assert engine.recovery_point == 10


def test_an_empty_log_is_recovered(tmp_path: Path) -> None:
    opened(tmp_path / "new", SMALL)
    assert SegmentEngine(Disk(), str(tmp_path / "new"), SMALL).open(0) == 0
    filled(tmp_path / "t", 10, config=SMALL).roll(NOW_MS)
    again, visited = recovered(tmp_path / "t", 10)
    assert visited == []
    assert (again.end_offset, again.flushed_end_offset) == (10, 10)
    assert SegmentEngine(Disk(), str(tmp_path / "t"), SMALL).open(10) == 10


def test_a_failed_sync_is_an_error_and_flushes_nothing(tmp_path: Path) -> None:
    disk = FaultyDisk()
    engine = filled(tmp_path, 5, disk=disk)
    disk.fail_syncs = errno.EIO
    with pytest.raises(StorageError):
        sync_files(engine.collect_sync())
    assert engine.flushed_end_offset == 0


def test_delete_writes_nothing(tmp_path: Path) -> None:
    disk = FaultyDisk()
    engine = filled(tmp_path, 100, disk=disk)
    disk.fail_writes = errno.ENOSPC
    engine.delete()
    assert disk.open_files == 0


# ---- message formats before v2 ----------------------------------------------------------------------------


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("recovery_point", [None, 0], ids=["stopped", "killed"])
def test_records_in_an_old_message_format_are_refused_and_kept(
    tmp_path: Path, magic: int, recovery_point: int | None
) -> None:
    filled(tmp_path, 3, config=SMALL).close()
    log = tmp_path / f"{0:020d}.log"
    log.write_bytes(old_message(magic, NOW_MS) * 2 + log.read_bytes())
    before = contents(tmp_path)
    engine = SegmentEngine(Disk(), str(tmp_path), SMALL)
    start = engine.open(recovery_point)

    def use() -> None:
        if start is not None:
            engine.recover(start, lambda *_: None)
        assert engine.end_offset < 0, "it raises"

    refused(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, use)
    assert contents(tmp_path) == before


def test_reads_keep_a_closed_segment_in_an_old_message_format(tmp_path: Path) -> None:
    filled(tmp_path, 25, config=SMALL).close()
    log = tmp_path / f"{0:020d}.log"
    log.write_bytes(old_message(1, NOW_MS) * 200)
    before = contents(tmp_path)
    engine = opened(tmp_path, SMALL)
    with pytest.raises(KafkaError, match="message format v1"):
        read(engine, 5)
    assert read(engine, 15)
    assert contents(tmp_path) == before


def test_a_torn_message_of_an_old_format_is_truncated(tmp_path: Path) -> None:
    filled(tmp_path, 3, config=SMALL).close()
    log = tmp_path / f"{0:020d}.log"
    whole = log.read_bytes()
    log.write_bytes(whole + old_message(1, NOW_MS)[:-1])
    recovered(tmp_path, 0)
    assert log.read_bytes() == whole
