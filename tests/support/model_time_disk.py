"""A disk whose files are as old as a test says.

RULES    1. A file is as old as its creation or its last rename; `set_modified_ms` changes that.
"""

from __future__ import annotations

from storage.io.disk import Disk, File


class ModelTimeDisk(Disk):
    """The real file system with the modification times of a model clock."""

    def __init__(self, now_ms: int) -> None:
        super().__init__()
        self.now_ms = now_ms
        self._modified: dict[str, int] = {}

    def open(self, path: str, *, write: bool, create: bool = False) -> File:
        if create:
            self._modified[path] = self.now_ms
        return super().open(path, write=write, create=create)

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        self._modified[target] = self.now_ms

    def modified_ms(self, path: str) -> int:
        return self._modified.get(path, self.now_ms)

    def set_modified_ms(self, path: str, wall_ms: int) -> None:
        self._modified[path] = wall_ms
