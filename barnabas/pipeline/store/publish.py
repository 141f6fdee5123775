"""Publishes a round: staged files, manifest entry, renames. Recovers after a crash.

RULES    1. The data files of a round, and the folders above them, are synced before its manifest entry is written. The entry
            commits the round. The renamed files' folders are synced before staging is deleted, also if an earlier run renamed.
         2. After the commit each file is renamed to the path in the entry. A file is always in one of the two places, so
            recovery renames what is still staged.
         3. Staged files without an entry are not committed. Recovery deletes them.
         4. When an entry replaces files (compaction), the old files are deleted before the new ones are renamed. A reader that
            lists the folder may miss a day for a moment, but never sees a record twice. Readers of the manifest wait
            (`archive_reader.py`).
         5. A rename never replaces an existing file.
See docs/decisions/0040. NOT HERE The content of the files.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from barnabas.pipeline.errors import JobError
from barnabas.pipeline.store.durable_files import sync
from barnabas.pipeline.store.folder import ArchiveFolder
from barnabas.pipeline.store.manifest import DataFile, Entry, Manifest, write_entry


def staging_of(folder: ArchiveFolder, sequence: int) -> Path:
    """Returns the staging folder of a round. Files in it have their final relative paths."""
    return folder.staging / f"{sequence:012d}"


def recover(folder: ArchiveFolder) -> Manifest:
    """Completes the last committed round and deletes uncommitted files (rules 2 and 3)."""
    manifest = folder.manifest()
    if manifest.last is not None:
        _move_into_place(folder, manifest.last)
    shutil.rmtree(folder.staging, ignore_errors=True)  # workers of a killed driver may still write there
    return manifest


def publish(folder: ArchiveFolder, manifest: Manifest, entry: Entry) -> None:
    """Commits a staged round and renames its files."""
    staged = staging_of(folder, entry.sequence)
    for file in entry.files:
        sync(staged / file.path)
    for staged_folder in (*_folders_of(entry.files, staged), folder.staging, folder.internal):
        sync(staged_folder)
    write_entry(folder.manifest_folder, entry)
    manifest.add(entry)
    _move_into_place(folder, entry)
    shutil.rmtree(staged, ignore_errors=True)


def _move_into_place(folder: ArchiveFolder, entry: Entry) -> None:
    """Deletes replaced files, renames staged ones and syncs their folders; does only what an earlier run has not done."""
    changed = _folders_of(entry.files, folder.path)
    for path in entry.replaces:
        old = folder.path / path
        old.unlink(missing_ok=True)
        changed.add(old.parent)
    staged = staging_of(folder, entry.sequence)
    for file in entry.files:
        source, target = staged / file.path, folder.path / file.path
        if not source.exists():
            continue  # already renamed before a crash; an audit detects a lost file
        if target.exists():
            raise JobError(f"{target} exists already and does not belong to this archive: move it away.")
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)
    for changed_folder in changed:
        if changed_folder.exists():
            sync(changed_folder)


def _folders_of(files: Iterable[DataFile], root: Path) -> set[Path]:
    """The folders of these files below a folder, and this folder."""
    return {root / parent for file in files for parent in Path(file.path).parents}
