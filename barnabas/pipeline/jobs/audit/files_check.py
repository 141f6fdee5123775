"""Checks the data files of an archive against its manifest.

RULES    1. Every file that a reader of the folder would read is checked, in any subfolder. With chosen topics, the files of
            their folders. Hidden names are ignored, except hidden names that a glob for `*.parquet` matches.
         2. A file of the manifest must exist, byte for byte, with the same records: count, first offset, last offset and
            checksum of each partition, each record under its own day. Decoded data must equal the decoded value.
         3. A file that Spark cannot read, or that has records without partition or offset, is unreadable; the other files are
            read without it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection
from datetime import date
from pathlib import Path, PurePath
from typing import TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.data_files import SCHEMA_WITH_ERROR, contents_by_file, path_inside
from barnabas.pipeline.spark.value_decoding import Decoding, decoded_fields, misdecoded
from barnabas.pipeline.store.archive_reader import SCHEMA, complete_manifest, read_files
from barnabas.pipeline.store.durable_files import digests
from barnabas.pipeline.store.folder import ArchiveFolder
from barnabas.pipeline.store.manifest import Contents, DataFile, Manifest, topic_of

T = TypeVar("T")
DAY = re.compile(r"date=([+-]?\d{4,})-(\d\d)-(\d\d)")

NO_RECORD_POSITION = "NO_RECORD_OF_A_TOPIC"
UNREADABLE = ("FAILED_READ_FILE", "CANNOT_READ_FILE", "Parquet", "parquet", NO_RECORD_POSITION)
"""Parts of Spark's messages about a damaged or foreign file."""


def manifest_and_files(folder: ArchiveFolder) -> tuple[Manifest, list[str]]:
    """Returns a consistent pair of manifest and file listing, also while a job writes."""
    while True:
        manifest = complete_manifest(folder)
        data_paths = sorted(_visible_files(folder))
        if folder.manifest().next_sequence == manifest.next_sequence:
            return manifest, data_paths


def _visible_files(folder: ArchiveFolder) -> list[str]:
    """The files that a reader finds by listing or globbing. A link that forms a cycle is returned as a file."""
    found = []

    def read_contents(inside: Path, above: tuple[str, ...]) -> None:
        real = os.path.realpath(folder.path / inside)
        if real in above:
            found.append(str(inside))
            return
        with os.scandir(real) as entries:
            for entry in entries:
                is_hidden = entry.name.startswith((".", "_"))
                if entry.is_dir():
                    if not is_hidden:
                        read_contents(inside / entry.name, (*above, real))
                elif not is_hidden or (inside.parts and entry.name.endswith(".parquet")):
                    found.append(str(inside / entry.name))

    try:
        read_contents(Path(), ())
    except OSError as failure:
        raise JobError(f"{failure.filename} cannot be read: {failure.strerror}.") from failure
    return found


class AuditedFiles:
    """The data files of a Parquet archive."""

    def __init__(
        self,
        spark: SparkSession,
        folder: ArchiveFolder,
        manifest: Manifest,
        topics: Collection[str],
        data_paths: Collection[str],
        *,
        is_all: bool,
    ) -> None:
        self._spark = spark
        self._folder = folder
        self._decoding = Decoding(**folder.metadata().decoding)
        self._known = {path: file for path, file in manifest.files.items() if file.topic in topics}
        counted = {path for path in data_paths if is_all or topic_of(path) in topics}
        self.missing = sorted(self._known.keys() - counted)
        self.unknown = sorted(counted - self._known.keys())
        self.altered: list[str] = []
        well_placed = sorted(path for path in counted if topic_of(path) in topics and _is_data_path(path))
        self.readable = [path for path in well_placed if (folder.path / path).is_file()]
        self.unreadable = sorted(set(well_placed) - set(self.readable))
        self.misdecoded = 0

    def check(self) -> None:
        """Reads every file and compares it with the manifest (rule 2)."""
        found = self._read(self._contents)
        sha256 = digests([self._folder.path / path for path in self.readable])
        misdecoded_counts = self._read(self._misdecoded) if self._decoding.format != "raw" else {}
        self.misdecoded = sum(misdecoded_counts.values())
        for path in self.readable:
            file = self._known.get(path)
            contents, is_misplaced = found.get(path, ([], False))
            if file is not None and (
                contents != list(file.contents)
                or is_misplaced
                or path in misdecoded_counts
                or not self._is_as_written(file, sha256[self._folder.path / path])
            ):
                self.altered.append(path)

    def _is_as_written(self, file: DataFile, sha256: str) -> bool:
        """Whether size and digest are unchanged; old manifests have no digests."""
        return (self._folder.path / file.path).stat().st_size == file.bytes and file.sha256 in ("", sha256)

    def faults(self) -> list[str]:
        """Returns the files with a fault."""
        return [*self.missing, *self.unknown, *self.altered, *self.unreadable]

    def records(self) -> DataFrame:
        """Returns the records of all readable files."""
        return read_files(self._spark, self._folder.path, self.readable, SCHEMA_WITH_ERROR)

    def malformed(self) -> DataFrame:
        """Returns the records with a decoding error."""
        return self.records().where("error is not null")

    def _read(self, read_contents: Callable[[list[str]], dict[str, T]]) -> dict[str, T]:
        """Applies `read_contents` to all readable files and returns its results by file."""
        found = self._by_halves(self.readable, read_contents)
        self.readable = sorted(set(self.readable) - set(self.unreadable))
        return found

    def _by_halves(self, paths: list[str], read_contents: Callable[[list[str]], dict[str, T]]) -> dict[str, T]:
        """Finds unreadable files by bisection (rule 3)."""
        if not paths:
            return {}
        try:
            return read_contents(paths)
        except (PySparkException, Py4JJavaError) as failure:
            if not any(marker in str(failure) for marker in UNREADABLE):
                raise
        if len(paths) == 1:
            self.unreadable += paths
            return {}
        middle = len(paths) // 2
        return {**self._by_halves(paths[:middle], read_contents), **self._by_halves(paths[middle:], read_contents)}

    def _contents(self, paths: list[str]) -> dict[str, tuple[list[Contents], bool]]:
        """The contents of files, and whether they have records of another day."""
        records = read_files(self._spark, self._folder.path, paths, SCHEMA_WITH_ERROR)
        for name in ("partition", "offset"):
            records = records.withColumn(name, f.coalesce(name, f.raise_error(f.lit(NO_RECORD_POSITION))))
        found = contents_by_file(records)
        return {path: (contents, path in found.misplaced) for path, contents in found.contents.items()}

    def _misdecoded(self, paths: list[str]) -> dict[str, int]:
        """The number of records whose decoded data is wrong, by file."""
        schema = SCHEMA + decoded_fields(self._spark, self._decoding)
        records = read_files(self._spark, self._folder.path, paths, schema).select("*", path_inside())
        rows = misdecoded(records, self._decoding).groupBy("path").count().collect()
        return {row["path"]: row["count"] for row in rows}


def _is_data_path(path: str) -> bool:
    """Whether a path is inside the folder of a topic and a valid date."""
    parts = PurePath(path).parts
    if len(parts) != 3 or parts[2].startswith((".", "_")):
        return False
    day = DAY.fullmatch(parts[1])
    if day is None:
        return False
    with contextlib.suppress(ValueError):
        return bool(date(2000 + int(day[1]) % 400, int(day[2]), int(day[3])))  # the calendar repeats every 400 years
    return False
