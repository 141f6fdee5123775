"""A partition directory after a loss of power during a segment swap."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from protocol.batch_builder import BatchBuilder
from storage.io.disk import Disk
from storage.segments.directory_recovery import recover_directory


def batch(offset: int) -> bytes:
    builder = BatchBuilder(offset)
    builder.append(0, b"k", b"v")
    return bytes(builder.build())


def directory(path: Path, **files: bytes) -> Path:
    """Create files by name: a letter, the base offset, and the suffixes with _ for the dot."""
    for name, data in files.items():
        base, *suffixes = name[1:].split("_")
        (path / ".".join([f"{int(base):020d}", *suffixes])).write_bytes(data)
    return path


def left(path: Path) -> dict[str, bytes]:
    """The recovered directory's files, zeros left out."""
    recover_directory(Disk(), str(path))
    return {name.lstrip("0") or name: (path / name).read_bytes() for name in os.listdir(path)}


def test_a_complete_swap_set_replaces_the_segments_it_covers(tmp_path: Path) -> None:
    new = batch(0) + batch(7)
    path = directory(
        tmp_path, f0_log=b"old", f0_txnindex=b"old", f5_log=b"old", f5_index=b"old", f8_log=batch(8),
        f0_log_swap=new, f0_index_swap=b"", f0_timeindex_swap=b"",
    )  # fmt: skip
    assert left(path) == {".log": new, ".index": b"", ".timeindex": b"", "8.log": batch(8)}


def test_an_empty_swap_segment_replaces_all_files_of_its_namesake(tmp_path: Path) -> None:
    path = directory(tmp_path, f0_txnindex=b"old", f5_log=batch(5), f0_log_swap=b"", f0_index_swap=b"")
    assert left(path) == {".log": b"", ".index": b"", "5.log": batch(5)}


def test_an_incomplete_swap_set_is_deleted(tmp_path: Path) -> None:
    path = directory(tmp_path, f0_log=batch(0), f0_log_swap=b"new", f0_index_cleaned=b"", f3_log=batch(3))
    assert left(path) == {".log": batch(0), "3.log": batch(3)}


def test_a_cleaned_file_invalidates_later_swap_files(tmp_path: Path) -> None:
    path = directory(tmp_path, f0_log=batch(0), f0_log_cleaned=batch(5), f5_log_swap=batch(5), f5_index_swap=b"")
    assert left(path) == {".log": batch(0)}


def test_an_invalid_swap_log_is_deleted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = directory(tmp_path, f0_log=batch(0), f0_log_swap=batch(0) + b"?", f0_index_swap=b"", f3_log=batch(3))
    assert left(path) == {".log": batch(0), "3.log": batch(3)}
    assert f"{0:020d}.log.swap" in caplog.text


def test_cleaned_files_of_a_later_group_do_not_invalidate_a_swap_set(tmp_path: Path) -> None:
    path = directory(tmp_path, f0_log=b"old", f0_log_swap=batch(0), f9_log_cleaned=b"half", f9_log=batch(9))
    assert left(path) == {".log": batch(0), "9.log": batch(9)}
