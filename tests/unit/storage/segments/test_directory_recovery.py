"""A partition directory after a loss of power during a segment swap."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from protocol.batch_builder import BatchBuilder
from protocol.records import headers
from storage.io.disk import Disk
from storage.segments.directory_recovery import recover_directory


def batch(offset: int, leader_epoch: int = -1) -> bytes:
    builder = BatchBuilder(offset, leader_epoch=leader_epoch)
    builder.append(0, b"k", b"v")
    return bytes(builder.build())


def directory(path: Path, **files: bytes) -> Path:
    """Create files by name: a letter, the base offset, and the suffixes with _ for the dot."""
    for name, data in files.items():
        base, *suffixes = name[1:].split("_")
        (path / ".".join([f"{int(base):020d}", *suffixes])).write_bytes(data)
    return path


def left(path: Path, whole_end: int | None = None) -> dict[str, bytes]:
    """The recovered directory's files, zeros left out."""
    recover_directory(Disk(), str(path), whole_end=whole_end)
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


# ---- a cleaning of Apache Kafka that was killed --------------------------------------------------------------------


def batches(data: bytes) -> list[tuple[int, int, int]]:
    """First offset, number of records and leader epoch of each batch."""
    return [(header.base_offset, header.record_count, header.leader_epoch) for _, header in headers(data)]


def test_the_removed_end_of_a_replaced_segment_is_filled(tmp_path: Path) -> None:
    path = directory(tmp_path, f0_log=batch(0, 2), f0_log_deleted=batch(0, 2) + batch(4, 2), f5_log=batch(5, 3))
    found = left(path, 0)
    assert found.keys() == {".log", "5.log"}
    assert batches(found[".log"]) == [(0, 1, 2), (4, 0, 3)]
    assert left(path, 0) == found


def test_gaps_before_a_replaced_segment_are_filled_too(tmp_path: Path) -> None:
    """The first of the replaced segments was deleted before the kill."""
    path = directory(tmp_path, f0_log=batch(0), f5_log=batch(5), f5_log_deleted=batch(5) + batch(8), f9_log=batch(9))
    assert {name: len(batches(data)) for name, data in left(path, 0).items()} == {".log": 2, "5.log": 2, "9.log": 1}


def test_replaced_segments_without_batches_are_joined_to_the_previous_one(tmp_path: Path) -> None:
    path = directory(
        tmp_path, f0_log=b"", f5_log=b"", f5_index=b"", f7_log=b"", f7_log_deleted=batch(7) + batch(8), f9_log=b"",
    )  # fmt: skip
    found = left(path, 0)
    assert found.keys() == {".log", "9.log"}
    assert batches(found[".log"]) == [(8, 0, 0)]


def test_a_gap_after_a_swapped_segment_is_filled(tmp_path: Path) -> None:
    path = directory(tmp_path, f0_log=b"old", f5_log=batch(5), f0_log_swap=batch(0), f0_index_swap=b"")
    found = left(path, 0)
    assert found.keys() == {".log", ".index", "5.log"}
    assert [offset for offset, _, _ in batches(found[".log"])] == [0, 4]


@pytest.mark.parametrize("torn", [1, 30, 61])
def test_a_fill_that_a_loss_of_power_has_torn_is_repeated(tmp_path: Path, torn: int) -> None:
    path = directory(tmp_path, f0_log=batch(0) + bytes(torn), f0_log_deleted=batch(0) + batch(4), f5_log=batch(5))
    assert [offset for offset, _, _ in batches(left(path, 0)[".log"])] == [0, 4]


@pytest.mark.parametrize(
    ("deleted", "whole_end"),
    [
        (batch(0) + batch(3), 0),
        (b"", 0),
        (batch(0) + batch(4) + b"?", 0),
        (batch(0) + batch(4), None),
        (batch(0) + batch(4), 5),
    ],
    ids=["it ends elsewhere", "it was empty", "it is damaged", "after a clean close", "it was durable"],
)
def test_other_gaps_are_not_filled(tmp_path: Path, deleted: bytes, whole_end: int | None) -> None:
    path = directory(tmp_path, f0_log=batch(0), f0_log_deleted=deleted, f5_log=batch(5))
    assert left(path, whole_end) == {".log": batch(0), "5.log": batch(5)}


def test_the_gap_after_a_torn_segment_is_not_filled(tmp_path: Path) -> None:
    torn = batch(0)[:-1]
    path = directory(tmp_path, f0_log=torn, f0_log_deleted=batch(0) + batch(4), f5_log=batch(5))
    assert left(path, 0) == {".log": torn, "5.log": batch(5)}
