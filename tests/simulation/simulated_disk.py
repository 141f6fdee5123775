"""The `Disk` of one simulated process: short reads and writes, I/O errors, and the end of the process at any call.

RULES    1. Each changing call is one step. The process can end before any step (`fuse`) with `ProcessEnded`, which product code
            does not catch. An interrupted write may have written a part. All later steps end the process again.
         2. Reads and writes may transfer less than requested (POSIX).
         3. A `Fault` makes one kind of call below one path fail with EIO or ENOSPC, once or until it is removed. A failed write
            may have written a part; a failed sync loses its changes (file_system.py rule 4).
         4. `before_step` runs before each step of work outside the loop: other threads run meanwhile.
         5. On a full disk most writes, creations and renames fail with ENOSPC; a failed write may have written a part.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from protocol.primitives import Buffer
from storage.io.disk import Disk, File, Mapping, StorageError
from storage.io.file_lock import FileLock
from tests.simulation.file_system import DirectoryNode, FileNode, FileSystem, fail

FULL_SHARE = 0.8
"""The share of the calls that need space and find none on a full disk."""


class ProcessEnded(BaseException):
    """The simulated process ended."""


@dataclass
class Fault:
    """An I/O error that will occur."""

    kind: str
    """sync, write, make, read or unlink."""
    path: str
    number: int
    after: int
    """The number of such calls that still succeed."""
    is_lasting: bool = False


@contextmanager
def _reported(action: str, path: str) -> Iterator[None]:
    """Report an OSError as the product does."""
    try:
        yield
    except OSError as error:
        raise StorageError(action, path, error) from error


class _SimulatedHandle(File):
    """An open file or directory."""

    __slots__ = ()
    _disk: SimulatedDisk

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._disk.handle_closed(descriptor)


class SimulatedFile(_SimulatedHandle):
    """An open file."""

    __slots__ = ("node",)

    def __init__(self, disk: SimulatedDisk, path: str, node: FileNode) -> None:
        self.node = node
        super().__init__(disk, path, disk.next_descriptor())

    def size(self) -> int:
        return len(self.node.data)

    def modified_ms(self) -> int:
        return self.node.modified_ms

    def _read_some(self, length: int, position: int) -> bytes:
        disk = self._disk
        disk.before_read(self.path)
        if disk.short_io and length > 1 and disk.random.random() < 0.2:
            length = disk.random.randrange(1, length)
        return bytes(self.node.data[position : position + length])

    def _write_some(self, buffer: Buffer, position: int) -> int:
        disk = self._disk
        data = bytes(buffer)
        if disk.short_io and len(data) > 1 and disk.random.random() < 0.2:
            data = data[: disk.random.randrange(1, len(data))]
        try:
            disk.step("write", self.path, takes_space=True)
        except (ProcessEnded, OSError):
            if not disk.has_ended_earlier:
                self.node.write(data[: disk.random.randrange(len(data) + 1)], position)
            raise
        self.node.write(data, position)
        return len(data)

    def _write_some_of(self, buffers: Sequence[Buffer], position: int) -> int:
        return self._write_some(b"".join(buffers), position)

    def pread_if_resident(self, length: int, position: int) -> Buffer | None:
        return self.pread(length, position)

    def is_resident(self, position: int, length: int) -> bool:
        return True

    def truncate(self, size: int) -> None:
        self._disk.checked_step("write", "truncate", self.path)
        self.node.truncate(size)

    def allocate(self, size: int) -> bool:
        """Whether there is space."""
        return not self._disk.is_full

    def sync_once(self) -> None:
        """Make the file durable, or lose its changes (rule 3)."""
        try:
            self._disk.checked_step("sync", "sync", self.path)
        except StorageError:
            self.node.fail_sync(self._disk.random)
            raise
        self.node.sync()

    def map(self, length: int) -> Mapping:
        return bytes(self.node.data[:length])  # type: ignore[return-value]


class SimulatedDirectory(_SimulatedHandle):
    """An open directory."""

    __slots__ = ("node",)

    def __init__(self, disk: SimulatedDisk, path: str, node: DirectoryNode) -> None:
        self.node = node
        super().__init__(disk, path, disk.next_descriptor())

    def sync_once(self) -> None:
        self._disk.checked_step("sync", "sync the directory", self.path)
        self._disk.file_system.sync_directory(self.node)


class SimulatedDisk(Disk):
    """The file system as one process accesses it."""

    def __init__(self, file_system: FileSystem, random: Random, *, short_io: bool = False) -> None:
        super().__init__()
        self.file_system = file_system
        self.random = random
        self.short_io = short_io
        self.now_ms = 0
        self.steps = 0
        self.fuse: int | None = None
        """The number of steps until the process ends."""
        self.fault: Fault | None = None
        self.has_failed: set[str] = set()
        """The paths of faults that occurred."""
        self.is_full = False
        """Whether the disk has no free space (rule 5)."""
        self.has_ended = False
        self.has_ended_earlier = False
        self.before_step: Callable[[], None] | None = None
        self.switch: Callable[[], None] | None = None
        """Continues another call while several run at the same time."""
        self._descriptors = 0

    def next_descriptor(self) -> int:
        self._descriptors += 1
        return self._descriptors

    # ---- faults ----------------------------------------------------------------------------------------------

    def step(self, kind: str, path: str, *, takes_space: bool = False) -> None:
        """Count a changing call; `takes_space`: it fails on a full disk.

        Raises:
            ProcessEnded: the process ends before the call.
            OSError: the call fails.
        """
        if self.before_step is not None:
            self.before_step()
        self.steps += 1
        if self.has_ended:
            self.has_ended_earlier = True
            raise ProcessEnded
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                self.has_ended = True
                raise ProcessEnded
        self._apply_fault(kind, path)
        if takes_space and self.is_full and self.random.random() < FULL_SHARE:
            raise fail(errno.ENOSPC)

    def before_read(self, path: str) -> None:
        """Apply read faults."""
        if self.fault is not None:
            self._apply_fault("read", path)

    def checked_step(self, kind: str, action: str, path: str) -> None:
        """Like `step`, with a StorageError as the product reports it."""
        with _reported(action, path):
            self.step(kind, path)

    def _apply_fault(self, kind: str, path: str) -> None:
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

    def dev_null(self) -> int:
        """Not simulated."""
        raise NotImplementedError

    def open(self, path: str, *, write: bool, create: bool = False) -> File:
        with _reported("open", path):
            node = self.file_system.find(path)
            if node is None and create:
                self.step("make", path, takes_space=True)
                node = self.file_system.make_file(path)
                node.modified_ms = self.now_ms
            if not isinstance(node, FileNode):
                raise fail(errno.ENOENT if node is None else errno.EISDIR)
        return SimulatedFile(self, path, node)

    def open_directory(self, path: str) -> File:
        with _reported("open the directory", path):
            return SimulatedDirectory(self, path, self.file_system.directory(path))

    def exists(self, path: str) -> bool:
        return self.file_system.find(path) is not None

    def device_and_inode(self, path: str) -> tuple[int, int]:
        return 0, id(self.file_system.find(path))

    def stamp(self, path: str) -> str | None:
        node = self.file_system.find(path)
        if node is None:
            return None
        return f"{node.inode}/{len(node.data) if isinstance(node, FileNode) else 0}/{node.changed}"

    def is_dir(self, path: str) -> bool:
        return isinstance(self.file_system.find(path), DirectoryNode)

    def listdir(self, path: str) -> list[str]:
        with _reported("list", path):
            self.before_read(path)
            names = list(self.file_system.directory(path).names)
        self.random.shuffle(names)
        return names

    def restrict(self, path: str) -> None:
        """Simulated files have no modes."""

    def make_dirs(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        if parent and not self.exists(parent):
            self.make_dirs(parent)
        if not self.is_dir(path):
            self._do("make", "make the directory", path, lambda: self.file_system.make_directory(path))

    def rename(self, source: str, target: str) -> None:
        self._do("make", f"rename {source} to", target, lambda: self.file_system.rename(source, target))

    def unlink(self, path: str, *, missing_ok: bool = False) -> None:
        if not (missing_ok and not self.exists(path)):
            self._do("unlink", "delete", path, lambda: self.file_system.remove(path))

    def remove_tree(self, path: str) -> None:
        node = self.file_system.find(path)
        if isinstance(node, DirectoryNode):
            for name in list(node.names):
                self.remove_tree(f"{path}/{name}")
        if node is not None:
            self._do("unlink", "delete", path, lambda: self.file_system.remove(path))

    def size(self, path: str) -> int:
        with _reported("ask the size of", path):
            return len(self.file_system.file(path).data)

    def modified_ms(self, path: str) -> int:
        with _reported("ask the age of", path):
            return self.file_system.file(path).modified_ms

    def set_modified_ms(self, path: str, wall_ms: int) -> None:
        with _reported("set the age of", path):
            self.file_system.file(path).modified_ms = wall_ms

    def read(self, path: str) -> bytes:
        with _reported("read", path):
            self.before_read(path)
            return bytes(self.file_system.file(path).data)

    def sync_all(self, path: str, write_out: Callable[[], None]) -> None:
        """Call `write_out`, then make everything durable."""
        write_out()
        self.checked_step("sync", "sync the file system of", path)
        self.file_system.sync_all()

    def lock(self, path: str) -> FileLock:
        """Not simulated: one process at a time uses the directory."""
        raise NotImplementedError

    def space(self, path: str) -> tuple[int, int]:
        """The same at all times, but on a full disk."""
        return 1 << 40, 0 if self.is_full else 1 << 40

    def _do(self, kind: str, action: str, path: str, change: Callable[[], None]) -> None:
        with _reported(action, path):
            self.step(kind, path, takes_space=kind == "make")
            change()
