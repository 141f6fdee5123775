"""The archive's files without Spark, with a crash at every step of a commit."""

from __future__ import annotations

import errno
import fcntl
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.trim import Verified, read_verified, write_verified
from barnabas.pipeline.store import archive_reader
from barnabas.pipeline.store import publish as publishing
from barnabas.pipeline.store.durable_files import sync
from barnabas.pipeline.store.folder import ArchiveFolder
from barnabas.pipeline.store.manifest import Contents, DataFile, Entry, Manifest, Range, write_entry
from barnabas.pipeline.store.publish import publish, recover, staging_of
from tests.pipeline.crashes import Crash, crash
from tests.pipeline.killing.kill_at_step import end_before_change


@pytest.fixture
def folder(archive_folder: ArchiveFolder) -> ArchiveFolder:
    return archive_folder


def staged_entry(folder: ArchiveFolder, sequence: int, replaces: tuple[str, ...] = ()) -> Entry:
    """An entry with two staged files."""
    paths = [f"topic=a/date=2026-01-0{day}/{sequence:012d}-0000{day}.parquet" for day in (1, 2)]
    for path in paths:
        staged = staging_of(folder, sequence) / path
        staged.parent.mkdir(parents=True)
        staged.write_text(f"records of {sequence}")
    start = sequence * 10
    files = tuple(DataFile(path, 12, (Contents(0, 5, start, start + 4, 1),)) for path in paths)
    ranges = () if replaces else (Range("a", "id", 0, start, start + 10, 10, 2),)
    return Entry(sequence, "compact" if replaces else "append", "now", ranges, files, replaces)


def listed(folder: ArchiveFolder) -> set[str]:
    return {str(path.relative_to(folder.path)) for path in folder.path.glob("topic=*/date=*/*.parquet")}


@pytest.mark.parametrize("last", range(1, 55))
def test_a_round_interrupted_at_any_step_is_published_once_or_not_at_all(
    folder: ArchiveFolder, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    """An append and then a compaction."""
    first = staged_entry(folder, 0)
    publish(folder, folder.manifest(), first)
    before = {file.path for file in first.files}
    second = staged_entry(folder, 1)
    third = staged_entry(folder, 2, replaces=(*sorted(before),))
    after_append = before | {file.path for file in second.files}
    after_all = {file.path for file in (*second.files, *third.files)}
    manifest = folder.manifest()
    with monkeypatch.context() as patched:
        end_before_change(last, str(folder.path), crash, patched.setattr)
        try:
            publish(folder, manifest, second)
            publish(folder, manifest, third)
        except Crash:
            pass
        else:
            assert last > 40, "a whole run has more steps than that"
    committed = folder.manifest().next_sequence
    wanted = {1: before, 2: after_append, 3: after_all}[committed]
    assert listed(folder) <= (wanted if committed < 3 else after_all | before)
    if committed == 3:
        assert not (before & listed(folder) and {file.path for file in third.files} & listed(folder)), "a record twice"
    recover(folder)
    assert listed(folder) == wanted
    assert not folder.staging.exists()


def test_a_committed_file_survives_a_power_failure(folder: ArchiveFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """All folders above a file are synced: before the commit in staging, and before staging is deleted at its target."""
    synced: set[Path] = set()
    synced_at_commit: list[set[Path]] = []

    def record_sync(path: Path) -> None:
        sync(path)
        synced.add(path)

    def record_commit(manifest: Path, entry: Entry) -> None:
        synced_at_commit.append(set(synced))
        write_entry(manifest, entry)

    monkeypatch.setattr(publishing, "sync", record_sync)
    monkeypatch.setattr(publishing, "write_entry", record_commit)
    entry = staged_entry(folder, 0)
    publish(folder, folder.manifest(), entry)
    for file in entry.files:
        staged, target = staging_of(folder, 0) / file.path, folder.path / file.path
        assert {staged, *_folders_below(folder.internal, staged)} <= synced_at_commit[0]
        assert {*_folders_below(folder.path, target)} <= synced
    synced.clear()
    recover(folder)  # as if the process was killed between the renames and their syncs
    assert {*_folders_below(folder.path, target)} <= synced


def test_a_reader_that_meets_a_compaction_reads_the_new_files(
    folder: ArchiveFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = staged_entry(folder, 0)
    publish(folder, folder.manifest(), first)
    merged = staged_entry(folder, 1, replaces=tuple(file.path for file in first.files))
    read_manifest = archive_reader.complete_manifest

    def compact_afterwards(folder: ArchiveFolder) -> Manifest:
        manifest = read_manifest(folder)
        if manifest.next_sequence == 1:
            publish(folder, folder.manifest(), merged)
        return manifest

    monkeypatch.setattr(archive_reader, "complete_manifest", compact_afterwards)
    monkeypatch.setattr(archive_reader, "read_files", lambda _spark, _base, paths: Mock(select=lambda *_: paths))
    found: Any = archive_reader.read_archive(Mock(), folder.path)
    assert found == [file.path for file in merged.files]
    (folder.path / merged.files[0].path).unlink()
    with pytest.raises(JobError, match=r"1 files of the archive .* are missing, for example topic=a/date=2026-01-01"):
        archive_reader.read_archive(Mock(), folder.path)


def _folders_below(root: Path, path: Path) -> list[Path]:
    """The folders of a path, up to the root and with it."""
    return [parent for parent in path.parents if parent.is_relative_to(root)]


def test_unreadable_files_are_errors_with_their_path(folder: ArchiveFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", refused)
        with pytest.raises(JobError, match=r"archive.json cannot be read: Permission denied"):
            folder.exists()
    monkeypatch.setattr(Path, "read_text", refused)
    with pytest.raises(JobError, match=r"archive.json cannot be read: Permission denied"):
        folder.metadata()


@pytest.mark.parametrize("decoding", [{}, {"format": "raw"}, {"format": "raw", "schema": 5, "framing": "plain"}, 5])
def test_metadata_without_a_valid_decoding_is_damaged(folder: ArchiveFolder, decoding: object) -> None:
    file = folder.internal / "archive.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "decoding": decoding}))
    with pytest.raises(JobError, match=r"archive.json is damaged"):
        folder.metadata()


def test_publishing_never_replaces_a_foreign_file(folder: ArchiveFolder) -> None:
    entry = staged_entry(folder, 0)
    foreign_file = folder.path / entry.files[0].path
    foreign_file.parent.mkdir(parents=True)
    foreign_file.write_text("mine")
    with pytest.raises(JobError, match="exists already"):
        publish(folder, folder.manifest(), entry)
    assert foreign_file.read_text() == "mine"


@pytest.mark.parametrize("name", ["a [x]", "{a}", "a*b", "a?", "a\\b"])
def test_a_folder_whose_path_is_a_pattern_for_spark_is_refused(tmp_path: Path, name: str) -> None:
    """The job wrote its files, and Spark did not find them, or would have read those of other folders."""
    with pytest.raises(JobError, match="for a pattern of names: choose a folder without"):
        ArchiveFolder(tmp_path / name / "archive")


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    taken = tmp_path / "mine"
    taken.mkdir()
    (taken / "letter.txt").write_text("dear")
    folder = ArchiveFolder(taken)
    with pytest.raises(JobError, match=r"not empty \(letter.txt\)"), folder.lock():
        raise AssertionError("it is held")
    assert [path.name for path in taken.iterdir()] == ["letter.txt"], "nothing was made in it"
    folder.internal.mkdir()
    with folder.lock(), pytest.raises(JobError, match=r"not empty \(letter.txt\)"):
        folder.create("cluster", {})
    with pytest.raises(JobError, match="is in an object store"):
        ArchiveFolder("s3a://bucket/archive")
    with pytest.raises(JobError, match="There is no archive"):
        ArchiveFolder(tmp_path / "nothing").manifest()
    assert publishing.staging_of(folder, 3).name == "000000000003"


def test_a_second_writer_of_the_same_process_is_refused(folder: ArchiveFolder) -> None:
    with folder.lock():
        for _ in range(2):
            with pytest.raises(JobError, match="Another job writes"), folder.lock():
                pass
    with folder.lock():
        pass


def test_a_file_system_without_locks_is_named_as_the_reason(
    folder: ArchiveFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    with pytest.raises(JobError, match=r"cannot be locked: No locks available"), folder.lock():
        pass


def test_an_unreadable_audit_result_is_not_called_damaged(
    folder: ArchiveFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_verified(folder) == ([], {})
    write_verified(folder, "now", [Verified("a", "id", 0, 7)], {"a-0": 7})
    assert read_verified(folder) == ([Verified("a", "id", 0, 7)], {"a-0": 7})
    text = folder.audit_file.read_text()
    folder.audit_file.write_text(text.replace('"end": 7', '"end": "seven"'))
    with pytest.raises(JobError, match=r"audit.json is damaged: end is 'seven'; remove it, and run an audit again"):
        read_verified(folder)
    folder.audit_file.unlink()
    folder.audit_file.mkdir()
    with pytest.raises(JobError, match=r"audit.json cannot be read: Is a directory"):
        read_verified(folder)
