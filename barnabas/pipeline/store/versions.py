"""A folder that changes atomically: versions side by side, and a link to the current one.

FORMAT   versions/<number, 8 digits>/    a complete version; the previous one is kept until the next commit
         current                         a link to the current version, for any reader
         _barnabas/<name>.json           the state: the current version's number, and the job's own fields
         _barnabas/staging/<token>/      the files of one attempt
RULES    1. A version is written to staging, synced and renamed. Then the state file is replaced: this commits version and
            state together. `current` is updated afterwards, after a crash by the next run.
         2. Each attempt has its own staging folder: late writes of a killed driver's workers reach no version.
         3. A version never changes. Files are carried over to the next version by hard links.
NOT HERE The content of a version (`jobs/table.py`, `jobs/aggregate/aggregate.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from barnabas.pipeline.errors import JobError
from barnabas.pipeline.store.durable_files import from_fields, read_json, sync, write_durably
from barnabas.pipeline.store.folder_lock import local_folder, lock_folder

T = TypeVar("T")
INTERNAL = "_barnabas"


@contextlib.contextmanager
def open_versions(path: Path, name: str) -> Iterator[Versions]:
    """Locks the versions in a folder. Staged files are deleted before and after, also on a full disk. Raises JobError."""
    versions = Versions(local_folder(path), name)
    with lock_folder(versions.folder / INTERNAL):
        versions.clean_up()
        try:
            yield versions
        finally:
            versions.clean_up()


class Versions:
    """The versions in a folder; `name` names the kind of folder and its state file."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self._name = name
        self._versions = folder / "versions"
        self._staging = folder / INTERNAL / "staging"
        self.state_file = folder / INTERNAL / f"{name}.json"

    def state(self, kind: type[T], former_names: Mapping[str, str] | None = None) -> T | None:
        """Returns the last committed state; None if the folder is empty. Raises JobError if it is damaged."""
        if not self.state_file.exists():
            other_names = [
                path.name for path in self.folder.iterdir() if path.name not in {INTERNAL, self._versions.name}
            ]
            if other_names:
                raise JobError(
                    f"{self.folder} is not a {self._name} and not empty ({other_names[0]}): choose another folder."
                )
            return None
        return read_json(self.state_file, lambda fields: from_fields(kind, fields, former_names))

    def path(self, number: int) -> Path:
        """Returns the folder of a version."""
        return self._versions / f"{number:08d}"

    def stage(self) -> Path:
        """Creates an empty staging folder (rule 2)."""
        staged = self._staging / secrets.token_hex(4)
        staged.mkdir(parents=True)
        return staged

    def commit(self, staged: Path, number: int, state: Mapping[str, Any]) -> None:
        """Commits a staged version with its state (rule 1)."""
        for parent, _, names in os.walk(staged):
            for name in names:
                sync(Path(parent, name))
            sync(Path(parent))
        target = self.path(number)
        self._versions.mkdir(exist_ok=True)
        if target.exists():
            shutil.rmtree(target)  # left by a run that was killed before its commit
        staged.rename(target)
        sync(self._versions)
        sync(self.folder)
        write_durably(self.state_file, json.dumps(state) + "\n")
        self.clean_up()

    def clean_up(self) -> None:
        """Points `current` at the committed version; deletes staging folders and old versions."""
        state: dict[str, Any] | None = self.state(dict)
        number = 0 if state is None else read_json(self.state_file, _version_in)
        shutil.rmtree(self._staging, ignore_errors=True)  # workers of a killed driver may still write there
        if not self._versions.exists():
            return
        if number:
            link = self.folder / ".current.new"
            link.unlink(missing_ok=True)
            link.symlink_to(self.path(number).relative_to(self.folder))
            link.replace(self.folder / "current")
        for path in self._versions.iterdir():
            if path not in {self.path(number), self.path(number - 1)}:
                shutil.rmtree(path)


def _version_in(state: dict[str, Any]) -> int:
    """The number of the committed version. Raises TypeError."""
    version = state.get("version", 0)
    if not isinstance(version, int):
        raise TypeError(f"version is {version!r}")
    return version
