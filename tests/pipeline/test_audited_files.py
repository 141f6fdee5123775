"""The files that an audit checks: every file that a reader would find."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.audit.files_check import manifest_and_files
from barnabas.pipeline.store.folder import ArchiveFolder

DAY = Path("topic=t", "date=2026-01-01")


@pytest.fixture
def folder(archive_folder: ArchiveFolder) -> ArchiveFolder:
    """An archive with one file that is not in its manifest."""
    (archive_folder.path / DAY).mkdir(parents=True)
    (archive_folder.path / DAY / "a.parquet").touch()
    return archive_folder


def found(folder: ArchiveFolder) -> list[str]:
    return [path.removeprefix(f"{DAY}/") for path in manifest_and_files(folder)[1]]


def test_hidden_names_are_ignored_unless_a_glob_matches_them(folder: ArchiveFolder) -> None:
    """Spark and Arrow ignore hidden names; a glob for `*.parquet` matches `_b.parquet`."""
    day = folder.path / DAY
    for name in ("_b.parquet", ".c.parquet", "_SUCCESS", ".a.parquet.crc"):
        (day / name).touch()
    (day / "_old").mkdir()
    (day / "_old" / "d.parquet").touch()
    (folder.internal / "e.parquet").touch()
    assert found(folder) == [".c.parquet", "_b.parquet", "a.parquet"]


def test_links_are_followed_and_cycles_are_reported(folder: ArchiveFolder, tmp_path: Path) -> None:
    day = folder.path / DAY
    (other_place := tmp_path / "elsewhere").mkdir()
    (other_place / "x.parquet").touch()
    (day.parent / "date=2026-01-02").symlink_to(other_place)
    (day / "b.parquet").symlink_to(other_place / "x.parquet")
    (day / "c.parquet").symlink_to(other_place / "nothing")
    (day / "round").symlink_to(folder.path)
    os.mkfifo(day / "d.parquet")
    seen = ["a.parquet", "b.parquet", "c.parquet", "d.parquet", "round", "topic=t/date=2026-01-02/x.parquet"]
    assert found(folder) == seen


def test_an_unreadable_folder_is_an_error(folder: ArchiveFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    really = os.scandir

    def refused(path: str) -> object:
        if path.endswith("01"):
            raise PermissionError(13, "Permission denied", path)
        return really(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(JobError, match=r"date=2026-01-01 cannot be read: Permission denied"):
        manifest_and_files(folder)
