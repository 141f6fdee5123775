"""A disk that keeps all changes in memory.

RULES    1. The caller sees its changes, and the real files elsewhere.
         2. Only the difference is in memory: the truncated size and the bytes written after it. A dry run can
            truncate a large log and write a small index.
         3. A renamed directory is missing under its old path; its new path is not supported.
         4. A changed file has no descriptor: a dry run may change more files than a process may open.
NOT HERE The dry run itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from protocol.primitives import Buffer
from storage.io.disk import Disk, File, Mapping, StorageError


class FileChange(NamedTuple):
    """The change of one file; a size of None means that it does not exist."""

    path: str
    before: int | None
    after: int | None


class _DryRunFile(File):
    """A changed file: a prefix of the real file, and the bytes after it in memory."""

    __slots__ = ("base", "kept", "tail")

    def __init__(self, disk: Disk, path: str, *, is_new: bool) -> None:
        super().__init__(disk, path, -1)
        self.base = None if is_new else path
        self.kept = 0 if is_new else self._open_base().size()
        self.tail = bytearray()

    def _open_base(self) -> File:
        """The real file, which never changes."""
        assert self.base is not None
        return Disk.open(self._disk, self.base, write=False)

    def size(self) -> int:
        return self.kept + len(self.tail)

    def modified_ms(self) -> int:
        return 0 if self.base is None else self._open_base().modified_ms()

    def pread(self, length: int, position: int) -> bytes:
        data = b""
        if position < self.kept:
            data = self._open_base().pread(min(length, self.kept - position), position)
            length -= len(data)
            position = self.kept
        return data + bytes(self.tail[position - self.kept : position - self.kept + length])

    def pread_if_resident(self, length: int, position: int) -> bytes:
        """The same as `pread`: a dry run may block."""
        return self.pread(length, position)

    def is_resident(self, position: int, length: int) -> bool:  # noqa: ARG002
        """Always true: likewise."""
        return True

    def pwrite(self, buffer: Buffer, position: int) -> None:
        if position < self.kept:
            self.tail[:0] = self._open_base().pread(self.kept - position, position)
            self.kept = position
        at = position - self.kept
        self.tail.extend(bytes(max(at - len(self.tail), 0)))
        self.tail[at : at + len(buffer)] = buffer

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        self.pwrite(b"".join(buffers), position)

    def truncate(self, size: int) -> None:
        if size <= self.kept:
            self.kept = size
            self.tail.clear()
        else:
            del self.tail[size - self.kept :]
            self.tail.extend(bytes(size - self.size()))

    def allocate(self, size: int) -> bool:  # noqa: ARG002
        """Does nothing."""
        return True

    def sync_once(self) -> None:
        """Does nothing."""

    def map(self, length: int) -> Mapping:
        mapping = Mapping(-1, length)
        mapping.write(self.pread(length, 0))
        mapping._disk = self._disk  # noqa: SLF001
        return mapping


class DryRunDisk(Disk):
    """The real files plus changes in memory. `Disk` describes the methods."""

    def __init__(self) -> None:
        super().__init__()
        self._changed: dict[str, _DryRunFile | None] = {}  # None: deleted
        self._changed_in: dict[str, set[str]] = {}  # their paths by directory
        self._deleted: set[str] = set()
        self._created: set[str] = set()
        self.renamed_directories: list[str] = []
        """Old paths of renamed directories."""

    def changes(self) -> list[FileChange]:
        """The changed files."""
        found = []
        for path, file in sorted(self._changed.items()):
            before = super().size(path) if super().exists(path) else None
            if file is None:
                if before is not None:
                    found.append(FileChange(path, before, None))
            elif not self._is_unchanged(path, file, before):
                found.append(FileChange(path, before, file.size()))
        return found

    def _is_unchanged(self, path: str, file: _DryRunFile, before: int | None) -> bool:
        size = file.size()
        if before != size:
            return False
        if not file.tail:
            return file.base == path
        return super().open(path, write=False).pread(size, 0) == file.pread(size, 0)

    # ---- files -------------------------------------------------------------------------------------------

    def open(self, path: str, *, write: bool, create: bool = False) -> File:
        file = self._changed.get(path)
        if file is None:
            exists = path not in self._changed and not self._is_deleted(path) and os.path.exists(path)
            if exists and not write:
                return super().open(path, write=False)
            if not exists and not create:
                raise StorageError("open", path, FileNotFoundError(2, os.strerror(2)))
            file = _DryRunFile(self, path, is_new=not exists)
            self._change(path, file)
        return file

    def _change(self, path: str, file: _DryRunFile | None) -> None:
        self._changed[path] = file
        self._changed_in.setdefault(os.path.dirname(path), set()).add(path)

    def open_directory(self, path: str) -> File:
        return _DryRunFile(self, path, is_new=True)

    def exists(self, path: str) -> bool:
        if path in self._changed:
            return self._changed[path] is not None
        return path in self._created or (not self._is_deleted(path) and super().exists(path))

    def is_dir(self, path: str) -> bool:
        return path in self._created or (not self._is_deleted(path) and super().is_dir(path))

    def stamp(self, path: str) -> str | None:  # noqa: ARG002
        """None: a dry run looks at the files themselves."""
        return None

    def listdir(self, path: str) -> list[str]:
        names = (
            {name for name in super().listdir(path) if self.exists(f"{path}/{name}")} if super().is_dir(path) else set()
        )
        changed = [file for file in self._changed_in.get(path, ()) if self._changed[file] is not None]
        return list(names.union(map(os.path.basename, changed)))

    def make_dirs(self, path: str) -> None:
        if not self.is_dir(path):
            self._created.add(path)

    def restrict(self, path: str) -> None:
        pass

    def rename(self, source: str, target: str) -> None:
        if self.is_dir(source):
            self._deleted.add(source)
            for directory in [path for path in self._changed_in if f"{path}/".startswith(f"{source}/")]:
                for path in self._changed_in.pop(directory):
                    del self._changed[path]
            self.renamed_directories.append(source)
            return
        file = self.open(source, write=True)
        file.path = target
        self._change(target, self._changed[source])
        self._change(source, None)

    def unlink(self, path: str, *, missing_ok: bool = False) -> None:
        if self.exists(path):
            self._change(path, None)
        elif not missing_ok:
            raise StorageError("delete", path, FileNotFoundError(2, os.strerror(2)))

    def remove_tree(self, path: str) -> None:
        self._deleted.add(path)

    def size(self, path: str) -> int:
        return self.open(path, write=False).size()

    def modified_ms(self, path: str) -> int:
        """The time of the last modification; 0 for a file created here."""
        return super().modified_ms(path) if self._changed.get(path) is None or super().exists(path) else 0

    def set_modified_ms(self, path: str, wall_ms: int) -> None:
        pass

    def read(self, path: str) -> bytes:
        file = self.open(path, write=False)
        return file.pread(file.size(), 0)

    def sync_all(self, path: str, write_out: Callable[[], None]) -> None:  # noqa: ARG002
        """Call `write_out`; nothing is synced."""
        write_out()

    def _is_deleted(self, path: str) -> bool:
        while self._deleted and path not in ("", "/"):
            if path in self._deleted:
                return True
            path = os.path.dirname(path)
        return False
