"""What a log directory holds, asked while logs come and go."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.io.disk import Disk, StorageError
from storage.io.disk_usage import DiskUsage


class MovingDisk(Disk):
    """On which something is made or taken away right behind a look at it."""

    def __init__(self, made: Path, taken: Path) -> None:
        super().__init__()
        self.made, self.taken = made, taken

    def listdir(self, path: str) -> list[str]:
        """Look, and have it change."""
        try:
            return super().listdir(path)
        finally:
            self.made.mkdir(exist_ok=True)
            self.taken.unlink(missing_ok=True)


def test_what_is_made_or_taken_away_during_the_look_has_no_size(tmp_path: Path) -> None:
    """The directory of a log that was made between two questions to the file system did not fail."""
    (tmp_path / "there-0").mkdir()
    (tmp_path / "there-0" / "0.log").write_bytes(b"abc")
    (tmp_path / "there-0" / "5.log").write_bytes(b"abc")
    made = tmp_path / "made-0"
    usage = DiskUsage(
        MovingDisk(made, tmp_path / "there-0" / "5.log"), str(tmp_path), [str(made), str(tmp_path / "there-0")]
    )
    usage.run()
    assert usage.sizes == {str(made): 0, str(tmp_path / "there-0"): 3}


def test_what_is_no_directory_has_failed(tmp_path: Path) -> None:
    """As a damaged file system may have it."""
    (tmp_path / "a-0").write_bytes(b"")
    with pytest.raises(StorageError, match="Not a directory"):
        DiskUsage(Disk(), str(tmp_path), [str(tmp_path / "a-0")]).run()
