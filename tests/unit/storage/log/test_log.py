"""Reads, truncation, flush and close, on both engines."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from protocol.batch_builder import batch_of
from protocol.compression import Compression
from protocol.errors import ErrorCode
from protocol.file_region import file_regions
from protocol.primitives import varint
from protocol.record_codec import encode_record
from storage.config.config_def import MAX_LONG
from storage.config.log_config import LogConfig
from storage.io.disk import Disk, StorageError
from storage.io.disk_lookup import wait_for_disk
from storage.log.log import Log
from storage.log.log_offsets import Checkpoint
from storage.log.log_reader import Isolation
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import (
    BIG,
    EVERYTHING,
    NOW_MS,
    SMALL,
    WITH_FILES,
    MakeLog,
    ProducerInfo,
    append,
    append_records,
    fill,
    flush,
    produced,
    refused,
    snapshots,
    values_of,
)

# ---- read ------------------------------------------------------------------------------------------------


def test_each_isolation_sees_up_to_its_bound(log: Log) -> None:
    fill(log, 6, "x")
    log.high_watermark = 4
    for isolation, bound in ((Isolation.LOG_END, 6), (Isolation.HIGH_WATERMARK, 4), (Isolation.LAST_STABLE, 4)):
        assert [offset for offset, _ in values_of(log, 0, isolation)] == list(range(bound))
        for offset in range(bound, 7):
            info = wait_for_disk(log.open().reader.read, offset, EVERYTHING, isolation)
            assert (info.regions, info.size) == ((), 0)
            assert info[2:6] == (4, 4, 0, 6)
    for offset in (-1, 7):
        refused(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            partial(wait_for_disk, log.open().reader.read, offset, 1, Isolation.LOG_END),
        )
        refused(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            partial(wait_for_disk, log.open().reader.read_records, offset, 1),
        )


def test_the_high_watermark_stays_within_the_log(make: MakeLog) -> None:
    log = make(checkpoint=Checkpoint(high_watermark=50))
    assert log.high_watermark == 50, "as checkpointed, as long as it is not open"
    fill(log, 6)
    log.high_watermark = 100
    assert log.high_watermark == 6
    log.open().trim(4, NOW_MS)
    log.high_watermark = 1
    assert log.high_watermark == 4


# ---- times -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", list(Compression))
def test_a_record_is_found_by_timestamp_inside_its_batch(make: MakeLog, compression: Compression) -> None:
    log = make(config=LogConfig())
    for number in range(5):
        append(log, *"abcd", epoch=number, timestamp_ms=NOW_MS + 100 * number, step_ms=10, compression=compression)
    assert wait_for_disk(log.open().reader.offset_for_timestamp, 0) == (NOW_MS, 0, 0)
    assert wait_for_disk(log.open().reader.offset_for_timestamp, NOW_MS + 111) == (NOW_MS + 120, 6, 1)
    assert wait_for_disk(log.open().reader.offset_for_timestamp, NOW_MS + 131) == (NOW_MS + 200, 8, 2)
    assert wait_for_disk(log.open().reader.offset_for_timestamp, NOW_MS + 430) == (NOW_MS + 430, 19, 4)
    assert wait_for_disk(log.open().reader.offset_for_timestamp, NOW_MS + 431) is None
    assert wait_for_disk(log.open().reader.offset_of_max_timestamp) == (NOW_MS + 430, 19, 4)
    timestamps = [wait_for_disk(log.open().reader.timestamp_at, offset) for offset in range(20)]
    assert timestamps == [NOW_MS + 100 * number + 10 * record for number in range(5) for record in range(4)]


def test_records_below_the_log_start_are_not_found(make: MakeLog) -> None:
    log = make(config=LogConfig())
    append_records(log, produced("late"))
    builder = produced("a", "b", timestamp_ms=NOW_MS + 50, step_ms=-20)
    append_records(log, builder)
    append(log, "c", timestamp_ms=NOW_MS + 40)
    log.high_watermark = 4
    assert wait_for_disk(log.open().reader.offset_for_timestamp, NOW_MS + 35) == (NOW_MS + 50, 1, 0)
    log.open().trim(2, NOW_MS)
    assert wait_for_disk(log.open().reader.offset_for_timestamp, NOW_MS + 35) == (NOW_MS + 40, 3, 0)
    assert wait_for_disk(log.open().reader.offset_for_timestamp, NOW_MS) == (NOW_MS + 30, 2, 0)


def test_a_timestamp_beyond_63_bits_is_found_as_the_greatest(make: MakeLog) -> None:
    """A response has no room for more: the lookups of the whole topic would fail."""
    log = make(config=LogConfig(message_timestamp_after_max_ms=MAX_LONG))
    records = [encode_record(9 * number, number, b"k", b"v") for number in range(2)]
    body = b"".join(varint(len(record)) + record for record in records)
    append_records(log, batch_of(body, 2, MAX_LONG - 5))
    assert wait_for_disk(log.open().reader.offset_for_timestamp, MAX_LONG - 4) == (MAX_LONG, 1, 0)
    assert wait_for_disk(log.open().reader.offset_of_max_timestamp) == (MAX_LONG, 1, 0)


# ---- leader epochs ---------------------------------------------------------------------------------------


def test_an_epoch_starts_at_the_log_end_without_opening_the_log(make: MakeLog) -> None:
    log = make()
    append(log, "a", epoch=1)
    log.close()
    again = make()
    again.assign_epoch(4)
    assert not again.is_open
    assert again.open().epochs.latest == 4
    assert again.open().end_offset_for_epoch(1) == (1, 1)
    assert again.open().end_offset_for_epoch(4) == (4, 1)
    assert again.open().end_offset_for_epoch(5) == (-1, -1)


def test_an_epoch_without_records_is_known_after_the_log_was_closed_for_a_while(log: Log) -> None:
    """Retention and the limit of open files close a log that its leader still leads in this epoch."""
    append(log, "a", epoch=1)
    flush(log)
    log.assign_epoch(4)
    for _ in range(2):
        assert log.release()
        assert log.open().epochs.entries() == [(1, 0), (4, 1)]
        assert log.open().end_offset_for_epoch(4) == (4, 1)
    assert append(log, "b", epoch=4) == 1
    assert log.open().epochs.entries() == [(1, 0), (4, 1)]


def test_an_append_of_an_earlier_epoch_does_not_change_the_latest(log: Log) -> None:
    append(log, "a", epoch=1)
    late = wait_for_disk(log.open().appends.prepare, produced("b"), leader_epoch=1, wall_ms=NOW_MS)
    log.assign_epoch(2)
    late.write()
    late.commit(NOW_MS)
    append(log, "c", epoch=2)
    assert log.open().epochs.latest == 2
    assert [log.open().epochs.epoch_at(offset) for offset in range(3)] == [1, 1, 2]


# ---- cutting ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", range(8))
def test_truncate_removes_all_later_state(log: Log, offset: int) -> None:
    """Records, epochs, producers, high watermark, flushed end, aborted transactions."""
    for number in range(6):
        append(log, BIG, epoch=number, producer=ProducerInfo(5, 0, number))
    flush(log)
    log.high_watermark = 6
    assert log.open().truncate(offset) == (offset < 6)
    end_offset = min(offset, 6)
    assert log.log_end_offset == log.high_watermark == log.flushed_end_offset == end_offset
    assert log.open().epochs.latest == end_offset - 1
    assert [found for found, _ in values_of(log)] == list(range(end_offset))
    assert append(log, "next", producer=ProducerInfo(5, 0, end_offset), epoch=9) == end_offset


def test_truncating_at_the_end_removes_an_epoch_without_records(log: Log) -> None:
    append(log, "a", epoch=1)
    log.assign_epoch(2)
    assert not log.open().truncate(1)
    assert log.open().epochs.latest == 1


@WITH_FILES
def test_a_truncated_log_drops_its_producer_snapshots(log: Log, tmp_path: Path) -> None:
    fill(log, 9)
    log.high_watermark = 9
    log.open().truncate(7)
    assert snapshots(tmp_path) == [2, 4, 6]
    log.open().trim(4, NOW_MS)
    assert snapshots(tmp_path) == [4, 6]


def test_a_truncation_below_the_first_segment_restarts_the_log_there(log: Log) -> None:
    fill(log, 6)
    log.high_watermark = 6
    log.open().trim(5, NOW_MS)
    assert log.open().truncate(2)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (2, 2, 2)
    assert append(log, "x") == 2


def test_truncate_fully_removes_snapshots_and_epochs(log: Log, tmp_path: Path) -> None:
    for number in range(6):
        append(log, BIG, epoch=number, producer=ProducerInfo(5, 0, number))
    log.open().truncate_fully(100)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (100, 100, 100)
    assert log.open().epochs.latest == -1
    assert snapshots(tmp_path) == []
    assert append(log, "x", producer=ProducerInfo(5, 0, 3)) == 100


def test_trim_raises_the_log_start_and_deletes_whole_segments(log: Log) -> None:
    fill(log, 7, epoch=1)
    log.high_watermark = 5
    error = refused(ErrorCode.OFFSET_OUT_OF_RANGE, lambda: log.open().trim(6, NOW_MS))
    assert "larger than the high watermark 5" in str(error.message)
    log.open().trim(3, NOW_MS)
    assert (log.log_start_offset, log.open().engine.start_offset) == (3, 2)
    log.open().trim(1, NOW_MS)
    assert log.log_start_offset == 3
    refused(ErrorCode.OFFSET_OUT_OF_RANGE, lambda: wait_for_disk(log.open().reader.read, 2, 1, Isolation.LOG_END))
    assert [offset for offset, _ in values_of(log)] == [3, 4, 5, 6]
    assert [log.open().epochs.epoch_at(offset) for offset in (2, 3)] == [-1, 1]
    assert log.checkpoint.log_start_offset == 3


def test_a_trimmed_log_keeps_its_start_after_a_restart(make: MakeLog) -> None:
    log = make()
    fill(log, 7)
    log.high_watermark = 7
    log.open().trim(3, NOW_MS)
    log.close()
    assert make(checkpoint=log.checkpoint).log_start_offset == 3
    assert make().log_start_offset == 2


def test_a_log_that_ends_before_its_start_is_empty_there(make: MakeLog) -> None:
    log = make()
    fill(log, 3, epoch=1)
    again = make(is_clean=False, checkpoint=Checkpoint(0, 10, 12))
    assert (again.log_start_offset, again.log_end_offset, again.high_watermark) == (10, 10, 10)
    assert again.open().epochs.latest == -1
    assert append(again, "x") == 10


# ---- flush -----------------------------------------------------------------------------------------------


def test_the_recovery_point_advances_after_a_sync(make: MakeLog) -> None:
    disk = FaultyDisk()
    log = make(disk=disk)
    fill(log, 2, "x")
    assert (log.open().flush.unflushed_messages, log.flushed_end_offset) == (2, 0)
    work = log.open().flush.begin()
    append(log, "later")
    disk.reset_counters()
    work()
    assert disk.syncs
    log.open().flush.complete(2)
    assert (log.open().flush.unflushed_messages, log.flushed_end_offset) == (1, 2)
    assert log.checkpoint == Checkpoint(2, 0, 0)


@WITH_FILES
def test_epochs_are_durable_before_the_recovery_point_advances(make: MakeLog, tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = make(disk=disk)
    append(log, "x", epoch=3)
    assert not (tmp_path / "t-0" / "leader-epoch-checkpoint").exists()
    log.open().flush.begin()()
    assert (tmp_path / "t-0" / "leader-epoch-checkpoint").read_text() == "0\n1\n3 0\n"
    assert any("leader-epoch-checkpoint" in path for path in disk.syncs)


def test_a_flush_is_due_by_number_by_time_and_after_a_roll(make: MakeLog) -> None:
    log = make(config=replace(SMALL, flush_ms=500, flush_messages=3))
    assert not log.open().flush.is_due(log.config, NOW_MS * 2)
    append(log, "x")
    assert not log.open().flush.is_due(log.config, NOW_MS + 499)
    assert log.open().flush.is_due(log.config, NOW_MS + 500)
    fill(log, 2, "x")
    assert log.open().flush.is_due(log.config, NOW_MS)
    flush(log)
    assert not log.open().flush.is_due(log.config, NOW_MS * 2)
    fill(log, 2)
    assert not log.open().flush.is_due(log.config, NOW_MS)
    append(log, BIG)
    log.update_config(replace(SMALL))
    assert log.open().flush.is_due(log.config, NOW_MS)


# ---- life ------------------------------------------------------------------------------------------------


def test_a_log_opens_nothing_before_it_is_used(make: MakeLog) -> None:
    log = make()
    fill(log, 6)
    log.high_watermark = 6
    log.close()
    disk = FaultyDisk()
    again = make(disk=disk, checkpoint=log.checkpoint)
    assert again.checkpoint == Checkpoint(6, 0, 6)
    assert (again.high_watermark, again.name, again.files.topic_id) == (6, "t-0", log.files.topic_id)
    again.update_config(SMALL)
    again.assign_epoch(3)
    again.close()
    assert (again.is_open, disk.reads, disk.open_files) == (False, [], 0)
    assert again.log_end_offset == 6
    assert again.is_open


def test_a_log_is_released_only_when_all_is_flushed(log: Log) -> None:
    append(log, "a")
    assert not log.release()
    flush(log)
    prepared = wait_for_disk(log.open().appends.prepare, produced("b"), leader_epoch=0, wall_ms=NOW_MS)
    assert not log.release()
    prepared.write()
    prepared.commit(NOW_MS)
    flush(log)
    assert log.release()
    assert not log.is_open
    assert values_of(log) == [(0, "a"), (1, "b")]


def test_an_offline_log_refuses_every_use(log: Log) -> None:
    append(log, "a")
    flush = log.open().flush
    begun = flush.begin()
    prepared = wait_for_disk(log.open().appends.prepare, produced("b"), leader_epoch=0, wall_ms=NOW_MS)
    log.go_offline()
    for act in (
        lambda: prepared.commit(NOW_MS),
        lambda: append(log, "c"),
        lambda: wait_for_disk(log.open().reader.read, 0, 1, Isolation.LOG_END),
        lambda: log.log_end_offset,
        lambda: log.open().truncate(0),
    ):
        refused(ErrorCode.KAFKA_STORAGE_ERROR, act)
    log.close()
    flush.complete(begun.end_offset)


def test_regions_stay_readable_after_the_log_is_deleted(log: Log, tmp_path: Path) -> None:
    append(log, BIG)
    (region,) = file_regions(wait_for_disk(log.open().reader.read, 0, EVERYTHING, Isolation.LOG_END).regions)
    log.delete()
    for path in (tmp_path / "t-0").iterdir():
        path.unlink()
    assert len(os.pread(region.file.fileno(), region.length, region.position)) == region.length


def test_a_flush_after_a_deletion_does_not_fail(log: Log, tmp_path: Path) -> None:
    fill(log, 5, epoch=2)
    before, after = log.open().flush.begin(), log.open().flush.begin()
    append(log, BIG, epoch=3)
    late = log.open().flush.begin()
    before()
    log.delete()
    (tmp_path / "t-0").rename(tmp_path / "t-0.0-delete")
    after()
    late()
    assert not (tmp_path / "t-0").exists()


@WITH_FILES
def test_a_flush_during_a_deletion_does_not_fail(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    is_deleted = False

    def fail(_: Disk, path: str, **__: object) -> None:
        if is_deleted:
            log.delete()
        raise StorageError("replace", path)

    monkeypatch.setattr("storage.io.disk.Disk.commit_temporary", fail)
    for delete in (False, True):
        is_deleted = delete
        append(log, BIG, epoch=log.log_end_offset)
        work = log.open().flush.begin()
        if delete:
            work()
        else:
            with pytest.raises(StorageError):
                work()


@WITH_FILES
def test_a_snapshot_is_durable_when_the_recovery_point_is_above_it(make: MakeLog, tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = make(disk=disk)
    fill(log, 5)
    work = log.open().flush.begin()
    log.high_watermark = 5
    log.open().trim(4, NOW_MS)
    disk.reset_counters()
    work()
    assert any(path.endswith(f"{4:020d}.snapshot") for path in disk.syncs)
    disk.reset_counters()
    log.open().flush.begin()()
    assert not any(path.endswith(".snapshot") for path in disk.syncs)
