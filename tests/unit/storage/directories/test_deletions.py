"""Deletion of files and directories (storage/directories/log_manager.py, rule 5)."""

from __future__ import annotations

from pathlib import Path

from storage.io.deferred_file_ops import FileOp
from tests.support.logs import NOW_MS, append
from tests.unit.storage.directories.test_log_manager import BIG, created, started


def test_files_of_trimmed_segments_are_deleted_after_the_delay(tmp_path: Path) -> None:
    manager = started(tmp_path)
    log = created(manager)
    for _ in range(6):
        append(log, BIG)
    log.high_watermark = 6
    log.trim(4, NOW_MS)
    deleted_files = list((tmp_path / "t-0").glob("*.deleted"))
    assert deleted_files
    assert not manager.deletions(NOW_MS + 999)
    ((_, work),) = manager.deletions(NOW_MS + 1000)
    work()
    assert not list((tmp_path / "t-0").glob("*.deleted"))
    assert not manager.deletions(NOW_MS * 2)


def test_files_are_deleted_as_soon_as_they_are_renamed(tmp_path: Path) -> None:
    """On a full disk, pending operations wait for the space that deletions free."""
    manager = started(tmp_path)
    log = created(manager)
    for _ in range(6):
        append(log, BIG)
    log.high_watermark = 6
    log.trim(3, NOW_MS)
    held: list[FileOp] = []
    manager.submit = lambda _, change: held.append(change)
    log.trim(5, NOW_MS)
    deleted_files = list((tmp_path / "t-0").glob("*.deleted"))
    for _, work in manager.deletions(NOW_MS + 1000):
        work()
    assert deleted_files
    assert not list((tmp_path / "t-0").glob("*.deleted"))
    assert not manager.deletions(NOW_MS + 1000)
    for change in held:
        change()
    assert list((tmp_path / "t-0").glob("*.deleted"))
    for _, work in manager.deletions(NOW_MS + 1000):
        work()
    assert not list((tmp_path / "t-0").glob("*.deleted"))
    assert log.deleted_files == []


def test_a_directory_is_deleted_after_its_rename(tmp_path: Path) -> None:
    manager = started(tmp_path)
    held: list[FileOp] = []
    log = created(manager)
    manager.submit_directory_op = lambda _, change: held.append(change)
    manager.delete(log)
    assert not manager.deletions(NOW_MS)
    assert not manager.deletions(NOW_MS + 10**6)
    for change in held:
        change()
    for _, work in manager.deletions(NOW_MS + 10**6):
        work()
    assert not list(tmp_path.glob("t-0*"))
