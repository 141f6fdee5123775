"""A folder that changes as a whole: versions of it beside each other, and a link to the one that counts.

FORMAT   versions/<number, 8 digits>/    a version, whole; the one before it stays until the next
         current                         a link to the version that counts, for any reader
         _barnabas/<name>.json           the state: which version counts, and what the job keeps with it
         _barnabas/staging/<token>/      what a run writes, until it is whole
RULES    1. A version is written in staging, synced, and renamed to its place; then the state is renamed into place. That is
            the commit: version and state count together or not at all. `current` follows, and is set right by the next run.
         2. Staging is one attempt's own: what workers still write whose driver was killed lands in no version.
         3. A version never changes. Files that go on from one to the next do so by a hard link.
NOT HERE What is in a version (`jobs/table.py`, `jobs/aggregate/aggregate.py`).
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from barnabas.pipeline.errors import JobError
from barnabas.pipeline.store.durable_write import sync, write_durably

OWN = "_barnabas"


class Versions:
    """The versions in a folder; `name` is what it is, and what its state is called."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self._name = name
        self._versions = folder / "versions"
        self._staging = folder / OWN / "staging"
        self.state_file = folder / OWN / f"{name}.json"

    def state(self) -> dict[str, Any] | None:
        """What was committed last; None in a folder that is empty as yet."""
        if not self.state_file.exists():
            strangers = [path.name for path in self.folder.iterdir() if path.name not in {OWN, self._versions.name}]
            if strangers:
                raise JobError(
                    f"{self.folder} is no {self._name} and not empty ({strangers[0]}): name a folder of its own."
                )
            return None
        try:
            said = json.loads(self.state_file.read_text())
        except ValueError as failure:
            raise JobError(f"{self.state_file} is damaged: {failure}.") from failure
        return dict(said)

    def path(self, number: int) -> Path:
        """Where a version lies."""
        return self._versions / f"{number:08d}"

    def stage(self) -> Path:
        """An empty folder to write the next version in (rule 2)."""
        staged = self._staging / secrets.token_hex(4)
        staged.mkdir(parents=True)
        return staged

    def commit(self, staged: Path, number: int, state: Mapping[str, Any]) -> None:
        """Have what is staged be the version that counts, and this the state (rule 1)."""
        for parent, _, names in os.walk(staged):
            for name in names:
                sync(Path(parent, name))
            sync(Path(parent))
        target = self.path(number)
        self._versions.mkdir(exist_ok=True)
        if target.exists():
            shutil.rmtree(target)  # of a run that was killed before its commit
        staged.rename(target)
        sync(self._versions)
        sync(self.folder)
        write_durably(self.state_file, json.dumps(state) + "\n")
        self.settle()

    def settle(self) -> None:
        """Point `current` at the version that counts, and remove what nobody needs: what a cut run left, and old versions."""
        number = (self.state() or {}).get("version", 0)
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
