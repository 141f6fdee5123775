"""Rules of storage/io/page_cache.py, on the real kernel."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from storage.io import page_cache
from storage.io.disk import Disk

SIZE = 8_000_000
HALF = 4 * 1024 * 1024  # no large folio lies on both sides of it


@pytest.fixture
def file(tmp_path: Path):
    opened = Disk().open(str(tmp_path / "f"), write=True, create=True)
    opened.pwrite(bytes(range(250)) * (SIZE // 250), 0)
    opened.sync()
    return opened


def test_what_lies_in_the_page_cache_is_read_in_one_call(file):
    """The same bytes as an ordinary read's."""
    for position, length in ((0, 1), (0, SIZE), (100, 4096), (SIZE - 7, 7)):
        assert file.pread_if_resident(length, position) == file.pread(length, position)


def test_what_has_left_the_page_cache_is_not_read(file):
    """Not even the part that is still there is given."""
    file.drop_cache(HALF, SIZE - HALF)
    if file.is_resident(HALF, 100):
        pytest.skip("this file system keeps its pages")
    assert file.pread_if_resident(100, HALF) is None
    assert file.pread_if_resident(SIZE, 0) is None


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL])
def test_where_reads_cannot_be_asked_not_to_wait_the_pages_are_counted(file, monkeypatch, code):
    """Rule 2: some file systems know no such read."""

    def refuse(*_: object) -> int:
        raise OSError(code, "no")

    expected = file.pread(4096, 0)
    monkeypatch.setattr(page_cache.os, "preadv", refuse)
    assert file.pread_if_resident(4096, 0) == expected
