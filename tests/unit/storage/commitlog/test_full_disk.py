"""What keeps the cleaning of a full disk possible: a reserve that is not given away, and files that cost nothing to remove."""

from __future__ import annotations

from pathlib import Path

from storage.commitlog.cleaner import MAX_DEAD_MS, Cleaner
from storage.io.disk import Disk
from tests.support.segments import NOW_MS
from tests.unit.storage.commitlog.test_cleaning import clean, drop, fill, names, spaces
from tests.unit.storage.commitlog.test_commit_log import FILE_BYTES, Process, append_to, bytes_of


class _FullDisk(Disk):
    """A disk that says how much space is free."""

    free_bytes: int | None = None

    def space(self, path: str) -> tuple[int, int]:
        total, free = super().space(path)
        return total, free if self.free_bytes is None else self.free_bytes


def test_an_old_active_file_is_finished_only_if_the_next_one_is_not_the_reserve(tmp_path: Path) -> None:
    """Its successor would take the last file ahead, and its own unused space is free only when it is sealed."""
    disk = _FullDisk()
    process = Process(tmp_path, disk)
    expected = append_to(process[0])
    assert process.log.release_ballast()
    cleaner = Cleaner(disk, process.log)
    disk.free_bytes = FILE_BYTES // 2 - 1
    for wall_ms in (NOW_MS, NOW_MS + MAX_DEAD_MS):
        cleaner.begin_pass(wall_ms)
    expected += append_to(process[0])
    assert len(process.log.files) == 1
    assert process.log.ballast_bytes == FILE_BYTES
    disk.free_bytes = FILE_BYTES // 2
    cleaner.begin_pass(NOW_MS + MAX_DEAD_MS)
    expected += append_to(process[0])
    assert len(process.log.files) == 2
    assert bytes_of(process[0]) == expected


def test_files_without_live_batches_are_removed_whatever_space_is_left(tmp_path: Path) -> None:
    disk = _FullDisk()
    process = Process(tmp_path, disk)
    fill(process, 4, 20)
    while process.log.release_ballast():
        pass
    for number in range(4):
        drop(process, number)
    disk.free_bytes = FILE_BYTES // 16
    before = len(names(process))
    clean(process, is_full=True)
    assert len(names(process)) < before // 2
    assert sum(dead for _, dead in spaces(process)) == 0
