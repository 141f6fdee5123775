"""The open files of a commit log: of many files, and after a cleaning."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from storage.directories.log_manager import LogManager
from storage.io.disk import Disk, File
from storage.io.disk_lookup import wait_for_disk
from storage.log.log import Log
from storage.log.log_reader import Isolation
from tests.support.logs import TOPIC_ID, append
from tests.support.segments import NOW_MS
from tests.unit.storage.commitlog.test_cleaning import clean
from tests.unit.storage.commitlog.test_commit_log import Process, append_to, bytes_of
from tests.unit.storage.directories.test_engines import COMMIT_LOG
from tests.unit.storage.directories.test_log_manager import started

FILES = 120


def logs_of(manager: LogManager) -> list[Log]:
    return [manager.get_or_create("t", number, TOPIC_ID, COMMIT_LOG) for number in range(3)]


def fill(manager: LogManager, directory: Path) -> None:
    """Batches of three partitions in each of many files."""
    manager.commit_logs.file_bytes = 4096
    logs = logs_of(manager)
    while len(list((directory / "commitlog").glob("*.clog"))) < FILES:
        for log in logs:
            append(log, b"x" * 400)


@pytest.mark.parametrize("read_bytes", [1, 1 << 20])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_fewer_than_100_files_stay_open_while_everything_is_read(
    tmp_path: Path, *, is_restarted: bool, read_bytes: int
) -> None:
    disk = Disk()
    manager = started(tmp_path, disk=disk)
    fill(manager, tmp_path)
    if is_restarted:
        manager.shutdown()
        manager = started(tmp_path, disk=disk)
    most = disk.open_files
    for log in logs_of(manager):
        for offset in range(0, log.log_end_offset, 8):
            wait_for_disk(log.open().reader.read, offset, read_bytes, Isolation.LOG_END)
            most = max(most, disk.open_files)
    assert most < 100


def test_the_file_that_is_written_does_not_keep_the_one_before_open(tmp_path: Path) -> None:
    process = Process(tmp_path)
    append_to(process[0])
    process[0].roll(NOW_MS)
    process[0].trim(1)
    process.log.finish_active()
    replaced = process.log.files[0].path
    expected = append_to(process[0])
    clean(process)
    process.log.release_replaced()
    gc.collect()
    opened = [file.path for file in gc.get_objects() if type(file) is File and file.fileno() >= 0]
    assert not Path(replaced).exists()
    assert replaced not in opened
    assert bytes_of(process[0]) == expected
