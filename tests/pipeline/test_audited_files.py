"""What an audit takes for a file of an archive: all that a reader would, wherever it lies and however it is hidden."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.audit.files_check import listed
from barnabas.pipeline.store.folder import ArchiveFolder

DAY = Path("topic=t", "date=2026-01-01")


@pytest.fixture
def folder(tmp_path: Path) -> ArchiveFolder:
    """An archive of one file that its manifest does not know."""
    folder = ArchiveFolder(tmp_path / "archive")
    with folder.held():
        folder.begin("cluster", {"format": "raw", "schema": "", "framing": "plain"})
    (folder.path / DAY).mkdir(parents=True)
    (folder.path / DAY / "a.parquet").touch()
    return folder


def found(folder: ArchiveFolder) -> list[str]:
    return [path.removeprefix(f"{DAY}/") for path in listed(folder)[1]]


def test_hidden_names_are_left_out_but_for_those_that_a_glob_takes(folder: ArchiveFolder) -> None:
    """audited_files.py rule 1: Spark and Arrow leave hidden names out; `*.parquet` of a shell's kind takes `_b.parquet`."""
    day = folder.path / DAY
    for name in ("_b.parquet", ".c.parquet", "_SUCCESS", ".a.parquet.crc"):
        (day / name).touch()
    (day / "_old").mkdir()
    (day / "_old" / "d.parquet").touch()
    (folder.own / "e.parquet").touch()
    assert found(folder) == [".c.parquet", "_b.parquet", "a.parquet"]


def test_links_are_followed_and_circles_are_named(folder: ArchiveFolder, tmp_path: Path) -> None:
    """audited_files.py rule 1: a reader follows them; one that leads nowhere, or is no file, is something unknown."""
    day = folder.path / DAY
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (elsewhere / "x.parquet").touch()
    (day.parent / "date=2026-01-02").symlink_to(elsewhere)
    (day / "b.parquet").symlink_to(elsewhere / "x.parquet")
    (day / "c.parquet").symlink_to(elsewhere / "nothing")
    (day / "round").symlink_to(folder.path)
    os.mkfifo(day / "d.parquet")
    seen = ["a.parquet", "b.parquet", "c.parquet", "d.parquet", "round", "topic=t/date=2026-01-02/x.parquet"]
    assert found(folder) == seen


def test_a_folder_that_may_not_be_listed_is_one_sentence(
    folder: ArchiveFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """audited_files.py rule 1: what cannot be looked at is never taken for empty."""
    really = os.scandir

    def refused(path: str) -> object:
        if path.endswith("01"):
            raise PermissionError(13, "Permission denied", path)
        return really(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(JobError, match=r"date=2026-01-01 cannot be read: Permission denied"):
        listed(folder)
