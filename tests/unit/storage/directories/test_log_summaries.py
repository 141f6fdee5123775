"""The summaries of closed logs (log_summary.py, summary_file.py)."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protocol.control_records import ControlType
from protocol.primitives import Buffer
from storage.directories.log_directory import CLEAN_SHUTDOWN
from storage.directories.log_manager import LogManager
from storage.directories.summary_file import LOG_SUMMARIES
from storage.io.disk import Disk, StorageError
from storage.io.disk_lookup import wait_for_disk
from storage.log.log import Log
from storage.log.log_validator import AppendOrigin
from tests.support.logs import (
    BIG,
    NOW_MS,
    SMALL,
    ProducerInfo,
    append,
    append_records,
    fill,
    marker,
    produced,
    snapshots,
    values_of,
)
from tests.unit.storage.directories.test_log_manager import created, started

EPOCH = 7


class CountingDisk(Disk):
    """Counts the calls that open a log from its files."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: list[str] = []
        self.calls: list[str] = []

    def listdir(self, path: str) -> list[str]:
        self.listed.append(os.path.basename(path))
        return super().listdir(path)

    def read(self, path: str) -> bytes:
        self.calls.append("read")
        return super().read(path)


def restarted(root: Path, disk: Disk | None = None) -> tuple[LogManager, Log]:
    """A new process, and its log of t-0, which is not open."""
    manager = started(root, disk=disk)
    return manager, manager.logs["t", 0]


def is_opened_from_files(log: Log, disk: CountingDisk) -> bool:
    disk.listed.clear()
    log.open()
    return log.name in disk.listed


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A directory that was shut down cleanly, with records of t-0 in several segments."""
    manager = started(tmp_path)
    log = created(manager)
    fill(log, 20, step_ms=10, producer_id=5)
    assert len(log.open().engine.segments()) > 3
    manager.shutdown(EPOCH)
    return tmp_path


def test_a_log_is_opened_without_reading(closed: Path) -> None:
    disk = CountingDisk()
    manager, log = restarted(closed, disk)
    disk.calls.clear()
    assert not is_opened_from_files(log, disk)
    assert disk.calls == []
    assert disk.open_files == 1, "the file for appends"
    assert not (closed / LOG_SUMMARIES).exists()
    manager.shutdown(EPOCH)
    assert (closed / LOG_SUMMARIES).exists()


def test_the_state_is_that_of_the_closed_log(closed: Path) -> None:
    def state(log: Log) -> object:
        opened = log.open()
        producer = opened.producers.producers[5]
        reader = opened.reader
        return (
            values_of(log), log.log_start_offset, log.log_end_offset, log.recovery_point, log.flushed_end_offset,
            opened.engine.segments(), opened.epochs.entries(), opened.snapshots.offsets, opened.flush.decided_end_offset,
            producer, producer.batches, opened.engine.view().max_timestamp(),
            [wait_for_disk(reader.offset_for_timestamp, NOW_MS + 10 * number) for number in range(20)],
        )  # fmt: skip

    manager, log = restarted(closed)
    from_summary = state(log)
    manager.shutdown(EPOCH)
    (closed / LOG_SUMMARIES).unlink()
    _, log = restarted(closed)
    from_files = state(log)
    assert str(from_summary) == str(from_files)


def test_appends_continue(closed: Path) -> None:
    """Also the index, the sequence numbers and the next close."""
    for turn in range(3):
        manager, log = restarted(closed)
        log.assign_epoch(turn + 1)
        sequence = 20 + turn
        retry = wait_for_disk(
            log.open().appends.prepare, produced(BIG, producer=ProducerInfo(5, 0, sequence - 3)), 0, NOW_MS
        )
        assert retry.duplicate is not None
        assert retry.duplicate.base_offset == sequence - 3
        append(log, BIG, epoch=turn + 1, producer=ProducerInfo(5, 0, sequence))
        assert log.open().epochs.epoch_at(sequence) == turn + 1
        manager.shutdown(EPOCH)
    _, log = restarted(closed)
    assert [offset for offset, _ in values_of(log)] == list(range(23))


def test_look_ups_before_the_last_index_entries(tmp_path: Path) -> None:
    config = replace(SMALL, segment_bytes=1 << 20)
    manager = started(tmp_path)
    fill(manager.get_or_create("t", 0, bytes(16), config), 60, step_ms=10)
    manager.shutdown(EPOCH)
    log = started(tmp_path, config=config).logs["t", 0]
    assert len(log.open().engine.segments()) == 1
    for offset in range(60):
        assert values_of(log, offset)[0] == (offset, BIG)
        found = wait_for_disk(log.open().reader.offset_for_timestamp, NOW_MS + 10 * offset)
        assert isinstance(found, tuple)
        assert found[1] == offset


def test_a_summary_stays_valid_until_the_log_is_used(closed: Path) -> None:
    for _ in range(2):
        manager, _ = restarted(closed)
        manager.shutdown(EPOCH)
    disk = CountingDisk()
    _, log = restarted(closed, disk)
    assert not is_opened_from_files(log, disk)


def _active(root: Path) -> str:
    return max(path.name for path in (root / "t-0").glob("*.log"))


def _append_garbage(root: Path) -> None:
    with (root / "t-0" / _active(root)).open("ab") as log:
        log.write(b"garbage")


def _rewrite(root: Path) -> None:
    path = root / "t-0" / _active(root)
    data, times = path.read_bytes(), path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _shorten_the_index(root: Path) -> None:
    path = root / "t-0" / _active(root).replace(".log", ".index")
    path.write_bytes(path.read_bytes()[:-8])


def _copy_the_directory(root: Path) -> None:
    shutil.copytree(root / "t-0", root / "copy", copy_function=shutil.copy2)
    shutil.rmtree(root / "t-0")
    (root / "copy").rename(root / "t-0")


def _delete_a_segment(root: Path) -> None:
    for path in (root / "t-0").glob("00000000000000000000.*"):
        path.unlink()


def _write_another_marker(root: Path) -> None:
    (root / CLEAN_SHUTDOWN).write_text('{"version":0,"brokerEpoch":8}')


def _write_an_old_marker(root: Path) -> None:
    (root / CLEAN_SHUTDOWN).write_text("")


def _damage_the_summaries(root: Path) -> None:
    path = root / LOG_SUMMARIES
    path.write_text(path.read_text().replace(",20,", ",21,"))


@pytest.mark.parametrize(
    "change",
    [
        _append_garbage, _rewrite, _shorten_the_index, _copy_the_directory, _delete_a_segment, _write_another_marker,
        _write_an_old_marker, _damage_the_summaries,
    ],
)  # fmt: skip
def test_after_a_change_a_log_is_opened_from_its_files(closed: Path, change: Callable[[Path], None]) -> None:
    change(closed)
    disk = CountingDisk()
    _, log = restarted(closed, disk)
    assert is_opened_from_files(log, disk)
    assert log.log_end_offset == 20


def test_a_repair_opens_a_log_from_its_files(closed: Path) -> None:
    """Damage inside a producer snapshot does not change the stamp."""
    newest = max((closed / "t-0").glob("*.snapshot"))
    damaged = bytearray(newest.read_bytes())
    damaged[-1] ^= 1
    with newest.open("r+b") as snapshot:
        snapshot.write(damaged)
    disk = CountingDisk()
    _, log = restarted(closed, disk)
    log.discard_summary()
    assert is_opened_from_files(log, disk)
    assert not newest.exists()
    assert log.open().producers.producers[5].last_sequence == 19


def test_damaged_summaries_are_reported(closed: Path, caplog: pytest.LogCaptureFixture) -> None:
    _damage_the_summaries(closed)
    with caplog.at_level(logging.WARNING):
        restarted(closed)
    assert f"{LOG_SUMMARIES} is damaged" in caplog.text


def test_there_are_no_summaries_without_the_marker(closed: Path) -> None:
    (closed / CLEAN_SHUTDOWN).unlink()
    disk = CountingDisk()
    manager, log = restarted(closed, disk)
    assert not (closed / LOG_SUMMARIES).exists()
    assert is_opened_from_files(log, disk)
    manager.shutdown()  # of a process that was never registered
    assert not (closed / LOG_SUMMARIES).exists()


def test_a_log_with_aborted_transactions_has_no_summary(tmp_path: Path) -> None:
    manager = started(tmp_path)
    log = created(manager)
    append(log, "a", producer=ProducerInfo(5, 0, 0, transactional=True))
    append_records(log, marker(ControlType.ABORT, 5, 0), origin=AppendOrigin.COORDINATOR)
    manager.shutdown(EPOCH)
    disk = CountingDisk()
    _, log = restarted(tmp_path, disk)
    assert is_opened_from_files(log, disk)
    assert wait_for_disk(log.open().engine.aborted, 0, 9)


def test_a_log_with_files_to_delete_has_no_summary(closed: Path) -> None:
    manager, log = restarted(closed)
    log.high_watermark = log.log_end_offset
    log.open().trim(15, NOW_MS)
    assert log.files.deleted_files
    manager.shutdown(EPOCH)
    disk = CountingDisk()
    _, log = restarted(closed, disk)
    assert is_opened_from_files(log, disk)
    assert not list((closed / "t-0").glob("*.deleted"))


def test_snapshots_of_earlier_closes_are_deleted_at_times(closed: Path) -> None:
    counts = []
    for turn in range(20):
        manager, log = restarted(closed)
        append(log, "small", producer=ProducerInfo(5, 0, 20 + turn))
        manager.shutdown(EPOCH)
        counts.append(len(snapshots(closed)) - len(log.open().engine.segments()))
        log.close()
    assert max(counts) <= 8
    assert counts[-1] < max(counts)


class FullDisk(Disk):
    """A disk without space for summaries."""

    def replace_atomically(self, path: str, data: Buffer, **options: Any) -> None:
        if path.endswith(LOG_SUMMARIES):
            raise StorageError("write", path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        super().replace_atomically(path, data, **options)


def test_a_shutdown_is_clean_without_space_for_summaries(closed: Path) -> None:
    manager, log = restarted(closed, FullDisk())
    log.open()
    manager.shutdown(EPOCH)
    assert (closed / CLEAN_SHUTDOWN).exists()
    manager, log = restarted(closed)
    assert manager.directories[str(closed)].was_clean
    assert log.log_end_offset == 20
