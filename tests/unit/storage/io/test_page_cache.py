"""Page cache queries on the real kernel (storage/io/page_cache.py)."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from protocol.primitives import Buffer
from storage.io.disk import Disk, File

SIZE = 8_000_000
HALF = 4 * 1024 * 1024  # no large folio lies on both sides of it


@pytest.fixture
def file(tmp_path: Path) -> File:
    opened = Disk().open(str(tmp_path / "f"), write=True, create=True)
    opened.pwrite(bytes(range(250)) * (SIZE // 250), 0)
    opened.sync()
    return opened


def test_resident_bytes_are_read_in_one_call(file: File) -> None:
    for position, length in ((0, 1), (0, SIZE), (100, 4096), (SIZE - 7, 7)):
        assert file.pread_if_resident(length, position) == file.pread(length, position)


@pytest.mark.parametrize(("length", "position"), [(100, HALF), (SIZE, 0)])
def test_evicted_bytes_are_not_read(file: File, length: int, position: int) -> None:
    file.drop_cache(HALF, SIZE - HALF)
    if file.cached_bytes(HALF, SIZE - HALF):  # `is_resident` would begin to read them
        pytest.skip("this file system keeps its pages")

    def read_evicted() -> Buffer | None:
        file.drop_cache(HALF, SIZE - HALF)
        return file.pread_if_resident(length, position)

    # The call begins a read, and finds the bytes if the device is done before it looks for them again.
    assert any(read_evicted() is None for _ in range(20))


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL])
def test_without_nowait_reads_the_pages_are_counted(file: File, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, "no")

    expected = file.pread(4096, 0)
    monkeypatch.setattr("storage.io.page_cache.os.preadv", refuse)
    assert file.pread_if_resident(4096, 0) == expected


def test_later_queries_of_any_thread_load_no_library(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = file.cached_bytes(0, SIZE)

    def refuse(*_: object) -> None:
        raise AssertionError("loading takes 0.1 ms, and a thread queries for each piece that it reads from the disk")

    monkeypatch.setattr("ctypes.PyDLL", refuse)
    assert file.cached_bytes(0, SIZE) == cached
