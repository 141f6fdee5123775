"""The file system that takes its time, itself: what the experiments with slow directories stand on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.slow_directory import SlowDirectory, why_no_slow_directory

pytestmark = pytest.mark.skipif(why_no_slow_directory() is not None, reason=why_no_slow_directory() or "it can be made")


def test_what_is_written_through_the_mount_lies_in_the_backing_directory(tmp_path: Path) -> None:
    """Rule 1: names, sizes and bytes are the same on both sides, also of files that are open while they are deleted."""
    with SlowDirectory(tmp_path / "backing", tmp_path / "mount") as directory:
        (directory.path / "a").mkdir()
        (directory.path / "a" / "file").write_bytes(b"x" * 3_000_000)
        (directory.path / "a" / "file").rename(directory.path / "a" / "other")
        (directory.path / "a").rename(directory.path / "b")
        assert os.listdir(directory.path / "b") == ["other"]
        descriptor = os.open(directory.path / "b" / "other", os.O_RDWR)
        os.ftruncate(descriptor, 10)
        os.fsync(descriptor)
        assert (tmp_path / "backing" / "b" / "other").read_bytes() == b"x" * 10
        os.unlink(directory.path / "b" / "other")
        assert os.fstat(descriptor).st_size == 10
        assert os.pread(descriptor, 20, 0) == b"x" * 10
        os.close(descriptor)
    assert not os.listdir(tmp_path / "backing" / "b")
    assert not os.listdir(tmp_path / "mount")
