"""Guards storage/io/flush_task.py rule 4: a sync that finds no room keeps no file open."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from storage.io.disk import StorageError
from storage.io.flush_task import FlushTask
from tests.support.faulty_disk import FaultyDisk


def test_a_sync_without_room_syncs_its_files_and_lets_go_of_them(tmp_path: Path) -> None:
    """They may be deleted meanwhile, and give their room back only when nobody has them open."""
    disk = FaultyDisk()
    path, small = f"{tmp_path}/0.log", f"{tmp_path}/small"
    file = disk.open(path, write=True, create=True)
    file.pwrite(b"x", 0)
    sync = FlushTask(disk, [file], lambda: True, replacements=[(small, b"small")], directories=[str(tmp_path)])
    del file
    disk.room = 0
    with pytest.raises(StorageError, match="No space left"):
        sync()
    gc.collect()
    assert disk.syncs == [path]
    assert disk.open_files == 0
    disk.room = None
    sync()
    assert Path(small).read_bytes() == b"small"
    assert disk.syncs.count(path) == 1
