"""The folder of an archive: its paths, its metadata and its lock.

FORMAT   topic=<name>/date=<day>/<sequence>-<number>.parquet    the records; any tool may read them
         _barnabas/archive.json                                 metadata: id, cluster, decoding, sink
         _barnabas/manifest/                                    the committed rounds (`manifest.py`)
         _barnabas/staging/<sequence>/                          the files of the current round
         _barnabas/audit.json                                   what the last audit verified (`jobs/audit/audit.py`)
         _barnabas/lock                                         locked by the writing job
RULES    1. Spark, Hive, DuckDB and Arrow ignore names that begin with `_`: a reader that lists the folder sees each
            committed record once.
         2. One job at a time writes to an archive. A second job is refused. The lock ends with its process.
         3. The file system is POSIX. On a cluster all nodes see the folder under the same path.
NOT HERE Reading (`archive_reader.py`), publishing rounds (`publish.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from barnabas.pipeline.errors import JobError
from barnabas.pipeline.store.durable_files import from_fields, read_json, write_durably
from barnabas.pipeline.store.folder_lock import local_folder, lock_folder
from barnabas.pipeline.store.manifest import Manifest, read_manifest

FORMAT = 1
PARQUET = "parquet"
DECODED_BY = {"format", "schema", "framing"}


@dataclass(frozen=True)
class ArchiveMetadata:
    """The settings with which an archive was created. They never change."""

    id: str
    cluster: str
    decoding: dict[str, str]
    format: int = FORMAT
    sink: str = PARQUET

    def __post_init__(self) -> None:
        if self.decoding.keys() != DECODED_BY or not all(isinstance(value, str) for value in self.decoding.values()):
            raise ValueError(f"decoding is {self.decoding}")


class ArchiveFolder:
    """The paths of one archive."""

    def __init__(self, path: Path | str) -> None:
        self.path = local_folder(path)
        self.internal = self.path / "_barnabas"
        self.manifest_folder = self.internal / "manifest"
        self.staging = self.internal / "staging"
        self.audit_file = self.internal / "audit.json"
        self.round_file = self.internal / "round.json"
        self._metadata_file = self.internal / "archive.json"

    def exists(self) -> bool:
        """Returns whether the folder holds an archive."""
        try:
            return self._metadata_file.is_file()
        except OSError as failure:
            raise JobError(f"{self._metadata_file} cannot be read: {failure.strerror}.") from failure

    def manifest(self) -> Manifest:
        """Reads the manifest. Raises JobError if there is no archive."""
        if not self.exists():
            raise JobError(f"There is no archive in {self.path}.")
        return read_manifest(self.manifest_folder)

    def metadata(self) -> ArchiveMetadata:
        """Reads archive.json. Raises JobError if it is missing, damaged or of another format."""
        try:
            return read_json(self._metadata_file, self._parse_metadata)
        except FileNotFoundError as failure:
            raise JobError(f"There is no archive in {self.path}.") from failure

    def _parse_metadata(self, fields: dict[str, Any]) -> ArchiveMetadata:
        if fields.get("format") != FORMAT:
            raise JobError(
                f"The archive in {self.path} has format {fields.get('format')}; this version reads format {FORMAT}."
            )
        return from_fields(ArchiveMetadata, fields)

    def create(self, cluster: str, decoding: dict[str, str], sink: str = PARQUET) -> None:
        """Creates the archive of this cluster. Raises JobError if the folder holds other files."""
        other_names = [path.name for path in self.path.iterdir() if path != self.internal]
        if other_names:
            raise JobError(f"{self.path} is not an archive and not empty ({other_names[0]}): choose another folder.")
        self.manifest_folder.mkdir(exist_ok=True)
        metadata = ArchiveMetadata(secrets.token_hex(8), cluster, decoding, sink=sink)
        write_durably(self._metadata_file, json.dumps(dataclasses.asdict(metadata), indent=1) + "\n")

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Locks the archive for writing (rule 2)."""
        return lock_folder(self.internal)
