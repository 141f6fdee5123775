"""A disk that keeps all changes in memory.

RULES    1. The caller sees its changes, and the real files elsewhere.
         2. Only the difference is in memory: the truncated size and the bytes written after it. A dry run can
            truncate a large log and write a small index.
         3. A renamed directory is missing under its old path; its new path is not supported.
NOT HERE The dry run itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from storage.io.disk import Buffer, Disk, File, Mapping, StorageError


class FileChange(NamedTuple):
    """The change of one file; a size of None means that it does not exist."""

    path: str
    before: int | None
    after: int | None


class _Content:
    """The contents of a changed file: a prefix of the real file, and the bytes after it."""

    __slots__ = ("base", "kept", "tail")

    def __init__(self, base: File | None) -> None:
        self.base = base
        self.kept = 0 if base is None else base.size()
        self.tail = bytearray()

    @property
    def size(self) -> int:
        return self.kept + len(self.tail)

    def pread(self, length: int, position: int) -> bytes:
        data = b""
        if self.base is not None and position < self.kept:
            data = self.base.pread(min(length, self.kept - position), position)
            length -= len(data)
            position = self.kept
        return data + bytes(self.tail[position - self.kept : position - self.kept + length])

    def truncate(self, size: int) -> None:
        if size <= self.kept:
            self.kept = size
            self.tail.clear()
        else:
            del self.tail[size - self.kept :]
            self.tail.extend(bytes(size - self.size))

    def pwrite(self, buffer: Buffer, position: int) -> None:
        if position < self.kept:
            assert self.base is not None
            self.tail[:0] = self.base.pread(self.kept - position, position)
            self.kept = position
        at = position - self.kept
        self.tail.extend(bytes(max(at - len(self.tail), 0)))
        self.tail[at : at + len(buffer)] = buffer


class _DryRunFile(File):
    """A file whose changes stay in memory."""

    __slots__ = ("_content",)

    def __init__(self, disk: Disk, path: str, content: _Content) -> None:
        super().__init__(disk, path, -1)
        self._content = content

    def size(self) -> int:
        """The current size."""
        return self._content.size

    def pread(self, length: int, position: int) -> bytes:
        """Up to `length` bytes."""
        return self._content.pread(length, position)

    def is_resident(self, position: int, length: int) -> bool:  # noqa: ARG002
        """Always true: a dry run may block."""
        return True

    def pwrite(self, buffer: Buffer, position: int) -> None:
        """Write in memory."""
        self._content.pwrite(buffer, position)

    def truncate(self, size: int) -> None:
        """Truncate in memory, or extend with zeros."""
        self._content.truncate(size)

    def sync(self) -> None:
        """Does nothing."""

    def map(self, length: int) -> Mapping:
        """A copy of the first bytes."""
        mapping = Mapping(-1, length)
        mapping.write(self.pread(length, 0))
        mapping._disk = self._disk  # noqa: SLF001
        return mapping


class DryRunDisk(Disk):
    """The real files plus changes in memory."""

    def __init__(self) -> None:
        super().__init__()
        self._contents: dict[str, _Content | None] = {}
        self._deleted: set[str] = set()
        self._created: set[str] = set()
        self.renamed_directories: list[str] = []
        """Old paths of renamed directories."""

    def changes(self) -> list[FileChange]:
        """The changed files."""
        found = []
        for path, content in sorted(self._contents.items()):
            before = super().size(path) if super().exists(path) else None
            if content is None:
                if before is not None:
                    found.append(FileChange(path, before, None))
            elif not self._is_unchanged(path, content, before):
                found.append(FileChange(path, before, content.size))
        return found

    def _is_unchanged(self, path: str, content: _Content, before: int | None) -> bool:
        if before != content.size:
            return False
        if not content.tail:
            return content.base is not None and content.base.path == path
        return super().open(path, write=False).pread(content.size, 0) == content.pread(content.size, 0)

    # ---- files -------------------------------------------------------------------------------------------

    def open(self, path: str, *, write: bool, create: bool = False) -> File:
        """Open a file; writes stay in memory."""
        content = self._contents.get(path)
        if content is None:
            exists = path not in self._contents and not self._is_deleted(path) and os.path.exists(path)
            if exists and not write:
                return super().open(path, write=False)
            if not exists and not create:
                raise StorageError("open", path, FileNotFoundError(2, os.strerror(2)))
            content = self._contents[path] = _Content(super().open(path, write=False) if exists else None)
        return _DryRunFile(self, path, content)

    def open_directory(self, path: str) -> File:
        """Open a directory to sync it."""
        return _DryRunFile(self, path, _Content(None))

    def exists(self, path: str) -> bool:
        """Whether the path exists."""
        if path in self._contents:
            return self._contents[path] is not None
        return path in self._created or (not self._is_deleted(path) and super().exists(path))

    def is_dir(self, path: str) -> bool:
        """Whether the path is a directory."""
        return path in self._created or (not self._is_deleted(path) and super().is_dir(path))

    def listdir(self, path: str) -> list[str]:
        """The names in a directory."""
        names = (
            {name for name in super().listdir(path) if self.exists(f"{path}/{name}")} if super().is_dir(path) else set()
        )
        for changed, content in self._contents.items():
            if content is not None and os.path.dirname(changed) == path:
                names.add(os.path.basename(changed))
        return list(names)

    def make_dirs(self, path: str) -> None:
        """Create a directory."""
        if not self.is_dir(path):
            self._created.add(path)

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory."""
        if self.is_dir(source):
            self._deleted.add(source)
            self._contents = {path: c for path, c in self._contents.items() if not path.startswith(f"{source}/")}
            self.renamed_directories.append(source)
            return
        self.open(source, write=True)
        self._contents[target] = self._contents[source]
        self._contents[source] = None

    def unlink(self, path: str, *, missing_ok: bool = False) -> None:
        """Delete a file."""
        if self.exists(path):
            self._contents[path] = None
        elif not missing_ok:
            raise StorageError("delete", path, FileNotFoundError(2, os.strerror(2)))

    def remove_tree(self, path: str) -> None:
        """Delete a directory tree."""
        self._deleted.add(path)

    def size(self, path: str) -> int:
        """The size of a file."""
        return self.open(path, write=False).size()

    def modified_ms(self, path: str) -> int:
        """The time of the last modification; 0 for a file created here."""
        content = self._contents.get(path)
        return super().modified_ms(path) if content is None or super().exists(path) else 0

    def read(self, path: str) -> bytes:
        """The contents of a small file."""
        file = self.open(path, write=False)
        return file.pread(file.size(), 0)

    def sync_all(self, path: str, write_out: Callable[[], None]) -> None:  # noqa: ARG002
        """Call `write_out`; nothing is synced."""
        write_out()

    def _is_deleted(self, path: str) -> bool:
        return bool(self._deleted) and any(
            path == deleted or path.startswith(f"{deleted}/") for deleted in self._deleted
        )
