"""Deletion of files and directories (storage/directories/log_maintenance.py, deletions.py)."""

from __future__ import annotations

from pathlib import Path

from storage.directories.log_maintenance import due_deletions
from storage.directories.log_manager import LogManager
from storage.io.deferred_file_ops import FileOp
from tests.support.logs import NOW_MS, fill
from tests.unit.storage.directories.test_log_manager import created


def deleted_files(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "t-0").glob("*.deleted"))


def delete_due(manager: LogManager, wall_ms: int = NOW_MS + 1000) -> None:
    for _, work in due_deletions(manager, wall_ms):
        work()


def test_files_of_trimmed_segments_are_deleted_after_the_delay(manager: LogManager, tmp_path: Path) -> None:
    log = created(manager)
    fill(log, 6)
    log.high_watermark = 6
    log.open().trim(4, NOW_MS)
    assert deleted_files(tmp_path)
    assert not due_deletions(manager, NOW_MS + 999)
    delete_due(manager)
    assert not deleted_files(tmp_path)
    assert not due_deletions(manager, NOW_MS * 2)


def test_files_are_deleted_as_soon_as_they_are_renamed(manager: LogManager, tmp_path: Path) -> None:
    """On a full disk, pending operations wait for the space that deletions free."""
    log = created(manager)
    fill(log, 6)
    log.high_watermark = 6
    log.open().trim(3, NOW_MS)
    held: list[FileOp] = []
    manager.submit = lambda _, change: held.append(change)
    log.open().trim(5, NOW_MS)
    assert deleted_files(tmp_path)
    delete_due(manager)
    assert not deleted_files(tmp_path)
    assert not due_deletions(manager, NOW_MS + 1000)
    for change in held:
        change()
    assert deleted_files(tmp_path)
    delete_due(manager)
    assert not deleted_files(tmp_path)
    assert log.files.deleted_files == []


def test_a_directory_is_deleted_after_its_rename(manager: LogManager, tmp_path: Path) -> None:
    held: list[FileOp] = []
    log = created(manager)
    manager.submit_directory_op = lambda _, change: held.append(change)
    manager.delete(log)
    assert not due_deletions(manager, NOW_MS)
    assert not due_deletions(manager, NOW_MS + 10**6)
    for change in held:
        change()
    delete_due(manager, NOW_MS + 10**6)
    assert not list(tmp_path.glob("t-0*"))
