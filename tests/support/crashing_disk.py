"""A disk that can lose its power: unsynced changes are kept, lost or torn, file by file.

RULES    1. Every change of a file's bytes or size since its last sync is recorded with the data it replaced.
         2. A crash undoes a random number of the latest ones in each file; the earliest undone one
            may survive in part.
         3. Names are durable at once: renames, deletions and directories are not undone.
         4. Objects opened before a crash must not be used after it.
         5. With a `fuse` the power fails at that change of a file or name: PowerLoss is raised.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from random import Random

from protocol.primitives import Buffer
from storage.io.disk import Disk, File


class PowerLoss(BaseException):
    """The power has failed; nothing more is written."""


class JournalledFile(File):
    """A file that records its changes since the last sync."""

    __slots__ = ()
    _disk: CrashingDisk

    def pwrite(self, buffer: Buffer, position: int) -> None:
        self._disk.before_change()
        size = self.size()
        old = self.pread(len(buffer), position)
        super().pwrite(buffer, position)
        self._disk.journal(self).append((position, len(buffer), old, size))

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        self.pwrite(b"".join(buffers), position)

    def truncate(self, size: int) -> None:
        self._disk.before_change()
        old_size = self.size()
        old = self.pread(max(old_size - size, 0), size)
        super().truncate(size)
        self._disk.journal(self).append((size, 0, old, old_size))

    def sync_once(self) -> None:
        self._disk.before_change()
        super().sync_once()
        self._disk.journal(self).clear()


Change = tuple[int, int, bytes, int]


class CrashingDisk(Disk):
    """Real files with a journal each."""

    def __init__(self) -> None:
        super().__init__()
        self._journals: dict[int, tuple[str, list[Change]]] = {}
        self.fuse: int | None = None
        """The number of further changes until the power fails (rule 5); None: it does not fail."""

    def before_change(self) -> None:
        """Count a change; raises PowerLoss when the fuse is used up."""
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                raise PowerLoss

    def journal(self, file: File) -> list[Change]:
        """The changes since the last sync of the file, which may have been renamed."""
        return self._journals.setdefault(os.fstat(file.fileno()).st_ino, (file.path, []))[1]

    def open(self, path: str, *, write: bool, create: bool = False) -> File:
        plain = super().open(path, write=write, create=create)
        descriptor = os.dup(plain.fileno())
        plain.close()
        return JournalledFile(self, path, descriptor)

    def rename(self, source: str, target: str) -> None:
        """Rename a file with its journal; the journal of a replaced file is dropped."""
        self.before_change()
        if os.path.isfile(target):
            self._journals.pop(os.stat(target).st_ino, None)  # the number may be given to another file
        super().rename(source, target)
        if os.path.isfile(target):
            inode = os.stat(target).st_ino
            if inode in self._journals:
                self._journals[inode] = (target, self._journals[inode][1])

    def unlink(self, path: str, *, missing_ok: bool = False) -> None:
        self.before_change()
        if os.path.isfile(path):
            self._journals.pop(os.stat(path).st_ino, None)
        super().unlink(path, missing_ok=missing_ok)

    def discard_journal(self) -> None:
        """Everything is durable now."""
        self._journals.clear()

    def sync_all(self, path: str, write_out: Callable[[], None]) -> None:
        super().sync_all(path, write_out)
        self.discard_journal()

    def crash(self, dice: Random) -> None:
        """Lose the power (rules 2 and 3)."""
        self.fuse = None
        for inode, (path, changes) in self._journals.items():
            if not changes or not os.path.exists(path) or os.stat(path).st_ino != inode:
                continue
            keep = dice.randint(0, len(changes))
            with open(path, "r+b") as file:
                for position, length, old, size in reversed(changes[keep:]):
                    file.seek(position)
                    written = file.read(length)
                    file.truncate(size)
                    file.seek(position)
                    file.write(old)
                if keep < len(changes):
                    position, length, old, size = changes[keep]
                    survives = dice.randint(0, length)
                    if survives and dice.random() < 0.7:
                        file.seek(position)
                        file.write(written[:survives])
        self._journals.clear()
