"""A disk that can lose its power: what was not synced is kept, lost or torn, file by file.

RULES    1. Every change of a file's bytes or size since its last sync is remembered together with what it replaced.
         2. A crash takes back the latest of them, as many as the dice say, in each file by itself; the earliest one
            taken back may survive in part.
         3. Names are durable at once: renames, deletions and directories are not taken back.
         4. Objects that were open before a crash are not to be used after it.
         5. With a `fuse` the power fails at that very change of a file or name: PowerLoss, which nobody catches.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random

from storage.io.disk import Buffer, Disk, File


class PowerLoss(BaseException):
    """The power has failed; nothing more is written."""


class JournalledFile(File):
    """A file that remembers what was changed since the last sync."""

    __slots__ = ()
    _disk: CrashingDisk

    def pwrite(self, buffer: Buffer, position: int) -> None:
        """Write, and remember what was there."""
        self._disk.burn()
        size = self.size()
        old = self.pread(len(buffer), position)
        super().pwrite(buffer, position)
        self._disk.journal(self).append((position, len(buffer), old, size))

    def truncate(self, size: int) -> None:
        """Cut, and remember what was cut off."""
        self._disk.burn()
        old_size = self.size()
        old = self.pread(max(old_size - size, 0), size)
        super().truncate(size)
        self._disk.journal(self).append((size, 0, old, old_size))

    def sync(self) -> None:
        """Sync, and forget."""
        self._disk.burn()
        super().sync()
        self._disk.journal(self).clear()


Change = tuple[int, int, bytes, int]


class CrashingDisk(Disk):
    """Real files, and a journal for each."""

    def __init__(self) -> None:
        super().__init__()
        self._journals: dict[int, tuple[str, list[Change]]] = {}
        self.fuse: int | None = None
        """After so many further changes the power fails (rule 5)."""

    def burn(self) -> None:
        """A change is about to be made."""
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                raise PowerLoss

    def journal(self, file: File) -> list[Change]:
        """The changes since the last sync of the file, whatever it is called now."""
        return self._journals.setdefault(os.fstat(file.fileno()).st_ino, (file.path, []))[1]

    def open(self, path: str, *, write: bool, create: bool = False) -> File:
        """Open a file whose changes are remembered."""
        plain = super().open(path, write=write, create=create)
        descriptor = os.dup(plain.fileno())
        plain.close()
        return JournalledFile(self, path, descriptor)

    def rename(self, source: str, target: str) -> None:
        """Give a file another name; its journal goes with it, and that of a file which it replaces is over."""
        self.burn()
        if os.path.isfile(target):
            self._journals.pop(os.stat(target).st_ino, None)  # the number may be given to another file
        super().rename(source, target)
        if os.path.isfile(target):
            inode = os.stat(target).st_ino
            if inode in self._journals:
                self._journals[inode] = (target, self._journals[inode][1])

    def unlink(self, path: str, *, missing_ok: bool = False) -> None:
        """Remove a name."""
        self.burn()
        if os.path.isfile(path):
            self._journals.pop(os.stat(path).st_ino, None)
        super().unlink(path, missing_ok=missing_ok)

    def forget_changes(self) -> None:
        """Everything is durable: the whole file system was synced."""
        self._journals.clear()

    def sync_all(self, path: str, write_out: Callable[[], None]) -> None:
        """Sync the whole file system."""
        super().sync_all(path, write_out)
        self.forget_changes()

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
