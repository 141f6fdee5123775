"""Flushes of several logs together, and on a full disk (storage/io/flush_task.py, rules 1 and 4)."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from storage.io.disk import StorageError
from storage.io.flush_task import FlushTask, flush_together
from tests.support.faulty_disk import FaultyDisk


def test_a_flush_on_a_full_disk_syncs_and_closes_its_files(tmp_path: Path) -> None:
    """Deleted files release their space only when they are closed."""
    disk = FaultyDisk()
    path, small = f"{tmp_path}/0.log", f"{tmp_path}/small"
    file = disk.open(path, write=True, create=True)
    file.pwrite(b"x", 0)
    sync = FlushTask(disk, [file], lambda: True, replacements=[(small, b"small")], directories=[str(tmp_path)])
    del file
    disk.space_left = 0
    with pytest.raises(StorageError, match="No space left"):
        sync()
    gc.collect()
    assert disk.syncs == [path]
    assert disk.open_files == 0
    disk.space_left = None
    sync()
    assert Path(small).read_bytes() == b"small"
    assert disk.syncs.count(path) == 1


def test_logs_that_share_a_file_sync_it_once(tmp_path: Path) -> None:
    disk = FaultyDisk()
    file = disk.open(f"{tmp_path}/shared", write=True, create=True)
    assert flush_together([FlushTask(disk, [file], lambda: True) for _ in range(3)]) == [None, None, None]
    assert disk.syncs == [file.path]


def test_a_flush_of_a_log_that_is_deleted_meanwhile_keeps_no_file_open(tmp_path: Path) -> None:
    disk = FaultyDisk()
    states = iter([True, True, False])  # its directory is renamed after the files were synced
    log = disk.open(f"{tmp_path}/0.log", write=True, create=True)
    task = FlushTask(disk, [log], lambda: next(states), directories=[f"{tmp_path}/t-0"])
    gc.disable()
    try:
        assert flush_together([task]) == [None]
        del task, log
        assert disk.open_files == 0
    finally:
        gc.enable()
