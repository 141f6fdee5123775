"""Reads and appends that must not wait for the disk (storage/io/would_block.py; seeds.md I5), on a disk that is cold."""

from __future__ import annotations

import gc

import pytest

from protocol.errors import ErrorCode
from protocol.records import ControlType
from storage.config.log_config import LogConfig
from storage.io.disk import StorageError
from storage.io.would_block import WouldBlock
from storage.log.log import AppendOrigin, Isolation
from tests.support.cold_disk import ColdDisk
from tests.support.logs import (
    EVERYTHING,
    NOW_MS,
    Idempotent,
    append,
    append_records,
    fill,
    log_at,
    marker,
    produced,
    refused,
)
from tests.support.segments import let_go

CONFIG = LogConfig(segment_bytes=60_000, index_interval_bytes=100)
"""Segments of some 160 batches, with an entry for each."""


def blocked_by(look) -> WouldBlock:
    with pytest.raises(WouldBlock) as caught:
        look()
    return caught.value


def filled(path, disk, count=500, config=CONFIG):
    """A log of three segments, closed."""
    log = log_at(path, disk=disk, config=config)
    fill(log, count, step_ms=1)
    log.high_watermark = count
    log.close()
    return log


def regions(log, offset, max_bytes=1000, isolation=Isolation.LOG_END):
    return log.read(offset, max_bytes, isolation, may_block=False)


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("offset", [0, 1, 150, 200, 350, 499, 500])
def test_a_read_anywhere_is_answered_without_waiting_whatever_the_disk_keeps(tmp_path, offset, keeps):
    """I5: opening, finding and reading headers are work for a thread; what it found is known to who asks again."""
    disk = ColdDisk(keeps=keeps)
    log = filled(tmp_path, disk)
    expected = log_at(tmp_path, config=CONFIG).read(offset, 1000, Isolation.LOG_END)
    disk.chill()
    found, asked = disk.ask(lambda: regions(log, offset))
    assert [(r.position, r.length) for r in found.regions] == [(r.position, r.length) for r in expected.regions]
    assert 1 <= asked <= 3
    disk.chill()
    again, asked = disk.ask(lambda: regions(log, offset))
    assert (again.size, asked) == (found.size, 0)


@pytest.mark.parametrize("keeps", [True, False])
def test_all_batches_are_found_though_the_disk_is_cold_again_and_again(tmp_path, keeps):
    """Every step of a scan makes progress."""
    disk = ColdDisk(keeps=keeps)
    log = filled(tmp_path, disk)
    expected = log_at(tmp_path, config=CONFIG)
    for offset in range(0, 500, 7):
        disk.chill()
        found, _ = disk.ask(lambda offset=offset: regions(log, offset))
        position = expected.read(offset, 1000, Isolation.LOG_END).regions[0].position
        assert found.regions[0].position == position


def test_an_index_longer_than_its_warm_section_is_read_by_a_thread(tmp_path):
    """I2: beyond the last 8 KiB of an index, its pages are asked for before they are touched."""
    disk = ColdDisk()
    log = filled(tmp_path, disk, count=3000, config=LogConfig(segment_bytes=1 << 30, index_interval_bytes=1))
    disk.ask(lambda: regions(log, 2999))
    disk.chill()
    found, asked = disk.ask(lambda: regions(log, 5))
    assert (found.size > 0, asked) == (True, 1)
    assert disk.ask(lambda: regions(log, 6))[1] == 0, "its pages, and those of the log, are warm now"
    disk.chill()
    assert disk.ask(lambda: regions(log, 7))[1] == 1


def test_all_who_ask_while_a_log_is_opened_are_handed_the_same_work(tmp_path):
    """Rule 4."""
    disk = ColdDisk()
    log = filled(tmp_path, disk)
    first = blocked_by(lambda: regions(log, 0))
    records = produced("a")
    assert blocked_by(lambda: log.prepare(records, leader_epoch=0, wall_ms=NOW_MS, may_block=False)) is first
    assert not log.is_open
    first.run()
    assert not log.is_open, "a thread changes nothing"
    first.finish()
    assert log.is_open
    one = blocked_by(lambda: regions(log, 0))
    assert blocked_by(lambda: regions(log, 0)) is one
    assert blocked_by(lambda: regions(log, 1)) is not one


def test_an_append_waits_for_files_that_were_let_go_of(tmp_path):
    """And for nothing else: what it has to know was learnt when the log was opened."""
    disk = ColdDisk()
    log = filled(tmp_path, disk)
    prepared, asked = disk.ask(lambda: log.prepare(produced("a"), leader_epoch=0, wall_ms=NOW_MS, may_block=False))
    assert asked == 1
    log.commit(prepared, NOW_MS) if log.write(prepared) is None else None
    let_go(log.open())
    disk.chill()
    _, asked = disk.ask(lambda: log.prepare(produced("b"), leader_epoch=0, wall_ms=NOW_MS, may_block=False))
    assert asked == 1


@pytest.mark.parametrize("keeps", [True, False])
def test_times_are_looked_up_by_a_thread(tmp_path, keeps):
    """The answer holds until all who asked have been told, and is then forgotten."""
    disk = ColdDisk(keeps=keeps)
    log = filled(tmp_path, disk)
    for target in (NOW_MS, NOW_MS + 250, NOW_MS + 10_000):
        expected = log_at(tmp_path, config=CONFIG).offset_for_timestamp(target)
        assert disk.ask(lambda target=target: log.offset_for_timestamp(target, may_block=False))[0] == expected
    latest, _ = disk.ask(lambda: log.offset_of_max_timestamp(may_block=False))
    assert latest == (NOW_MS + 499, 499, 0)


def test_an_answer_is_forgotten_when_those_who_waited_have_been_told(tmp_path):
    """Rule 4 of blocking.py: later records count for who asks later."""
    disk = ColdDisk()
    log = filled(tmp_path, disk)
    log.open()
    blocked = blocked_by(lambda: log.offset_for_timestamp(NOW_MS + 10_000, may_block=False))
    blocked.run()
    blocked.finish()
    assert log.offset_for_timestamp(NOW_MS + 10_000, may_block=False) is None
    blocked.done()
    append(log, "late", timestamp_ms=NOW_MS + 10_000)
    found, _ = disk.ask(lambda: log.offset_for_timestamp(NOW_MS + 10_000, may_block=False))
    assert found == (NOW_MS + 10_000, 500, 0)


def test_records_are_read_back_by_a_thread(tmp_path):
    """For coordinators, which look into records."""
    disk = ColdDisk()
    log = filled(tmp_path, disk)
    expected = bytes(log_at(tmp_path, config=CONFIG).read_records(100, 2000))
    assert bytes(disk.ask(lambda: log.read_records(100, 2000, may_block=False))[0]) == expected


def test_aborted_transactions_are_read_by_a_thread(tmp_path):
    """F10 on a cold disk."""
    disk = ColdDisk()
    log = log_at(tmp_path, disk=disk, config=CONFIG)
    append(log, "a", producer=Idempotent(7, 0, 0, transactional=True))
    append_records(log, marker(ControlType.ABORT, 7, 0), origin=AppendOrigin.COORDINATOR)
    fill(log, 10)
    log.high_watermark = log.log_end_offset
    log.close()
    disk.chill()
    found, _ = disk.ask(lambda: regions(log, 0, EVERYTHING, Isolation.LAST_STABLE))
    assert [(a.producer_id, a.first_offset) for a in found.aborted] == [(7, 0)]


# ---------------------------------------------------------------- the world changes meanwhile


def test_what_was_cut_off_meanwhile_is_not_told(tmp_path):
    """Rule 3 of blocking.py."""
    disk = ColdDisk()
    log = filled(tmp_path, disk)
    log.open()
    log.read(450, 1000, Isolation.LOG_END)
    let_go(log.open())
    blocked = blocked_by(lambda: regions(log, 420))
    time = blocked_by(lambda: log.offset_for_timestamp(NOW_MS + 420, may_block=False))
    for work in (blocked, time):
        work.run()
    log.truncate(420)
    for work in (blocked, time):
        work.finish()
    append(log, "new" * 500, timestamp_ms=NOW_MS + 1000)
    found, _ = disk.ask(lambda: regions(log, 420, EVERYTHING))
    assert found.size > 1500
    assert disk.ask(lambda: log.offset_for_timestamp(NOW_MS + 420, may_block=False))[0] == (NOW_MS + 1000, 420, 0)


def test_a_segment_that_is_deleted_meanwhile_is_no_fault_of_the_disk(tmp_path):
    """It was renamed before the thread could open it."""
    disk = ColdDisk()
    log = filled(tmp_path, disk)
    log.open()
    works = [
        blocked_by(lambda: regions(log, 0)),
        blocked_by(lambda: log.offset_for_timestamp(NOW_MS, may_block=False)),
        blocked_by(lambda: log.read_records(0, 100, may_block=False)),
    ]
    log.trim(400, NOW_MS)
    for work in works:
        work.run()
        work.finish()
    refused(ErrorCode.OFFSET_OUT_OF_RANGE, lambda: regions(log, 0))
    assert disk.ask(lambda: regions(log, 400))[0].size


def test_a_log_that_goes_offline_meanwhile_stays_closed(tmp_path):
    """Whoever asks again is told so."""
    disk = ColdDisk()
    log = filled(tmp_path, disk)
    opening = blocked_by(lambda: regions(log, 0))
    opening.run()
    log.go_offline()
    opening.finish()
    refused(ErrorCode.KAFKA_STORAGE_ERROR, lambda: regions(log, 0))


def test_settings_that_change_while_a_log_is_opened_count(tmp_path):
    """The thread began with the old ones."""
    disk = ColdDisk()
    log = filled(tmp_path, disk, count=1)
    opening = blocked_by(lambda: regions(log, 0))
    log.update_config(LogConfig(segment_bytes=1000, index_interval_bytes=100))
    opening.run()
    opening.finish()
    fill(log, 3)
    assert len(log.open().segments()) > 1


def test_damage_is_told_to_who_asked_and_looked_at_again_by_the_next(tmp_path):
    """A KafkaError is what the thread found; the disk is not to blame."""
    disk = ColdDisk()
    log = filled(tmp_path, disk)
    log.open()
    segment = min(tmp_path.glob("t-0/*.log"))
    with segment.open("r+b") as file:
        file.seek(8)
        file.write(b"\0\0\0\1")
    for _ in range(2):
        disk.chill()
        blocked = blocked_by(lambda: regions(log, 0))
        blocked.run()
        blocked.finish()
        refused(ErrorCode.CORRUPT_MESSAGE, lambda: regions(log, 0))


def test_a_failing_disk_is_told_by_the_thread(tmp_path):
    """StorageError comes out of `run`, for who takes the directory offline."""
    disk = ColdDisk()
    log = filled(tmp_path, disk)
    log.open()
    blocked = blocked_by(lambda: regions(log, 0))
    min(tmp_path.glob("t-0/*.log")).unlink()
    (tmp_path / "t-0").rename(tmp_path / "elsewhere")
    with pytest.raises(StorageError):
        blocked.run()


def test_a_log_deleted_while_a_thread_opens_it_keeps_no_file_open(tmp_path):
    """Nobody is told of what the thread has opened; it goes at once, not with the next collection of garbage."""
    disk = ColdDisk()
    log = filled(tmp_path, disk)
    before = disk.open_files
    gc.disable()
    try:
        try:
            regions(log, 0)
        except WouldBlock as blocked:
            blocked.run()
            log.delete()
        assert disk.open_files == before
    finally:
        gc.enable()


QUESTIONS = {
    "a batch": lambda log: regions(log, 0),
    "a time": lambda log: log.offset_for_timestamp(NOW_MS, may_block=False),
    "records": lambda log: log.read_records(0, 100, may_block=False),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_log_deleted_while_a_thread_looks_in_it_keeps_no_file_open(tmp_path, question):
    """The thread's answer is for nobody: whoever asked has let go of it, and no circle keeps what it has opened."""
    disk = ColdDisk()
    before = disk.open_files
    log = filled(tmp_path, disk)
    gc.disable()
    try:
        log.open()
        try:
            QUESTIONS[question](log)
        except WouldBlock as blocked:
            blocked.run()
            log.delete()
        assert disk.open_files == before
    finally:
        gc.enable()
