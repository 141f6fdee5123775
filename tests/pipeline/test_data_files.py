"""Writing the files of a round while workers of a killed driver still write."""

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
from tests.pipeline.crashes import Crash


class Frame:
    """Records that write one file."""

    def __init__(self, *, is_killed: bool) -> None:
        self.is_killed = is_killed
        self.path = Path()

    def __getattr__(self, _name: str) -> Any:
        return self

    def __call__(self, *_words: str) -> Self:
        return self

    def parquet(self, path: str) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True)
        if self.is_killed:
            raise Crash
        (self.path / "own.parquet").touch()


def test_late_files_of_a_killed_drivers_workers_are_in_no_round(tmp_path: Path) -> None:
    staged = tmp_path / "staging" / "000000000007"
    killed: Any = Frame(is_killed=True)
    with pytest.raises(Crash):
        write_files(killed, staged)
    shutil.rmtree(staged.parent)
    late = killed.path / "_temporary" / "0" / "task_of_the_dead"
    late.mkdir(parents=True)
    again: Any = Frame(is_killed=False)
    write_files(again, staged)
    assert [path.name for path in staged.iterdir()] == ["own.parquet"]


def test_a_staging_folder_that_cannot_be_removed_does_not_stop_a_run(
    archive_folder: ArchiveFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers of a killed driver may still write there; the next start removes it."""
    table = Versions(tmp_path / "table", "table")
    (archive_folder.staging / "000000000000.abc").mkdir(parents=True)
    table.stage()

    def is_filled(path: Any, **_where: Any) -> None:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rmdir", is_filled)
        assert recover(archive_folder).next_sequence == 0
        table.clean_up()
    recover(archive_folder)
    table.clean_up()
    assert not archive_folder.staging.exists()
    assert not list((tmp_path / "table" / "_barnabas").iterdir())
