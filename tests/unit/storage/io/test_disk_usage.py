"""Measuring a log directory while logs are created and deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.io.disk import Disk, StorageError
from storage.io.disk_usage import DiskUsage


class MovingDisk(Disk):
    """Runs an action directly after a listing."""

    def __init__(self, made: Path, taken: Path) -> None:
        super().__init__()
        self.made, self.taken = made, taken

    def listdir(self, path: str) -> list[str]:
        try:
            return super().listdir(path)
        finally:
            self.made.mkdir(exist_ok=True)
            self.taken.unlink(missing_ok=True)


def test_files_created_or_deleted_during_the_measurement_count_as_0(tmp_path: Path) -> None:
    (tmp_path / "there-0").mkdir()
    (tmp_path / "there-0" / "0.log").write_bytes(b"abc")
    (tmp_path / "there-0" / "5.log").write_bytes(b"abc")
    made = tmp_path / "made-0"
    usage = DiskUsage(
        MovingDisk(made, tmp_path / "there-0" / "5.log"),
        str(tmp_path),
        dict.fromkeys([str(made), str(tmp_path / "there-0")]),
    )
    usage.run()
    assert usage.sizes == {str(made): 0, str(tmp_path / "there-0"): 3}


def test_a_log_that_is_not_a_directory_raises(tmp_path: Path) -> None:
    (tmp_path / "a-0").write_bytes(b"")
    with pytest.raises(StorageError, match="Not a directory"):
        DiskUsage(Disk(), str(tmp_path), {str(tmp_path / "a-0"): None}).run()
