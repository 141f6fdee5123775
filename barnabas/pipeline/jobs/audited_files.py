"""The files of an archive as an audit finds them: what lies there, and whether it is what the manifest says.

RULES    1. All that a reader who lists the folder would take counts, in the manifest or not, wherever it lies; when some
            topics are chosen, what lies in their folders.
         2. A file of the manifest must be there, as long as it was, and hold what it held: the same records of each
            partition by count, first, last and checksum.
         3. What Spark cannot read, or what has records without partition or offset, is unreadable, and the rest is read
            without it.
NOT HERE A table of Delta or Iceberg (`audited_table.py`), the comparison with the topic (`audit.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from datetime import date
from pathlib import PurePath

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from barnabas.pipeline.jobs.writing import JUDGED, contents_by_file
from barnabas.pipeline.store.folder import ArchiveFolder
from barnabas.pipeline.store.manifest import Contents, Manifest, topic_of
from barnabas.pipeline.store.reading import read_files, settled_manifest

NO_PLACE = "NO_RECORD_OF_A_TOPIC"
UNREADABLE = ("FAILED_READ_FILE", "CANNOT_READ_FILE", "Parquet", "parquet", NO_PLACE)
"""What Spark says of a file that is none of ours, or is damaged."""


def listed(folder: ArchiveFolder) -> tuple[Manifest, list[str]]:
    """The manifest and the files that lie there, of one moment, though a job may be writing meanwhile."""
    while True:
        manifest = settled_manifest(folder)
        lying = sorted(_visible(folder))
        if folder.manifest().next_sequence == manifest.next_sequence:
            return manifest, lying


def _visible(folder: ArchiveFolder) -> list[str]:
    """What a reader takes who lists the folder: hidden names, and what lies below them, is left out."""
    found = []
    for path in folder.path.rglob("*"):
        inside = path.relative_to(folder.path)
        if not any(part.startswith((".", "_")) for part in inside.parts) and path.is_file():
            found.append(str(inside))
    return found


class AuditedFiles:
    """The data files of an archive of Parquet."""

    def __init__(
        self,
        spark: SparkSession,
        folder: ArchiveFolder,
        manifest: Manifest,
        topics: Collection[str],
        lying: Collection[str],
        *,
        is_all: bool,
    ) -> None:
        self._spark = spark
        self._folder = folder
        self._known = {path: file for path, file in manifest.files.items() if file.topic in topics}
        counted = {path for path in lying if is_all or topic_of(path) in topics}
        self.missing = sorted(self._known.keys() - counted)
        self.unknown = sorted(counted - self._known.keys())
        self.altered: list[str] = []
        self.unreadable: list[str] = []
        self.readable = sorted(path for path in counted if topic_of(path) in topics and _is_in_place(path))

    def check(self) -> None:
        """Read every file, and hold it against the manifest (rule 2)."""
        found = self._contents(self.readable)
        self.readable = sorted(set(self.readable) - set(self.unreadable))
        for path in self.readable:
            file = self._known.get(path)
            if file is not None and (
                found.get(path, []) != list(file.contents) or (self._folder.path / path).stat().st_size != file.bytes
            ):
                self.altered.append(path)

    def faults(self) -> list[str]:
        """Every file that is not as it should be."""
        return [*self.missing, *self.unknown, *self.altered, *self.unreadable]

    def records(self) -> DataFrame:
        """What a reader finds in the folder."""
        return read_files(self._spark, self._folder.path, self.readable, JUDGED)

    def _contents(self, paths: list[str]) -> dict[str, list[Contents]]:
        """What files hold; what cannot be read is looked for by halves (rule 3)."""
        if not paths:
            return {}
        records = read_files(self._spark, self._folder.path, paths, JUDGED)
        for name in ("partition", "offset"):
            records = records.withColumn(name, f.coalesce(name, f.raise_error(f.lit(NO_PLACE))))
        try:
            return contents_by_file(records)[0]
        except (PySparkException, Py4JJavaError) as failure:
            if not any(sign in str(failure) for sign in UNREADABLE):
                raise
        if len(paths) == 1:
            self.unreadable += paths
            return {}
        middle = len(paths) // 2
        return {**self._contents(paths[:middle]), **self._contents(paths[middle:])}


def _is_in_place(path: str) -> bool:
    """Whether a file lies in the folder of a topic and a date, where records are looked for."""
    parts = PurePath(path).parts
    with contextlib.suppress(ValueError):
        return len(parts) == 3 and bool(date.fromisoformat(parts[1].removeprefix("date=")))
    return False
