"""Appends as leader and follower, on both engines."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from protocol.control_records import ControlType
from protocol.errors import ErrorCode
from protocol.records import headers, patch
from storage.config.log_config import LogConfig
from storage.io.disk import StorageError
from storage.io.disk_lookup import wait_for_disk
from storage.log.log import Log
from storage.log.log_reader import Isolation
from storage.log.log_validator import AppendOrigin, RejectedRecords, validate_replicated
from tests.support.executed_instructions import executed_instructions
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import (
    BIG,
    EVERYTHING,
    NOW_MS,
    WITH_FILES,
    MakeLog,
    ProducerInfo,
    append,
    append_as_follower,
    append_records,
    bytes_of,
    fill,
    marker,
    produced,
    refused,
    snapshots,
    values_of,
)

# ---- append ----------------------------------------------------------------------------------------------


def test_prepare_writes_offsets_and_epoch_into_the_callers_buffer(log: Log) -> None:
    append(log, "a", "b")
    frame = memoryview(bytearray(b"head") + produced("c", "d", "e"))[4:]
    info = append_records(log, frame, leader_epoch=7)
    assert (info.base_offset, info.last_offset, info.leader_epoch, info.duplicate) == (2, 4, 7, False)
    assert (info.log_append_time_ms, info.log_start_offset) == (-1, 0)
    (_, header), *_ = headers(frame)
    assert (header.base_offset, header.leader_epoch) == (2, 7)
    assert values_of(log) == [(0, "a"), (1, "b"), (2, "c"), (3, "d"), (4, "e")]
    assert bytes_of(log, 2) == bytes(frame)


def test_a_rejected_append_changes_nothing(log: Log) -> None:
    broken = produced("a")
    broken[-1] ^= 1
    refused(ErrorCode.CORRUPT_MESSAGE, lambda: append_records(log, broken))
    with pytest.raises(RejectedRecords):
        append_records(log, produced("a", timestamp_ms=NOW_MS * 2))
    error = refused(ErrorCode.RECORD_LIST_TOO_LARGE, lambda: append_records(log, produced("x" * 1000)))
    assert error.message is None
    assert log.log_end_offset == 0
    assert append(log, "a") == 0


def test_commits_out_of_order_are_an_assertion_error(log: Log) -> None:
    wait_for_disk(log.open().appends.prepare, produced("a"), leader_epoch=0, wall_ms=NOW_MS)
    later = wait_for_disk(log.open().appends.prepare, produced("b"), leader_epoch=0, wall_ms=NOW_MS)
    with pytest.raises(AssertionError):
        later.commit(NOW_MS)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failed_append_is_not_in_the_log_after_a_restart(make: MakeLog, code: int) -> None:
    disk = FaultyDisk()
    fill(make(disk=disk), 2, "kept")
    for room in (0, 10, 60):
        log = make(disk=disk, is_clean=False)
        disk.space_left, disk.fail_writes = room, code
        with pytest.raises(StorageError):
            append(log, "lost", producer=ProducerInfo(9, 0, 0))
        disk.space_left, disk.fail_writes = None, 0
        assert values_of(log) == [(0, "kept"), (1, "kept")]
        log.go_offline()
    again = make(is_clean=False)
    assert append(again, "next", producer=ProducerInfo(9, 0, 0)) == 2
    assert values_of(again) == [(0, "kept"), (1, "kept"), (2, "next")]


# ---- producers -------------------------------------------------------------------------------------------


def test_a_duplicate_batch_returns_its_old_offsets(log: Log) -> None:
    append(log, "before")
    append(log, "a", "b", producer=ProducerInfo(5, 0, 0))
    size = log.open().engine.size_bytes
    prepared = wait_for_disk(
        log.open().appends.prepare, produced("a", "b", producer=ProducerInfo(5, 0, 0)), leader_epoch=3, wall_ms=NOW_MS
    )
    assert prepared.size == 0
    prepared.write()
    info = prepared.commit(NOW_MS)
    assert info == prepared.duplicate
    assert (info.base_offset, info.last_offset, info.duplicate) == (1, 2, True)
    assert (log.open().engine.size_bytes, log.log_end_offset, log.open().epochs.latest) == (size, 3, 0)


@WITH_FILES
def test_each_new_segment_has_a_producer_snapshot(make: MakeLog, tmp_path: Path) -> None:
    log = make()
    fill(log, 5, producer_id=5)
    assert snapshots(tmp_path) == [2, 4]
    append(log, BIG, producer=ProducerInfo(5, 0, 5))
    log.close()
    assert snapshots(tmp_path) == [2, 4, 6]
    again = make()
    again.open()
    assert snapshots(tmp_path) == [2, 4, 6]


# ---- transactions ----------------------------------------------------------------------------------------


def transaction(log: Log, producer_id: int, kind: ControlType, *values: str) -> None:
    append(log, *values, producer=ProducerInfo(producer_id, 0, 0, transactional=True))
    end(log, producer_id, kind)


def end(log: Log, producer_id: int, kind: ControlType) -> None:
    append_records(log, marker(kind, producer_id, 0), origin=AppendOrigin.COORDINATOR)


def test_an_open_transaction_holds_the_last_stable_offset(log: Log) -> None:
    append(log, "plain")
    append(log, "a", "b", producer=ProducerInfo(5, 0, 0, transactional=True))
    append(log, "behind")
    log.high_watermark = 4
    assert log.open().reader.last_stable_offset == 1
    assert values_of(log, 0, Isolation.LAST_STABLE) == [(0, "plain")]
    assert len(values_of(log, 0, Isolation.HIGH_WATERMARK)) == 4
    end(log, 5, ControlType.COMMIT)
    assert log.open().reader.last_stable_offset == 1
    log.high_watermark = 5
    assert log.open().reader.last_stable_offset == 5
    assert len(values_of(log, 0, Isolation.LAST_STABLE)) == 4


@pytest.mark.parametrize("restart", ["none", "clean", "unclean"])
def test_reads_return_the_aborted_transactions_of_their_range(make: MakeLog, restart: str) -> None:
    log = make()
    transaction(log, 5, ControlType.ABORT, BIG)  # 0, marker 1
    transaction(log, 6, ControlType.COMMIT, BIG)  # 2, marker 3
    transaction(log, 7, ControlType.ABORT, BIG, "x")  # 4, 5, marker 6
    if restart == "clean":
        log.close()
    if restart != "none":
        log = make(is_clean=restart == "clean")
    log.high_watermark = log.log_end_offset
    first = wait_for_disk(log.open().reader.read, 0, EVERYTHING, Isolation.LAST_STABLE).aborted
    assert first is not None
    assert (first[0].producer_id, first[0].first_offset, first[0].last_offset) == (5, 0, 1)
    last = wait_for_disk(log.open().reader.read, 4, EVERYTHING, Isolation.LAST_STABLE).aborted
    assert last is not None
    assert [(found.producer_id, found.first_offset) for found in last] == [(7, 4)]
    assert wait_for_disk(log.open().reader.read, 0, EVERYTHING, Isolation.HIGH_WATERMARK).aborted is None
    assert wait_for_disk(log.open().reader.read, 7, EVERYTHING, Isolation.LAST_STABLE).aborted == []


def test_a_marker_of_an_old_coordinator_epoch_is_rejected(log: Log) -> None:
    append(log, "a", producer=ProducerInfo(5, 0, 0, transactional=True))
    append_records(log, marker(ControlType.COMMIT, 5, 0, coordinator_epoch=4), origin=AppendOrigin.COORDINATOR)
    refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED, lambda: end(log, 5, ControlType.ABORT))
    assert log.log_end_offset == 2


# ---- follower --------------------------------------------------------------------------------------------


def test_a_follower_log_equals_its_leaders_bytes(make: MakeLog, tmp_path: Path) -> None:
    leader = make()
    append(leader, "a", "b", producer=ProducerInfo(5, 0, 0))
    append(leader, "c", epoch=2)
    transaction(leader, 6, ControlType.ABORT, "d")
    follower = make(topic="u")
    everything = bytes_of(leader)
    info = append_as_follower(follower, everything + b"cut off")
    assert info is not None
    assert (info.base_offset, info.last_offset) == (0, leader.log_end_offset - 1)
    assert bytes_of(follower) == everything
    assert follower.open().epochs.latest == 2
    assert [follower.open().epochs.epoch_at(offset) for offset in range(4)] == [0, 0, 2, 2]
    follower.high_watermark = info.last_offset + 1
    assert wait_for_disk(follower.open().reader.read, 0, EVERYTHING, Isolation.LAST_STABLE).aborted == wait_for_disk(
        leader.open().engine.aborted, 0, 100
    )
    assert append(follower, "x", producer=ProducerInfo(5, 0, 2), epoch=3) == 5


def test_a_follower_accepts_gaps_but_no_lower_offsets(make: MakeLog) -> None:
    leader = make()
    fill(leader, 4, "x")
    parts = [bytes_of(leader, offset)[: len(bytes_of(leader, 3))] for offset in range(4)]
    follower = make(topic="u")
    append_as_follower(follower, parts[0])
    append_as_follower(follower, parts[2])
    assert [offset for offset, _ in values_of(follower)] == [0, 2]
    error = refused(ErrorCode.UNKNOWN_SERVER_ERROR, lambda: append_as_follower(follower, parts[1]))
    assert "less than the next offset 3" in str(error.message)
    assert follower.log_end_offset == 3


def test_an_empty_follower_starts_at_the_leaders_batch(make: MakeLog) -> None:
    """After DeleteRecords the leader's log start may be inside a batch."""
    leader = make()
    append(leader, "a", "b", "c")
    follower = make(topic="u")
    follower.open().truncate_fully(1)
    records = bytes_of(leader)
    assert follower.open().restart_offset(validate_replicated(records, leader_epoch=0)) == 0
    truncation = follower.open().begin_full_truncation(0, 1)
    truncation.run()
    truncation.finish()
    append_as_follower(follower, records)
    assert (follower.log_start_offset, follower.log_end_offset) == (1, 3)
    refused(ErrorCode.OFFSET_OUT_OF_RANGE, lambda: wait_for_disk(follower.open().reader.read, 0, 1, Isolation.LOG_END))
    assert [offset for offset, _ in values_of(follower, 1)] == [0, 1, 2], "whole batches are sent"


def test_a_follower_ignores_batches_of_a_later_epoch(make: MakeLog) -> None:
    leader = make()
    append(leader, "a", epoch=1)
    append(leader, "b", epoch=2)
    follower = make(topic="u")
    append_as_follower(follower, bytes_of(leader), leader_epoch=1)
    assert values_of(follower) == [(0, "a")]
    assert append_as_follower(follower, bytes_of(leader, 1), leader_epoch=1) is None


@pytest.mark.pure_python("compiled modules execute no instructions of Python")
def test_aborted_transactions_of_a_follower_take_work_for_each_of_them_once(make: MakeLog) -> None:
    """Four times as many in an append take about four times the work, not sixteen times."""
    follower = make(config=LogConfig())

    def work_of(count: int) -> int:
        records = bytearray()
        for offset in range(follower.log_end_offset, follower.log_end_offset + 2 * count, 2):
            data = produced("a", producer=ProducerInfo(5, 0, 0, transactional=True))
            for position, batch in enumerate((data, marker(ControlType.ABORT, 5, 0))):
                patch(batch, 0, offset + position, 0)
                records += batch
        opened = follower.open()
        appended = []
        work = executed_instructions(lambda: appended.append(opened.prepare_as_follower(records, wall_ms=NOW_MS)))
        (prepared,) = appended
        assert prepared is not None
        prepared.write()
        prepared.commit(NOW_MS)
        return work

    few, many = work_of(100), work_of(400)
    assert many < 6 * few
