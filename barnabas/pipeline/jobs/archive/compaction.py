"""Compacts small files of an archive, one folder (topic and day) at a time.

RULES    1. A folder with more than `above` small files gets one file for them, up to the target size.
         2. The new file must have the same counts and checksums per partition as the old ones; otherwise nothing is replaced.
         3. Large files are not rewritten, so a late record does not rewrite an old day.
NOT HERE The commit (`store/publish.py`, rule 4).
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import SparkSession

from barnabas.pipeline.checksums import add_checksums
from barnabas.pipeline.datetimes import now
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.data_files import finalize_staged_files, write_files
from barnabas.pipeline.store.archive_reader import read_files
from barnabas.pipeline.store.folder import ArchiveFolder
from barnabas.pipeline.store.manifest import DataFile, Entry, Manifest
from barnabas.pipeline.store.publish import publish, staging_of

TARGET_BYTES = 128 << 20


def files_to_merge(files: Iterable[DataFile], above: int) -> list[DataFile]:
    """Returns the small files of folders that have too many (rules 1 and 3)."""
    folders: dict[str, list[DataFile]] = {}
    for file in files:
        if file.bytes < TARGET_BYTES // 2:
            folders.setdefault(file.folder, []).append(file)
    chosen = []
    for small in folders.values():
        if len(small) > above:
            chosen += _up_to(sorted(small, key=lambda file: file.bytes))
    return chosen


def compact(spark: SparkSession, folder: ArchiveFolder, manifest: Manifest, above: int, schema: str) -> Entry | None:
    """Compacts small files and commits the entry; None if there is nothing to compact."""
    old = files_to_merge(manifest.files.values(), above)
    if not old:
        return None
    sequence = manifest.next_sequence
    staged = staging_of(folder, sequence)
    write_files(read_files(spark, folder.path, [file.path for file in old], schema), staged, one_a_day=True)
    new = finalize_staged_files(spark, staged, sequence).files
    if _totals(old) != _totals(new):
        raise JobError(
            f"The files of {folder.path} do not hold what the manifest says: run an audit. Nothing was replaced."
        )
    written = now()
    entry = Entry(sequence, "compact", written, files=tuple(new), replaces=tuple(file.path for file in old))
    publish(folder, manifest, entry)
    return entry


def _totals(files: Iterable[DataFile]) -> dict[tuple[str, int], tuple[int, int, int, int]]:
    """Count, first offset, last offset and checksum, by folder and partition."""
    totals: dict[tuple[str, int], tuple[int, int, int, int]] = {}
    for file in files:
        for part in file.contents:
            key = (file.folder, part.partition)
            count, first, last, checksum = totals.get(key, (0, part.first, part.last, 0))
            totals[key] = (
                count + part.count,
                min(first, part.first),
                max(last, part.last),
                add_checksums((checksum, part.checksum)),
            )
    return totals


def _up_to(files: list[DataFile]) -> list[DataFile]:
    total = 0
    taken = []
    for file in files:
        total += file.bytes
        if total > TARGET_BYTES:
            break
        taken.append(file)
    return taken if len(taken) > 1 else []
