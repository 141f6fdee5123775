"""Files of a round: whose they are."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any, Self

import pytest

pytest.importorskip("pyspark")

from barnabas.pipeline.jobs.data_files import write_files
from barnabas.pipeline.store.folder import ArchiveFolder
from barnabas.pipeline.store.publish import recover
from barnabas.pipeline.store.versions import Versions


class Killed(BaseException):
    """The driver ends here."""


class Frame:
    """Records that write one file, as far as they get."""

    def __init__(self, *, is_killed: bool) -> None:
        self.is_killed = is_killed
        self.path = Path()

    def __getattr__(self, _name: str) -> Any:
        return self

    def __call__(self, *_words: str) -> Self:
        return self

    def parquet(self, path: str) -> None:
        """Write, or be killed."""
        self.path = Path(path)
        self.path.mkdir(parents=True)
        if self.is_killed:
            raise Killed
        (self.path / "own.parquet").touch()


def test_what_a_killed_drivers_workers_finish_late_is_in_no_round(tmp_path: Path) -> None:
    """writing.py rule 3: they have been told to commit, and do so when the next run is at the same round."""
    staged = tmp_path / "staging" / "000000000007"
    killed: Any = Frame(is_killed=True)
    with pytest.raises(Killed):
        write_files(killed, staged)
    shutil.rmtree(staged.parent)
    late = killed.path / "_temporary" / "0" / "task_of_the_dead"
    late.mkdir(parents=True)
    again: Any = Frame(is_killed=False)
    write_files(again, staged)
    assert [path.name for path in staged.iterdir()] == ["own.parquet"]


def test_a_run_begins_though_a_killed_drivers_workers_still_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that fills while it is removed stays for the next start, and stops nothing."""
    archive, table = ArchiveFolder(tmp_path / "archive"), Versions(tmp_path / "table", "table")
    with archive.held():
        archive.begin("cluster", {"format": "raw", "schema": "", "framing": "plain"})
    (archive.staging / "000000000000.abc").mkdir(parents=True)
    table.stage()

    def is_filled(path: Any, **_where: Any) -> None:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rmdir", is_filled)
        assert recover(archive).next_sequence == 0
        table.settle()
    recover(archive)
    table.settle()
    assert not archive.staging.exists()
    assert not list((tmp_path / "table" / "_barnabas").iterdir())
