"""The door to the simulated file system: what a process does there, until it is killed or the power fails.

RULES    1. Every call that changes something is one step. Before any of them the process may end (`fuse`): `Ended`, which
            nobody catches; a write that is cut short may have come some way. From then on every step ends it again.
         2. Reads and writes may do less than they were asked, as the system's may.
         3. A `Fault` makes one kind of call fail below one path, once or until it is lifted: EIO or ENOSPC, a write
            perhaps after it has come some way. A sync that fails loses what it was to write (file_system.py rule 4).
         4. `between` is called before the steps of closed work: what other threads do meanwhile.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from storage.io.disk import Buffer, Disk, File, Lock, Mapping, StorageError
from tests.simulation.file_system import DirectoryNode, FileNode, FileSystem, fail


class Ended(BaseException):
    """The process is gone."""


@dataclass
class Fault:
    """What goes wrong."""

    kind: str
    """sync, write, make, read."""
    path: str
    number: int
    after: int
    """So many such calls still succeed."""
    is_lasting: bool = False


class SimulatedFile(File):
    """An open file."""

    __slots__ = ("node",)
    _disk: SimulatedDisk

    def __init__(self, disk: SimulatedDisk, path: str, node: FileNode) -> None:
        self.node = node
        super().__init__(disk, path, disk.next_descriptor())

    def size(self) -> int:
        """Bytes in the file now."""
        return len(self.node.data)

    def _read_some(self, length: int, position: int) -> bytes:
        disk = self._disk
        disk.look(self.path)
        if disk.is_stingy and length > 1 and disk.dice.random() < 0.2:
            length = disk.dice.randrange(1, length)
        return bytes(self.node.data[position : position + length])

    def _write_some(self, buffer: Buffer, position: int) -> int:
        disk = self._disk
        data = bytes(buffer)
        if disk.is_stingy and len(data) > 1 and disk.dice.random() < 0.2:
            data = data[: disk.dice.randrange(1, len(data))]
        try:
            disk.step("write", self.path)
        except (Ended, OSError):
            if not disk.has_ended_before:
                self.node.write(data[: disk.dice.randrange(len(data) + 1)], position)
            raise
        self.node.write(data, position)
        return len(data)

    def pread_if_resident(self, length: int, position: int) -> Buffer | None:
        """Everything is resident."""
        return self.pread(length, position)

    def is_resident(self, position: int, length: int) -> bool:
        """Everything is resident."""
        return True

    def truncate(self, size: int) -> None:
        """Cut the file, or lengthen it with zeros."""
        self._disk.reported("write", "truncate", self.path)
        self.node.truncate(size)

    def reserve(self, size: int) -> None:
        """Space is not counted here."""

    def sync(self) -> None:
        """Make data and size durable, or lose them (rule 3)."""
        try:
            self._disk.reported("sync", "sync", self.path)
        except StorageError:
            self.node.fail_to_sync(self._disk.dice)
            raise
        self.node.sync()

    def map(self, length: int) -> Mapping:
        """The bytes; what reads a mapping can read them."""
        return bytes(self.node.data[:length])  # type: ignore[return-value]

    def close(self) -> None:
        """Count it no longer."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._disk.forget(descriptor)


class SimulatedDirectory(File):
    """An open directory."""

    __slots__ = ("_file_system", "node")
    _disk: SimulatedDisk

    def __init__(self, disk: SimulatedDisk, path: str, node: DirectoryNode) -> None:
        self.node = node
        super().__init__(disk, path, disk.next_descriptor())

    def sync(self) -> None:
        """Make its names durable."""
        self._disk.reported("sync", "sync the directory", self.path)
        self._disk.file_system.sync_directory(self.node)

    def close(self) -> None:
        """Count it no longer."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._disk.forget(descriptor)


class SimulatedDisk(Disk):
    """The file system as one process sees it."""

    def __init__(self, file_system: FileSystem, dice: Random, *, is_stingy: bool = False) -> None:
        super().__init__()
        self.file_system = file_system
        self.dice = dice
        self.is_stingy = is_stingy
        self.now_ms = 0
        self.steps = 0
        self.fuse: int | None = None
        """After so many further steps the process ends."""
        self.fault: Fault | None = None
        self.has_failed: set[str] = set()
        """Paths of faults that came to pass."""
        self.has_ended = False
        self.has_ended_before = False
        self.between: Callable[[], None] | None = None
        self._descriptors = 0

    def next_descriptor(self) -> int:
        """A number for an open file."""
        self._descriptors += 1
        return self._descriptors

    # ---- what may go wrong -------------------------------------------------------------------------------

    def step(self, kind: str, path: str) -> None:
        """A change is about to be made.

        Raises:
            Ended: the process is gone before it.
            OSError: it fails.
        """
        if self.between is not None:
            self.between()
        self.steps += 1
        if self.has_ended:
            self.has_ended_before = True
            raise Ended
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                self.has_ended = True
                raise Ended
        self._meet_fault(kind, path)

    def look(self, path: str) -> None:
        """Something is about to be read."""
        if self.fault is not None:
            self._meet_fault("read", path)

    def reported(self, kind: str, action: str, path: str) -> None:
        """The same as `step`, with the sentence that storage hears."""
        try:
            self.step(kind, path)
        except OSError as error:
            raise StorageError(action, path, error) from error

    def _meet_fault(self, kind: str, path: str) -> None:
        fault = self.fault
        if fault is None or fault.kind != kind or not path.startswith(fault.path):
            return
        fault.after -= 1
        if fault.after < 0:
            self.has_failed.add(fault.path)
            if not fault.is_lasting:
                self.fault = None
            raise fail(fault.number)

    # ---- the interface -----------------------------------------------------------------------------------

    def nowhere(self) -> int:
        """Nothing is sent anywhere here."""
        raise NotImplementedError

    def open(self, path: str, *, write: bool, create: bool = False) -> File:
        """Open a file that exists, or make it when `create`."""
        try:
            node = self.file_system.find(path)
            if node is None and create:
                self.step("make", path)
                node = self.file_system.make_file(path)
                node.modified_ms = self.now_ms
            if not isinstance(node, FileNode):
                raise fail(errno.ENOENT if node is None else errno.EISDIR)
        except OSError as error:
            raise StorageError("open", path, error) from error
        return SimulatedFile(self, path, node)

    def open_directory(self, path: str) -> File:
        """Open a directory in order to sync it."""
        try:
            return SimulatedDirectory(self, path, self.file_system.directory(path))
        except OSError as error:
            raise StorageError("open the directory", path, error) from error

    def exists(self, path: str) -> bool:
        """Whether anything has this name."""
        return self.file_system.find(path) is not None

    def identity(self, path: str) -> tuple[int, int]:
        """What no other file or directory has."""
        return 0, id(self.file_system.find(path))

    def is_dir(self, path: str) -> bool:
        """Whether this is a directory."""
        return isinstance(self.file_system.find(path), DirectoryNode)

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, in no order."""
        try:
            self.look(path)
            names = list(self.file_system.directory(path).names)
        except OSError as error:
            raise StorageError("list", path, error) from error
        self.dice.shuffle(names)
        return names

    def make_dirs(self, path: str) -> None:
        """Make a directory and those above it; nothing when it is there."""
        parent = path.rpartition("/")[0]
        if parent and not self.exists(parent):
            self.make_dirs(parent)
        if not self.is_dir(path):
            self._do("make", "make the directory", path, lambda: self.file_system.make_directory(path))

    def rename(self, source: str, target: str) -> None:
        """Give a file or directory another name, replacing a file of that name."""
        self._do("make", f"rename {source} to", target, lambda: self.file_system.rename(source, target))

    def unlink(self, path: str, *, missing_ok: bool = False) -> None:
        """Remove a file's name."""
        if not (missing_ok and not self.exists(path)):
            self._do("unlink", "delete", path, lambda: self.file_system.remove(path))

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all below it; nothing when it is gone."""
        node = self.file_system.find(path)
        if isinstance(node, DirectoryNode):
            for name in list(node.names):
                self.remove_tree(f"{path}/{name}")
        if node is not None:
            self._do("unlink", "delete", path, lambda: self.file_system.remove(path))

    def size(self, path: str) -> int:
        """Bytes in a file."""
        try:
            return len(self.file_system.file(path).data)
        except OSError as error:
            raise StorageError("ask the size of", path, error) from error

    def modified_ms(self, path: str) -> int:
        """When a file was last written."""
        try:
            return self.file_system.file(path).modified_ms
        except OSError as error:
            raise StorageError("ask the age of", path, error) from error

    def set_modified_ms(self, path: str, wall_ms: int) -> None:
        """Have a file look as if it was last written then."""
        try:
            self.file_system.file(path).modified_ms = wall_ms
        except OSError as error:
            raise StorageError("set the age of", path, error) from error

    def read(self, path: str) -> bytes:
        """All of a (small) file."""
        try:
            self.look(path)
            return bytes(self.file_system.file(path).data)
        except OSError as error:
            raise StorageError("read", path, error) from error

    def sync_all(self, path: str, write_out: Callable[[], None]) -> None:
        """Call `write_out`, then make everything durable."""
        write_out()
        self.reported("sync", "sync the file system of", path)
        self.file_system.sync_all()

    def lock(self, path: str) -> Lock:
        """One process at a time is all there is."""
        raise NotImplementedError

    def free_bytes(self, path: str) -> int:
        """Space is not counted here."""
        return 1 << 40

    def total_bytes(self, path: str) -> int:
        """Space is not counted here."""
        return 1 << 40

    def _do(self, kind: str, action: str, path: str, change: Callable[[], None]) -> None:
        try:
            self.step(kind, path)
            change()
        except OSError as error:
            raise StorageError(action, path, error) from error
