"""Reads and appends that must not wait for a cold disk (storage/io/disk_lookup.py)."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from protocol.control_records import ControlType
from protocol.errors import ErrorCode, KafkaError
from protocol.file_region import file_regions
from storage.config.log_config import LogConfig
from storage.io.disk import Disk, File, StorageError
from storage.io.disk_lookup import DiskLookup, wait_for_disk
from storage.log.log import Log
from storage.log.log_reader import Isolation, ReadInfo
from storage.log.log_validator import AppendOrigin
from tests.support.cold_disk import ColdDisk
from tests.support.logs import (
    EVERYTHING,
    NOW_MS,
    ProducerInfo,
    append,
    append_records,
    fill,
    log_at,
    marker,
    produced,
    refused,
)
from tests.support.segments import close_idle_files

Cold = tuple[ColdDisk, Log]
CONFIG = LogConfig(segment_bytes=60_000, index_interval_bytes=100)
"""Segments of some 160 batches, with an entry for each."""


def lookup_of(look: Callable[[], object]) -> DiskLookup:
    found = look()
    assert isinstance(found, DiskLookup)
    return found


def answer(lookup: DiskLookup) -> None:
    lookup.run()
    lookup.finish()


def filled(path: Path, disk: ColdDisk, count: int = 500, config: LogConfig = CONFIG) -> Log:
    """A closed log of three segments."""
    log = log_at(path, disk=disk, config=config)
    fill(log, count, step_ms=1)
    log.high_watermark = count
    log.close()
    return log


@pytest.fixture
def cold(tmp_path: Path) -> Cold:
    """A cold disk with a closed log of three segments."""
    disk = ColdDisk()
    return disk, filled(tmp_path, disk)


def regions(
    log: Log, offset: int, max_bytes: int = 1000, isolation: Isolation = Isolation.LOG_END
) -> ReadInfo | DiskLookup:
    opened = log.opened or log.open_lookup()
    return opened if isinstance(opened, DiskLookup) else opened.reader.read(offset, max_bytes, isolation)


def offset_for(log: Log, timestamp: int) -> tuple[int, int, int] | DiskLookup | None:
    opened = log.opened or log.open_lookup()
    return opened if isinstance(opened, DiskLookup) else opened.reader.offset_for_timestamp(timestamp)


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("offset", [0, 1, 150, 200, 350, 499, 500])
def test_reads_do_not_block_on_a_cold_disk(tmp_path: Path, offset: int, *, keeps: bool) -> None:
    disk = ColdDisk(keeps=keeps)
    log = filled(tmp_path, disk)
    expected = wait_for_disk(log_at(tmp_path, config=CONFIG).open().reader.read, offset, 1000, Isolation.LOG_END)
    disk.evict_all()
    found, rounds = disk.ask(lambda: regions(log, offset))
    assert [(r.position, r.length) for r in file_regions(found.regions)] == [
        (r.position, r.length) for r in file_regions(expected.regions)
    ]
    assert 1 <= rounds <= 3
    disk.evict_all()
    again, rounds = disk.ask(lambda: regions(log, offset))
    assert (again.size, rounds) == (found.size, 0)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_scan_progresses_when_the_page_cache_is_lost_repeatedly(tmp_path: Path, *, keeps: bool) -> None:
    disk = ColdDisk(keeps=keeps)
    log = filled(tmp_path, disk)
    expected = log_at(tmp_path, config=CONFIG)
    for offset in range(0, 500, 7):
        disk.evict_all()
        found, _ = disk.ask(partial(regions, log, offset))
        wanted = wait_for_disk(expected.open().reader.read, offset, 1000, Isolation.LOG_END)
        positions = [region.position for region in file_regions(found.regions)]
        assert positions == [region.position for region in file_regions(wanted.regions)]


def test_an_index_longer_than_its_warm_section_is_read_by_a_thread(tmp_path: Path) -> None:
    disk = ColdDisk()
    log = filled(tmp_path, disk, count=3000, config=LogConfig(segment_bytes=1 << 30, index_interval_bytes=1))
    disk.ask(lambda: regions(log, 2999))
    disk.evict_all()
    found, rounds = disk.ask(lambda: regions(log, 5))
    assert (found.size > 0, rounds) == (True, 1)
    assert disk.ask(lambda: regions(log, 6))[1] == 0, "its pages, and those of the log, are warm now"
    disk.evict_all()
    assert disk.ask(lambda: regions(log, 7))[1] == 1


def test_callers_share_the_work_that_opens_a_log(cold: Cold) -> None:
    _, log = cold
    first = lookup_of(lambda: regions(log, 0))
    assert lookup_of(lambda: offset_for(log, NOW_MS)) is first
    assert not log.is_open
    first.run()
    assert not log.is_open, "a thread changes nothing"
    first.finish()
    assert log.is_open
    one = lookup_of(lambda: regions(log, 0))
    assert lookup_of(lambda: regions(log, 0)) is one
    assert lookup_of(lambda: regions(log, 1)) is not one


def test_a_dropped_lookup_is_forgotten(cold: Cold) -> None:
    _, log = cold
    log.open()
    dropped = lookup_of(lambda: regions(log, 0))
    dropped.drop()
    following = lookup_of(lambda: regions(log, 0))
    assert following is not dropped
    assert lookup_of(lambda: regions(log, 0)) is following


def test_an_append_waits_only_for_closed_files(cold: Cold) -> None:
    disk, log = cold
    assert disk.ask(lambda: regions(log, 500))[1] == 1, "the log is opened"
    append(log, "a")
    close_idle_files(log.open().engine)
    disk.evict_all()
    _, rounds = disk.ask(lambda: log.open().appends.prepare(produced("b"), leader_epoch=0, wall_ms=NOW_MS))
    assert rounds == 1


@pytest.mark.parametrize("keeps", [True, False])
def test_timestamp_lookups_run_in_a_thread(tmp_path: Path, *, keeps: bool) -> None:
    disk = ColdDisk(keeps=keeps)
    log = filled(tmp_path, disk)
    for target in (NOW_MS, NOW_MS + 250, NOW_MS + 10_000):
        expected = wait_for_disk(log_at(tmp_path, config=CONFIG).open().reader.offset_for_timestamp, target)
        assert disk.ask(partial(offset_for, log, target))[0] == expected
    latest, _ = disk.ask(log.open().reader.offset_of_max_timestamp)
    assert latest == (NOW_MS + 499, 499, 0)


def test_a_result_is_discarded_after_the_waiting_callers(cold: Cold) -> None:
    disk, log = cold
    log.open()
    lookup = lookup_of(lambda: offset_for(log, NOW_MS + 10_000))
    answer(lookup)
    assert offset_for(log, NOW_MS + 10_000) is None
    lookup.done()
    append(log, "late", timestamp_ms=NOW_MS + 10_000)
    found, _ = disk.ask(lambda: offset_for(log, NOW_MS + 10_000))
    assert found == (NOW_MS + 10_000, 500, 0)


def test_records_are_read_by_a_thread(cold: Cold, tmp_path: Path) -> None:
    disk, log = cold
    log.open()
    expected = bytes(wait_for_disk(log_at(tmp_path, config=CONFIG).open().reader.read_records, 100, 2000))
    assert bytes(disk.ask(lambda: log.open().reader.read_records(100, 2000))[0]) == expected


def test_aborted_transactions_are_read_by_a_thread(tmp_path: Path) -> None:
    disk = ColdDisk()
    log = log_at(tmp_path, disk=disk, config=CONFIG)
    append(log, "a", producer=ProducerInfo(7, 0, 0, transactional=True))
    append_records(log, marker(ControlType.ABORT, 7, 0), origin=AppendOrigin.COORDINATOR)
    fill(log, 10)
    log.high_watermark = log.log_end_offset
    log.close()
    disk.evict_all()
    found, _ = disk.ask(lambda: regions(log, 0, EVERYTHING, Isolation.LAST_STABLE))
    assert [(a.producer_id, a.first_offset) for a in found.aborted or ()] == [(7, 0)]


# ---------------------------------------------------------------- changes during a lookup


def test_results_from_before_a_truncation_are_discarded(cold: Cold) -> None:
    disk, log = cold
    log.open()
    wait_for_disk(log.open().reader.read, 450, 1000, Isolation.LOG_END)
    close_idle_files(log.open().engine)
    lookup = lookup_of(lambda: regions(log, 420))
    time = lookup_of(lambda: offset_for(log, NOW_MS + 420))
    for work in (lookup, time):
        work.run()
    log.open().truncate(420)
    for work in (lookup, time):
        work.finish()
    append(log, "new" * 500, timestamp_ms=NOW_MS + 1000)
    found, _ = disk.ask(lambda: regions(log, 420, EVERYTHING))
    assert found.size > 1500
    assert disk.ask(lambda: offset_for(log, NOW_MS + 420))[0] == (NOW_MS + 1000, 420, 0)


def test_a_segment_deleted_during_a_lookup_is_no_disk_error(cold: Cold) -> None:
    disk, log = cold
    log.open()
    works = [
        lookup_of(lambda: regions(log, 0)),
        lookup_of(lambda: offset_for(log, NOW_MS)),
        lookup_of(lambda: log.open().reader.read_records(0, 100)),
    ]
    log.open().trim(400, NOW_MS)
    for work in works:
        answer(work)
    refused(ErrorCode.OFFSET_OUT_OF_RANGE, lambda: regions(log, 0))
    assert disk.ask(lambda: regions(log, 400))[0].size


def test_a_log_that_goes_offline_during_an_open_stays_closed(cold: Cold) -> None:
    _, log = cold
    opening = lookup_of(lambda: regions(log, 0))
    opening.run()
    log.go_offline()
    opening.finish()
    refused(ErrorCode.KAFKA_STORAGE_ERROR, lambda: regions(log, 0))


def test_settings_changed_during_an_open_apply(tmp_path: Path) -> None:
    disk = ColdDisk()
    log = filled(tmp_path, disk, count=1)
    opening = lookup_of(lambda: regions(log, 0))
    log.update_config(LogConfig(segment_bytes=1000, index_interval_bytes=100))
    answer(opening)
    fill(log, 3)
    assert len(log.open().engine.segments()) > 1


def test_a_corrupt_batch_is_reported_to_the_callers_and_read_again_by_the_next(cold: Cold, tmp_path: Path) -> None:
    disk, log = cold
    log.open()
    segment = min(tmp_path.glob("t-0/*.log"))
    with segment.open("r+b") as file:
        file.seek(8)
        file.write(b"\0\0\0\1")
    for _ in range(2):
        disk.evict_all()
        lookup = lookup_of(lambda: regions(log, 0))
        answer(lookup)
        refused(ErrorCode.CORRUPT_MESSAGE, lambda: regions(log, 0))
        lookup.done()


def test_a_disk_error_is_raised_by_the_thread(cold: Cold, tmp_path: Path) -> None:
    _, log = cold
    log.open()
    lookup = lookup_of(lambda: regions(log, 0))
    min(tmp_path.glob("t-0/*.log")).unlink()
    (tmp_path / "t-0").rename(tmp_path / "elsewhere")
    with pytest.raises(StorageError):
        lookup.run()


LOOKUPS: dict[str, Callable[[Log], object]] = {
    "opening": lambda log: log.open_lookup(),
    "a batch": lambda log: log.open().reader.read(0, 1000, Isolation.LOG_END),
    "a time": lambda log: log.open().reader.offset_for_timestamp(NOW_MS),
    "records": lambda log: log.open().reader.read_records(0, 100),
}


@pytest.mark.parametrize("find", LOOKUPS.values(), ids=LOOKUPS)
def test_a_log_deleted_during_a_lookup_keeps_no_file_open(cold: Cold, find: Callable[[Log], object]) -> None:
    disk, log = cold
    before = disk.open_files
    gc.disable()
    try:
        lookup_of(partial(find, log)).run()
        log.delete()
        assert log.is_offline
        assert disk.open_files == before
    finally:
        gc.enable()


def test_a_log_that_is_deleted_while_it_is_being_opened_is_closed(tmp_path: Path) -> None:
    disk = Disk()
    lookup = DiskLookup(lambda: disk.open(str(tmp_path / "0.log"), write=True, create=True), lambda _: None)
    lookup.run()
    lookup.done()
    assert disk.open_files == 0


def test_a_failed_lookup_of_a_log_that_is_deleted_keeps_no_file_open(tmp_path: Path) -> None:
    disk = Disk()

    def fail(file: File) -> None:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, file.path)

    lookup = DiskLookup(partial(fail, disk.open(str(tmp_path / "0.log"), write=True, create=True)), lambda _: None)
    gc.disable()
    try:
        lookup.run()
        del lookup
        assert disk.open_files == 0
    finally:
        gc.enable()
