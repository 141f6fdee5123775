"""Retention of all logs reads only in its lookups (storage/directories/log_retention.py)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from storage.directories.log_maintenance import retain
from storage.directories.log_manager import LogManager
from storage.io.deferred_file_ops import FileOp, no_op, run_now
from storage.io.disk_lookup import DiskLookup, wait_for_disk
from storage.log.log import Log
from storage.log.retention import retain as retain_log
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import BIG, NOW_MS, SMALL, TOPIC_ID, append, retained
from tests.unit.storage.directories.test_log_manager import started

SECOND_MS = 1000
CONFIG = replace(SMALL, retention_ms=SECOND_MS)


@pytest.fixture(params=["segments", "commitlog"])
def restarted(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[LogManager, FaultyDisk]:
    """Closed logs of several segments, whose timestamps are not in memory: each has a second, the first two begin at NOW_MS."""
    config = replace(CONFIG, barnabas_storage_engine=request.param)
    manager = started(tmp_path, config=config)
    manager.commit_logs.file_bytes = 4096
    for partition in range(3):
        log = manager.get_or_create("t", partition, TOPIC_ID, config)
        for number in range(8):
            append(log, BIG, timestamp_ms=NOW_MS + max(partition - 1, 0) * SECOND_MS + number * SECOND_MS // 8)
        log.high_watermark = 8
    manager.shutdown()
    disk = FaultyDisk()
    return started(tmp_path, disk=disk, config=config), disk


def retain_step_by_step(manager: LogManager, disk: FaultyDisk, wall_ms: int, after: Callable[[Log], None]) -> int:
    """Apply retention; returns the number of lookups. `after` is called after each one has run."""
    steps, lookups = retain(manager, wall_ms), 0
    before: list[object] = []
    with suppress(StopIteration):
        while True:
            disk.reset_counters()
            log, lookup = next(steps)
            assert disk.reads == []
            for earlier in before:
                earlier.done()  # type: ignore[attr-defined]
            before = [lookup] if lookup is not None else []
            if lookup is not None:
                lookup.run()
                lookup.finish()
                lookups += 1
                after(log)
    return lookups


def test_a_step_of_retention_reads_nothing(restarted: tuple[LogManager, FaultyDisk]) -> None:
    manager, disk = restarted
    assert retain_step_by_step(manager, disk, NOW_MS + SECOND_MS + SECOND_MS // 2, lambda _: None) > 3
    starts = {index: log.checkpoint.log_start_offset for (_, index), log in manager.logs.items()}
    assert starts == {0: 4, 1: 4, 2: 0}


def test_a_log_whose_oldest_batch_has_not_expired_is_not_read(restarted: tuple[LogManager, FaultyDisk]) -> None:
    manager, disk = restarted
    for log in manager.logs.values():
        append(log, BIG, timestamp_ms=NOW_MS + 2 * SECOND_MS)
    is_commit_log = bool(manager.commit_logs.by_directory)
    lookups = retain_step_by_step(manager, disk, NOW_MS + SECOND_MS // 2, lambda _: None)
    assert lookups == (0 if is_commit_log else len(manager.logs)), "segments: their time index"
    assert retain_step_by_step(manager, disk, NOW_MS + SECOND_MS // 2, lambda _: None) == 0


def test_a_log_that_was_never_used_is_not_opened(restarted: tuple[LogManager, FaultyDisk]) -> None:
    manager, _ = restarted
    (config,) = {log.config for log in manager.logs.values()}
    unused = manager.get_or_create("u", 0, TOPIC_ID, config)
    assert unused not in {log for log, _ in retain(manager, NOW_MS)}
    append(unused, BIG, timestamp_ms=NOW_MS)
    assert unused in {log for log, _ in retain(manager, NOW_MS)}


def test_a_segment_with_a_batch_that_is_appended_during_the_lookup_stays(
    restarted: tuple[LogManager, FaultyDisk],
) -> None:
    manager, disk = restarted
    written: list[Log] = []

    def write_once(log: Log) -> None:
        if log.is_open and log not in written:
            written.append(log)
            append(log, "new", timestamp_ms=NOW_MS + 100 * SECOND_MS)
            log.high_watermark = 9

    retain_step_by_step(manager, disk, NOW_MS + 50 * SECOND_MS, write_once)
    assert len(written) == 3
    for log in written:
        start = log.log_start_offset
        assert 0 < start < 9
        assert list(retained(manager, NOW_MS + 50 * SECOND_MS))
        assert log.log_start_offset == start


def test_a_log_whose_lookup_finds_no_space_is_skipped(restarted: tuple[LogManager, FaultyDisk]) -> None:
    manager, _ = restarted
    steps = retain(manager, NOW_MS + 50 * SECOND_MS)
    first, lookup = next(steps)
    assert lookup is not None
    first.cancel_opening(lookup)
    second, lookup = steps.send(False)
    assert second is not first
    assert lookup is not None
    second.cancel_opening(lookup)
    steps.close()
    assert [log.log_start_offset for log in retained(manager, NOW_MS + 50 * SECOND_MS)].count(8) >= 3


@pytest.mark.parametrize("is_read_first", [True, False])
def test_a_look_up_of_the_first_timestamp_of_a_segment_is_not_that_of_its_greatest_one(
    restarted: tuple[LogManager, FaultyDisk],
    is_read_first: bool,
) -> None:
    """The lag of a group in seconds needs the first one, retention the greatest; both may wait for the disk at a time."""
    manager, _ = restarted
    log = manager.logs["t", 0]
    reader, wall_ms = log.open().reader, NOW_MS + SECOND_MS + SECOND_MS // 16
    first = reader.timestamp_at(0) if is_read_first else retain_log(log, wall_ms)
    assert isinstance(first, DiskLookup)
    first.run()
    first.finish()
    assert wait_for_disk(reader.timestamp_at, 0) == NOW_MS
    assert not wait_for_disk(retain_log, log, wall_ms)
    assert log.log_start_offset == 0


def test_an_open_log_with_pending_file_operations_is_not_skipped(restarted: tuple[LogManager, FaultyDisk]) -> None:
    """On a slow disk a busy log nearly always has some, such as index entries; they are not run before the retention."""
    manager, _ = restarted
    log = manager.logs["t", 0]
    log.open()
    pending: list[FileOp] = []
    log.files.submit = pending.append
    log.files.submit_op(no_op)
    assert log in retained(manager, NOW_MS + 50 * SECOND_MS)
    start = log.log_start_offset
    assert 0 < start < 8, "no segment is rolled"
    for op in pending:
        op()
    log.files.submit = run_now
    assert log in retained(manager, NOW_MS + 50 * SECOND_MS)
    assert log.log_start_offset == 8
