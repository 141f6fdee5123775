"""The faulty file system of the tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.faulty_directory import FaultyDirectory, why_fuse_is_unavailable

pytestmark = pytest.mark.skipif(
    why_fuse_is_unavailable() is not None, reason=why_fuse_is_unavailable() or "it can be made"
)


def test_files_of_the_mount_are_in_the_backing_directory(tmp_path: Path) -> None:
    with FaultyDirectory(tmp_path / "backing", tmp_path / "mount") as directory:
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


def test_named_operations_fail_until_they_are_unnamed(tmp_path: Path) -> None:
    with FaultyDirectory(tmp_path / "backing", tmp_path / "mount") as directory:
        path = directory.path / "file"
        path.write_bytes(b"whole")
        descriptor = os.open(path, os.O_RDWR)
        acts: dict[str, Callable[[], object]] = {
            "write": lambda: os.pwrite(descriptor, b"W", 0),
            "sync": lambda: os.fdatasync(descriptor),
            "rename": lambda: path.rename(directory.path / "other"),
            "make": (directory.path / "new").mkdir,
            "list": lambda: os.listdir(directory.path),
        }
        for kind, act in acts.items():
            directory.fail(kind)
            with pytest.raises(OSError, match="Input/output error"):
                act()
        assert os.pread(descriptor, 9, 0) == b"whole"
        directory.fail("read")
        assert os.pread(descriptor, 9, 0) == b"whole"
        directory.forget_cache()
        with pytest.raises(OSError, match="Input/output error"):
            os.pread(descriptor, 9, 0)
        directory.fail("everything")
        with pytest.raises(OSError, match="Input/output error"):
            os.listdir(directory.path)
        directory.fail()
        assert os.pread(descriptor, 9, 0) == b"whole"
        assert os.listdir(directory.path) == ["file"]
        os.close(descriptor)
