"""A directory in which a compaction was putting a segment in place when the power failed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from protocol.records import BatchBuilder
from storage.io.disk import Disk
from storage.segments.directory_recovery import recover_directory


def batch(offset: int) -> bytes:
    """One record."""
    builder = BatchBuilder(offset)
    builder.append(0, b"k", b"v")
    return bytes(builder.build())


def directory(path: Path, **files: bytes) -> Path:
    """Files by name: a letter, the base offset, and the suffixes with _ for the dot."""
    for name, data in files.items():
        base, *suffixes = name[1:].split("_")
        (path / ".".join([f"{int(base):020d}", *suffixes])).write_bytes(data)
    return path


def left(path: Path) -> dict[str, bytes]:
    """What is there when it is in order, zeros left out."""
    recover_directory(Disk(), str(path))
    return {name.lstrip("0") or name: (path / name).read_bytes() for name in os.listdir(path)}


def test_a_complete_set_takes_the_place_of_what_it_covers(tmp_path: Path) -> None:
    """Rule 1: all segments that begin before its end go, with their indexes."""
    new = batch(0) + batch(7)
    path = directory(
        tmp_path, f0_log=b"old", f0_txnindex=b"old", f5_log=b"old", f5_index=b"old", f8_log=batch(8),
        f0_log_swap=new, f0_index_swap=b"", f0_timeindex_swap=b"",
    )  # fmt: skip
    assert left(path) == {".log": new, ".index": b"", ".timeindex": b"", "8.log": batch(8)}


def test_an_empty_segment_takes_the_place_of_its_namesake_with_all_its_indexes(tmp_path: Path) -> None:
    """Rule 1: else the old index of transactions would tell of what is not there."""
    path = directory(tmp_path, f0_txnindex=b"old", f5_log=batch(5), f0_log_swap=b"", f0_index_swap=b"")
    assert left(path) == {".log": b"", ".index": b"", "5.log": batch(5)}


def test_an_incomplete_set_counts_for_nothing(tmp_path: Path) -> None:
    """Rule 1: its last file was still to be renamed."""
    path = directory(tmp_path, f0_log=batch(0), f0_log_swap=b"new", f0_index_cleaned=b"", f3_log=batch(3))
    assert left(path) == {".log": batch(0), "3.log": batch(3)}


def test_a_set_that_is_no_log_counts_for_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Rule 1: whoever has put it there, the segments are not given up for it."""
    path = directory(tmp_path, f0_log=batch(0), f0_log_swap=batch(0) + b"?", f0_index_swap=b"", f3_log=batch(3))
    assert left(path) == {".log": batch(0), "3.log": batch(3)}
    assert f"{0:020d}.log.swap" in caplog.text


def test_what_a_later_group_was_writing_does_no_harm(tmp_path: Path) -> None:
    """Rule 1: groups come in the order of their offsets, so a `.cleaned` file behind a set is no part of it."""
    path = directory(tmp_path, f0_log=b"old", f0_log_swap=batch(0), f9_log_cleaned=b"half", f9_log=batch(9))
    assert left(path) == {".log": batch(0), "9.log": batch(9)}
