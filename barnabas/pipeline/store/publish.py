"""How a round becomes visible: staged, committed by the manifest, moved into place; and how a cut round ends.

RULES    1. The data files of a round are complete and on disk before its entry is written; the entry is the commit.
         2. After the commit the files are moved, each by one rename, to the names that the entry says. A file is in one
            of the two places at any moment, so whoever was killed here is finished by the next start: what still lies in
            staging goes to its place.
         3. Staging without an entry was never committed: the next start removes it.
         4. Where an entry replaces files (compaction), the old ones go before the new ones come: a reader that lists the
            folder may miss a day for a moment, it never sees a record twice. Readers of the manifest wait (`archive_reader.py`).
         5. Nothing is moved over something that is there.
See docs/decisions/0040. NOT HERE What is in the files.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from barnabas.pipeline.errors import JobError
from barnabas.pipeline.store.durable_write import sync
from barnabas.pipeline.store.folder import ArchiveFolder
from barnabas.pipeline.store.manifest import Entry, Manifest, write_entry


def staging_of(folder: ArchiveFolder, sequence: int) -> Path:
    """Where the files of a round lie until it is committed; under the names that they will have."""
    return folder.staging / f"{sequence:012d}"


def recover(folder: ArchiveFolder) -> Manifest:
    """Finish what was committed, remove what was not (rules 2 and 3)."""
    manifest = folder.manifest()
    if manifest.last is not None:
        _move_into_place(folder, manifest.last)
    shutil.rmtree(folder.staging, ignore_errors=True)  # workers of a killed driver may still write there
    return manifest


def publish(folder: ArchiveFolder, manifest: Manifest, entry: Entry) -> None:
    """Commit a round whose files are staged, and move them into place."""
    staged = staging_of(folder, entry.sequence)
    folders = {(staged / file.path).parent for file in entry.files}
    for file in entry.files:
        sync(staged / file.path)
    for staged_folder in folders | {staged}:
        sync(staged_folder)
    write_entry(folder.manifest_folder, entry)
    manifest.add(entry)
    _move_into_place(folder, entry)
    shutil.rmtree(staged, ignore_errors=True)


def _move_into_place(folder: ArchiveFolder, entry: Entry) -> None:
    touched: set[Path] = set()
    for path in entry.replaces:
        old = folder.path / path
        old.unlink(missing_ok=True)
        touched.add(old.parent)
    staged = staging_of(folder, entry.sequence)
    for file in entry.files:
        source, target = staged / file.path, folder.path / file.path
        if not source.exists():
            continue  # it was moved before we were killed; an audit finds one that was lost
        if target.exists():
            raise JobError(f"{target} is there already and is not of this archive: move it away.")
        if not target.parent.exists():
            target.parent.mkdir(parents=True)
            touched |= {target.parent.parent, folder.path}
        source.rename(target)
        touched.add(target.parent)
    for touched_folder in touched:
        if touched_folder.exists():
            sync(touched_folder)
