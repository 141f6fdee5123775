"""Closing files at the limit and when idle (storage/io/file_handle_cache.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.config.log_config import LogConfig
from storage.io.disk import Disk, File
from storage.io.file_handle_cache import IDLE, NEW, USED, FileHandleCache
from storage.segments.segment_engine import SegmentEngine
from tests.support.segments import batch, filled, infos, opened, read

SMALL = LogConfig(segment_bytes=10_000, index_interval_bytes=1)


class Reader:
    """Keeps one file open."""

    def __init__(self, files: FileHandleCache, disk: Disk, path: Path) -> None:
        self.usage = IDLE
        self.is_busy = False
        self._files, self._disk, self._path = files, disk, path
        self.file: File | None = None

    def use(self) -> None:
        if self.file is None:
            self.file = self._disk.open(str(self._path), write=False)
            self._files.register(self, Reader.close)
        self.usage = USED

    def close(self) -> bool:
        if not self.is_busy:
            self.file = None
        return not self.is_busy


class Room:
    """A limit of 39 files, 32 of them reserved, and ten readers."""

    def __init__(self, directory: Path, limit: int = 39) -> None:
        self.disk = Disk()
        self.files = FileHandleCache(self.disk, limit)
        self.evictions = 0
        self.files.on_eviction_needed = self.tell
        path = directory / "file"
        path.write_bytes(b"x")
        self.readers = [Reader(self.files, self.disk, path) for _ in range(10)]

    def tell(self) -> None:
        self.evictions += 1

    def use_all(self) -> None:
        for reader in self.readers:
            reader.use()

    @property
    def open(self) -> list[int]:
        return [number for number, reader in enumerate(self.readers) if reader.file is not None]


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def test_the_least_recently_used_owner_is_closed_first(room: Room) -> None:
    for reader in room.readers[:7]:
        reader.use()
    list(room.files.close_idle())
    for number in (0, 1, 3):
        room.readers[number].use()
    for number in (7, 8):
        room.readers[number].use()
        room.files.close_surplus()
    assert room.open == [0, 1, 3, 5, 6, 7, 8]


def test_an_eviction_is_requested_once(room: Room) -> None:
    room.use_all()
    assert (room.evictions, len(room.open)) == (1, 10)
    room.files.close_surplus()
    assert len(room.open) == 7
    room.readers[0].use()
    assert room.evictions == 2


def test_files_opened_since_the_last_check_are_kept(room: Room) -> None:
    room.use_all()
    for reader in room.readers:
        reader.usage = NEW  # opened by a thread for a caller that has not used it yet
    room.files.close_surplus()
    assert len(room.open) == 10
    room.files.close_surplus()
    assert room.open == [3, 4, 5, 6, 7, 8, 9]


def test_an_owner_that_cannot_close_is_checked_again(room: Room) -> None:
    room.use_all()
    room.readers[0].is_busy = True
    room.files.close_surplus()
    room.files.close_surplus()
    assert room.open[0] == 0
    room.readers[0].is_busy = False
    for _ in range(2):
        list(room.files.close_idle())
    assert room.open == []


def test_files_without_an_owner_count(room: Room) -> None:
    room.use_all()
    sending = [reader.file for reader in room.readers]
    for _ in range(3):
        room.files.close_surplus()
    assert (room.open, room.disk.open_files, len(room.files)) == ([], 10, 0)
    assert (room.files.at_file_limit(28), room.files.at_file_limit(29)) == (False, True)
    del sending[:3]
    assert (room.files.at_file_limit(31), room.files.at_file_limit(32)) == (False, True)


def test_idle_files_are_closed_in_steps(tmp_path: Path) -> None:
    room = Room(tmp_path, 10**6)
    room.readers = [Reader(room.files, room.disk, tmp_path / "file") for _ in range(300)]
    room.use_all()
    list(room.files.close_idle())
    left = [len(room.open) for _ in room.files.close_idle()]
    assert left == [172, 44, 0]


def test_a_closed_segment_unmaps_its_index(tmp_path: Path) -> None:
    disk = Disk()
    files = FileHandleCache(disk, 0)
    files.on_eviction_needed = lambda: None
    filled(tmp_path, 4000, size=100, config=LogConfig(index_interval_bytes=1)).close()
    engine = SegmentEngine(disk, str(tmp_path), LogConfig(), open_files=files)
    engine.open(None)
    engine.register_files()
    assert read(engine, 3)
    assert read(engine, 5)
    assert disk.open_files == 3
    data = batch(4000)
    reservation = engine.reserve(len(data), infos(data), 0)
    for _ in range(3):
        files.close_surplus()
    assert (disk.open_files, len(files)) == (0, 0)
    engine.write(reservation, data)
    engine.publish(reservation)
    assert read(engine, 4000) == data
    assert disk.open_files == len(files) == 1


def test_unregistered_owners_are_dropped(tmp_path: Path) -> None:
    disk = Disk()
    files = FileHandleCache(disk)
    filled(tmp_path, 25, config=SMALL).close()
    engine = opened(tmp_path, SMALL, disk=disk)
    engine._segments._handles._cache = files
    for offset in range(25):
        read(engine, offset)
    engine.register_files()
    assert len(files) == 3
    engine.trim(10)
    assert len(files) == 2
    engine.unregister_files()
    assert len(files) == 0
    read(engine, 12)
    assert len(files) == 0
