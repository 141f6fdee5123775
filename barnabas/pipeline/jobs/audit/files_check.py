"""The files of an archive as an audit finds them: what lies there, and whether it is what the manifest says.

RULES    1. All that a reader who lists the folder would take counts, in the manifest or not, wherever it lies; when some
            topics are chosen, what lies in their folders.
            Hidden names are left out; but who globs for `*.parquet` takes a hidden file too.
         2. A file of the manifest must be there, byte for byte, and hold what it held: the same records of each partition by
            count, first, last and checksum, each under its own day. What is decoded must be what the value decodes to.
         3. What Spark cannot read, or what has records without partition or offset, is unreadable, and the rest is read
            without it.
NOT HERE A table of Delta or Iceberg (`table_check.py`), decoding once more (`decoding_check.py`), the comparison with
         the topic (`audit.py`).
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
from barnabas.pipeline.jobs.audit.decoding_check import misdecoded
from barnabas.pipeline.jobs.data_files import JUDGED, contents_by_file, path_inside
from barnabas.pipeline.spark.value_decoding import Decoding, decoded_fields
from barnabas.pipeline.store.archive_reader import SCHEMA, read_files, settled_manifest
from barnabas.pipeline.store.digests import digests
from barnabas.pipeline.store.folder import ArchiveFolder
from barnabas.pipeline.store.manifest import Contents, DataFile, Manifest, topic_of

T = TypeVar("T")
DAY = re.compile(r"date=([+-]?\d{4,})-(\d\d)-(\d\d)")

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
    """What a reader takes who lists the folder, or globs in it; a link that leads round in a circle is taken for a file."""
    found = []

    def look(inside: Path, above: tuple[str, ...]) -> None:
        real = os.path.realpath(folder.path / inside)
        if real in above:
            found.append(str(inside))
            return
        with os.scandir(real) as entries:
            for entry in entries:
                is_hidden = entry.name.startswith((".", "_"))
                if entry.is_dir():
                    if not is_hidden:
                        look(inside / entry.name, (*above, real))
                elif not is_hidden or (inside.parts and entry.name.endswith(".parquet")):
                    found.append(str(inside / entry.name))

    try:
        look(Path(), ())
    except OSError as failure:
        raise JobError(f"{failure.filename} cannot be read: {failure.strerror}.") from failure
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
        self._decoding = Decoding(**folder.identity().decoding)
        self._known = {path: file for path, file in manifest.files.items() if file.topic in topics}
        counted = {path for path in lying if is_all or topic_of(path) in topics}
        self.missing = sorted(self._known.keys() - counted)
        self.unknown = sorted(counted - self._known.keys())
        self.altered: list[str] = []
        in_place = sorted(path for path in counted if topic_of(path) in topics and _is_in_place(path))
        self.readable = [path for path in in_place if (folder.path / path).is_file()]
        self.unreadable = sorted(set(in_place) - set(self.readable))
        self.misdecoded = 0

    def check(self) -> None:
        """Read every file, and hold it against the manifest (rule 2)."""
        found = self._read(self._contents)
        sha256 = digests([self._folder.path / path for path in self.readable])
        wrong = self._read(self._misdecoded) if self._decoding.format != "raw" else {}
        self.misdecoded = sum(wrong.values())
        for path in self.readable:
            file = self._known.get(path)
            held, is_misplaced = found.get(path, ([], False))
            if file is not None and (
                held != list(file.contents)
                or is_misplaced
                or path in wrong
                or not self._is_as_written(file, sha256[self._folder.path / path])
            ):
                self.altered.append(path)

    def _is_as_written(self, file: DataFile, sha256: str) -> bool:
        """Whether it is byte for byte what it was; manifests of before had no digests."""
        return (self._folder.path / file.path).stat().st_size == file.bytes and file.sha256 in ("", sha256)

    def faults(self) -> list[str]:
        """Every file that is not as it should be."""
        return [*self.missing, *self.unknown, *self.altered, *self.unreadable]

    def records(self) -> DataFrame:
        """What a reader finds in the folder."""
        return read_files(self._spark, self._folder.path, self.readable, JUDGED)

    def malformed(self) -> DataFrame:
        """The records that could not be decoded."""
        return self.records().where("error is not null")

    def _read(self, look: Callable[[list[str]], dict[str, T]]) -> dict[str, T]:
        """Something of every file that can be read."""
        found = self._by_halves(self.readable, look)
        self.readable = sorted(set(self.readable) - set(self.unreadable))
        return found

    def _by_halves(self, paths: list[str], look: Callable[[list[str]], dict[str, T]]) -> dict[str, T]:
        """What cannot be read is looked for by halves (rule 3)."""
        if not paths:
            return {}
        try:
            return look(paths)
        except (PySparkException, Py4JJavaError) as failure:
            if not any(sign in str(failure) for sign in UNREADABLE):
                raise
        if len(paths) == 1:
            self.unreadable += paths
            return {}
        middle = len(paths) // 2
        return {**self._by_halves(paths[:middle], look), **self._by_halves(paths[middle:], look)}

    def _contents(self, paths: list[str]) -> dict[str, tuple[list[Contents], bool]]:
        """What files hold, and whether under another day than their own."""
        records = read_files(self._spark, self._folder.path, paths, JUDGED)
        for name in ("partition", "offset"):
            records = records.withColumn(name, f.coalesce(name, f.raise_error(f.lit(NO_PLACE))))
        held = contents_by_file(records)
        return {path: (contents, path in held.misplaced) for path, contents in held.contents.items()}

    def _misdecoded(self, paths: list[str]) -> dict[str, int]:
        """In which files, and how often, what is decoded is not what the value says."""
        schema = SCHEMA + decoded_fields(self._spark, self._decoding)
        records = read_files(self._spark, self._folder.path, paths, schema).select("*", path_inside())
        rows = misdecoded(records, self._decoding).groupBy("path").count().collect()
        return {row["path"]: row["count"] for row in rows}


def _is_in_place(path: str) -> bool:
    """Whether a file lies in the folder of a topic and a date, where records are looked for."""
    parts = PurePath(path).parts
    if len(parts) != 3 or parts[2].startswith((".", "_")):
        return False
    day = DAY.fullmatch(parts[1])
    if day is None:
        return False
    with contextlib.suppress(ValueError):
        return bool(date(2000 + int(day[1]) % 400, int(day[2]), int(day[3])))  # the calendar repeats itself
    return False
