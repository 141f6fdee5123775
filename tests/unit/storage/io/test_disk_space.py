"""File operations that fail on a full disk are retried with the same result (deferred_file_ops.py, rule 3)."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from storage.directories.future_replica import COMPLETE, swap_in_future_log
from storage.io.deferred_file_ops import FileOp, no_op
from storage.io.disk import DELETED, Disk, StorageError
from storage.segments.directory_recovery import CLEANED, INDEXES, LOG
from storage.segments.indexes import WARM_BYTES, OffsetIndex
from storage.segments.sealed_segment import SealedSegment
from storage.segments.segment_swap import swap_segments
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import NOW_MS, ProducerInfo, append, flush, retained, values_of
from tests.support.segments import write_out
from tests.unit.storage.directories.test_log_manager import created, started


class NoNames(Disk):
    """Fails the rename number `left` with ENOSPC."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def rename(self, source: str, target: str) -> None:
        self.left -= 1
        if not self.left:
            raise StorageError("rename", target, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        super().rename(source, target)


def make(change: FileOp) -> None:
    try:
        change()
    except StorageError as error:
        if not error.is_full:
            raise
        change()


def test_an_index_write_is_retried_from_the_end_of_its_file(tmp_path: Path) -> None:
    disk = FaultyDisk()
    index = OffsetIndex(disk, str(tmp_path / "0.index"), 0)
    entries = 0

    def extend(count: int) -> None:
        nonlocal entries
        for _ in range(count):
            entries += 1
            index.append(entries, 10 * entries)

    extend(WARM_BYTES // 8 + 300)
    change = index.take_write()
    assert change is not None
    disk.space_left = 0
    with pytest.raises(StorageError) as full:
        change()
    assert full.value.is_full
    disk.space_left = None
    change()
    extend(400)
    write_out(index)
    expected = b"".join(OffsetIndex.ENTRY.pack(number, 10 * number) for number in range(1, entries + 1))
    assert (tmp_path / "0.index").read_bytes() == expected


@pytest.mark.parametrize("left", range(1, 14))
def test_a_segment_swap_is_retried_on_a_full_disk(tmp_path: Path, left: int) -> None:
    stems = [f"{base:020d}" for base in (0, 5)]
    for stem in stems:
        for suffix in (LOG, *INDEXES):
            (tmp_path / f"{stem}{suffix}").write_text(f"old {stem}")
    for suffix in (LOG, *INDEXES):
        (tmp_path / f"{stems[0]}{suffix}{CLEANED}").write_text("new")
    disk, deleted_files = NoNames(left), list[str]()
    old = [SealedSegment(disk, str(tmp_path), base, 10, 1) for base in (0, 5)]
    _, change = swap_segments(disk, old, 3, 1, deleted_files)
    make(change)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        **{f"{stems[0]}{suffix}": "new" for suffix in (LOG, *INDEXES)},
        **{f"{stem}{suffix}{DELETED}": f"old {stem}" for stem in stems for suffix in (LOG, *INDEXES)},
    }
    assert sorted(deleted_files) == sorted(str(path) for path in tmp_path.glob(f"*{DELETED}"))


@pytest.mark.parametrize("left", range(1, 5))
def test_a_log_move_is_retried_on_a_full_disk(tmp_path: Path, left: int) -> None:
    log, copy = tmp_path / "a" / "t-0", tmp_path / "b" / "t-0.future"
    for path in (log, copy):
        path.mkdir(parents=True)
    disk, deleted_files, name = NoNames(left), tmp_path / "a" / "doomed", tmp_path / "b" / "t-0"
    make(lambda: swap_in_future_log(disk, str(log), str(deleted_files), str(copy), str(name)))
    assert (deleted_files.is_dir(), name.is_dir(), log.exists(), copy.exists()) == (True, True, False, False)
    assert not (name / COMPLETE).exists()


def test_a_log_stays_open_while_its_snapshot_cannot_be_written(tmp_path: Path) -> None:
    disk = FaultyDisk()
    manager = started(tmp_path, disk=disk)
    log = created(manager)
    append(log, "a", producer=ProducerInfo(1, 0, 0))
    flush(log)
    disk.space_left = 0
    waiting: list[FileOp] = []
    manager.submit = lambda _, op: waiting.append(op)
    assert not log.release()
    assert (log.is_open, log.is_closed_unsynced) == (True, False)
    with pytest.raises(StorageError):
        waiting[0]()
    assert not log.release()
    disk.space_left = None
    waiting.pop()()
    assert not waiting, "the snapshot is written once"
    assert append(log, "b", producer=ProducerInfo(1, 0, 1)) == 1
    flush(log)
    assert not log.release()
    waiting.pop()()
    assert log.release()
    manager.submit = lambda _, op: op()
    assert values_of(log) == [(0, "a"), (1, "b")]


def test_retention_waits_for_disk_space(tmp_path: Path) -> None:
    disk = FaultyDisk()
    manager = started(tmp_path, disk=disk)
    log = created(manager)
    append(log, "a", producer=ProducerInfo(1, 0, 0))
    flush(log)
    (tmp_path / "t-0" / f"{1:020d}.snapshot").unlink(missing_ok=True)
    manager = started(tmp_path, disk=disk)
    disk.space_left = 0
    assert list(retained(manager, NOW_MS)) == []
    assert not manager.offline
    disk.space_left = None
    assert values_of(manager.logs["t", 0]) == [(0, "a")]


def test_retention_skips_a_closed_log_with_pending_file_operations(tmp_path: Path) -> None:
    manager = started(tmp_path)
    append(created(manager), "a")
    manager.shutdown()
    manager = started(tmp_path)
    log, held = created(manager), list[FileOp]()
    log.files.submit_op(no_op, held.append)
    assert list(retained(manager, NOW_MS)) == []
    held.pop()()
    assert list(retained(manager, NOW_MS)) == [log]
