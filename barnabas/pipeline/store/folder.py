"""The folder of an archive: where everything lies, whose it is, and who writes to it.

FORMAT   topic=<name>/date=<day>/<sequence>-<number>.parquet    the records; any tool may read them
         _barnabas/archive.json                               whose archive it is: id, cluster, decoding, sink
         _barnabas/manifest/                                    what is committed (`manifest.py`)
         _barnabas/staging/<sequence>/                          the round that is being written
         _barnabas/audit.json                                   what the last audit verified (`jobs/audit/audit.py`)
         _barnabas/lock                                         held by whoever writes
RULES    1. Names below `_` are invisible to Spark, Hive, DuckDB's hive partitions and Arrow: a reader that lists the
            folder sees committed records only, each once.
         2. One job at a time writes to an archive; a second one is refused, and a dead one leaves no lock behind.
         3. The folder is one of a POSIX file system, on a cluster one that all nodes see under the same path.
NOT HERE Reading it (`archive_reader.py`), what makes a round visible (`publish.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
from dataclasses import dataclass
from pathlib import Path

from barnabas.pipeline.errors import JobError
from barnabas.pipeline.store.durable_write import write_durably
from barnabas.pipeline.store.folder_lock import held, local_folder
from barnabas.pipeline.store.manifest import Manifest, made_of, read_manifest

FORMAT = 1
PARQUET = "parquet"
DECODED_BY = {"format", "schema", "framing"}


@dataclass(frozen=True)
class Identity:
    """What an archive was begun as, and stays."""

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
        self.own = self.path / "_barnabas"
        self.manifest_folder = self.own / "manifest"
        self.staging = self.own / "staging"
        self.audit_file = self.own / "audit.json"
        self.round_file = self.own / "round.json"
        self._identity_file = self.own / "archive.json"

    def exists(self) -> bool:
        """Whether an archive was begun here."""
        try:
            return self._identity_file.is_file()
        except OSError as failure:
            raise JobError(f"{self._identity_file} cannot be read: {failure.strerror}.") from failure

    def manifest(self) -> Manifest:
        """What is committed."""
        if not self.exists():
            raise JobError(f"There is no archive in {self.path}.")
        return read_manifest(self.manifest_folder)

    def identity(self) -> Identity:
        """Whose archive it is."""
        try:
            said = json.loads(self._identity_file.read_text())
            if said.get("format") != FORMAT:
                raise JobError(
                    f"The archive in {self.path} is of format {said.get('format')}, and this is for {FORMAT}."
                )
            return made_of(Identity, said)
        except FileNotFoundError as failure:
            raise JobError(f"There is no archive in {self.path}.") from failure
        except OSError as failure:
            raise JobError(f"{self._identity_file} cannot be read: {failure.strerror}.") from failure
        except (ValueError, TypeError, AttributeError) as failure:
            raise JobError(f"{self._identity_file} is damaged: {failure}.") from failure

    def begin(self, cluster: str, decoding: dict[str, str], sink: str = PARQUET) -> Identity:
        """Make the folder an archive of this cluster; it must not hold anything else."""
        if self.exists():
            return self.identity()
        strangers = [path.name for path in self.path.iterdir() if path != self.own]
        if strangers:
            raise JobError(f"{self.path} is no archive and not empty ({strangers[0]}): name a folder of its own.")
        self.manifest_folder.mkdir(exist_ok=True)
        identity = Identity(secrets.token_hex(8), cluster, decoding, sink=sink)
        write_durably(self._identity_file, json.dumps(dataclasses.asdict(identity), indent=1) + "\n")
        return identity

    def held(self) -> contextlib.AbstractContextManager[None]:
        """Be the one who writes (rule 2)."""
        return held(self.own)
