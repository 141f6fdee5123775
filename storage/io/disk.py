"""The only door to the file system; nothing else in the daemon's lower floors opens, writes, renames or syncs a file.

RULES    1. Every failure of the system leaves here as `StorageError`, a sentence with the path and the errno.
         2. A `File` has no position of its own: every read and write names one, so threads may share it.
         3. `pwrite` writes everything or raises; what a failed one left behind is the caller's to cut off.
         4. A descriptor is closed when the last reference to its `File` is gone: whoever still sends from a file
            keeps it readable, also after it was renamed or deleted.
         5. Mappings are for reading only, and are closed before their file is cut: touching a page beyond the end
            would be SIGBUS, a store that finds the disk full too.
         6. `sync` is data and size (fdatasync); a name is durable after `sync_dir` of its directory.
         7. `sync_together` syncs many plain files at a time; a kind of file that syncs in a way of its own is asked itself.
         8. `is_resident` and `pread_if_resident` never wait, and are for one thread, that of the state machines. What they
            tell may be untrue a moment later, when memory is short (docs/decisions/0014-reads-never-block-the-loop.md).
NOT HERE When to sync (log.py), and what the bytes mean. Tests and simulations bring a `Disk` of their own: subclass
         it and override `open`, or `File` and its two system calls.
"""
# Paths are plain strings in storage: a Path for every call would cost more than the call.

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from storage.io.aio_fsync import CAPACITY, UNTRIED, SyncQueue
from storage.io.page_cache import Residency

Buffer = bytes | bytearray | memoryview

_WANTED_BYTES = 256 * 1024  # of one wish to the kernel; of longer ones it may forget a part

_READ_BYTES = 32 * 1024  # most such files have a few bytes; memory for so many is set aside at each read

TEMPORARY = ".tmp"
"""What is being written beside a file."""
DELETED = ".deleted"
"""What is out of use; deleting it may take a millisecond."""

_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE

_locked: set[tuple[int, int]] = set()


class StorageError(Exception):
    """The disk failed, or refused; its log directory goes offline."""

    def __init__(self, action: str, path: str, error: OSError | None = None) -> None:
        reason = "" if error is None else f": {error.strerror or error}"
        super().__init__(f"Cannot {action} {path}{reason}.")
        self.path = path
        self.errno = None if error is None else error.errno
        self.is_full = not action.startswith("sync") and self.errno in (errno.ENOSPC, errno.EDQUOT)
        """Whether all that is missing is room, so that it can be done again later. A failed sync has lost something."""
        self.is_held = action == "lock" and self.errno in (0, errno.EAGAIN, errno.EACCES)
        """Whether somebody else has what was to be locked, or keeps it from us."""


class Mapping(mmap.mmap):
    """A read-only view of a file's first bytes; it holds a descriptor of its own."""

    _disk: Disk

    def close(self) -> None:
        """Give the pages and the descriptor back; harmless when done already."""
        super().close()
        self._disk.forget(-id(self))

    def __del__(self) -> None:
        if not self.closed:
            self.close()


class File:
    """One open file, read and written at positions."""

    __slots__ = ("__weakref__", "_descriptor", "_disk", "path")

    def __init__(self, disk: Disk, path: str, descriptor: int) -> None:
        self._disk = disk
        self._descriptor = descriptor
        self.path = path
        disk.remember(descriptor)

    def __repr__(self) -> str:
        return f"File({self.path!r}, {self._descriptor})"

    def __del__(self) -> None:
        self.close()

    def fileno(self) -> int:
        """Descriptor, for sendfile; -1 when closed."""
        return self._descriptor

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._descriptor < 0

    def size(self) -> int:
        """Bytes in the file now."""
        try:
            return os.fstat(self._descriptor).st_size
        except OSError as error:
            raise StorageError("ask the size of", self.path, error) from error

    def pread(self, length: int, position: int) -> bytes:
        """Up to `length` bytes; fewer only where the file ends."""
        try:
            data = self._read_some(length, position)
            while len(data) < length:
                more = self._read_some(length - len(data), position + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise StorageError("read", self.path, error) from error
        return data

    def pread_if_resident(self, length: int, position: int) -> Buffer | None:
        """The same where it need not wait for the disk; None where it would have to, for any of the bytes."""
        try:
            data = self._disk.residency.read(self._descriptor, position, length)
        except OSError as error:
            raise StorageError("read", self.path, error) from error
        if data is not None:
            return data if len(data) == length else None
        return self.pread(length, position) if self.is_resident(position, length) else None

    def is_resident(self, position: int, length: int) -> bool:
        """Whether all of these bytes, which are in the file, can be read without waiting for the disk."""
        try:
            return self._disk.residency.covers(self._descriptor, position, length)
        except OSError as error:
            raise StorageError("read", self.path, error) from error

    def cached_bytes(self, position: int, length: int) -> int:
        """About how many of these bytes lie in the page cache, reads under way included; in any thread."""
        return Residency().cached_bytes(self._descriptor, position, length)

    def warm(self, position: int, length: int) -> None:
        """Read these bytes, and no others, into the page cache and nowhere else; in any thread.

        From then on the kernel reads nothing ahead in this file: what it brought could not be told from what others use.
        """
        end = position + length
        try:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)
                for at in range(position, end, _WANTED_BYTES):
                    os.posix_fadvise(self._descriptor, at, min(_WANTED_BYTES, end - at), os.POSIX_FADV_WILLNEED)
            while position < end:
                count = os.sendfile(self._disk.nowhere(), self._descriptor, position, end - position)
                if not count:
                    break
                position += count
        except OSError as error:
            raise StorageError("read", self.path, error) from error

    def drop_cache(self, position: int, length: int) -> None:
        """Let the page cache forget these bytes, as far as they are not in use or unwritten."""
        if hasattr(os, "posix_fadvise"):
            try:
                os.posix_fadvise(self._descriptor, position, length, os.POSIX_FADV_DONTNEED)
            except OSError as error:
                raise StorageError("give back the cache of", self.path, error) from error

    def pwrite(self, buffer: Buffer, position: int) -> None:
        """Write all of `buffer`, or raise."""
        length = len(buffer)
        try:
            written = self._write_some(buffer, position)
            while written < length:
                with memoryview(buffer) as view:
                    written += self._write_some(view[written:], position + written)
        except OSError as error:
            raise StorageError("write", self.path, error) from error

    def truncate(self, size: int) -> None:
        """Cut the file, or lengthen it with zeros."""
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            raise StorageError("truncate", self.path, error) from error

    def reserve(self, size: int) -> None:
        """Set space aside for a file of that size, which stays as long as it is; nothing where that cannot be had."""
        import ctypes  # noqa: PLC0415  # only few topics want it

        system = ctypes.CDLL(None, use_errno=True)
        length = ctypes.c_int64(size)
        if not hasattr(system, "fallocate") or not system.fallocate(
            self._descriptor, _KEEP_SIZE, ctypes.c_int64(0), length
        ):
            return
        number = ctypes.get_errno()
        if number not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOSPC):
            raise StorageError("reserve space for", self.path, OSError(number, os.strerror(number)))
        self.truncate(self.size())  # what there was of it on a full disk is needed by who writes

    def sync(self) -> None:
        """Return when the data and the size are durable; a failure is final, never to be tried again."""
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise StorageError("sync", self.path, error) from error

    def map(self, length: int) -> Mapping:
        """Map the first `length` bytes, at least one, for reading."""
        try:
            mapping = Mapping(self._descriptor, length, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            cause = error if isinstance(error, OSError) else OSError(0, str(error))
            raise StorageError("map", self.path, cause) from error
        mapping._disk = self._disk  # noqa: SLF001
        self._disk.remember(-id(mapping))
        return mapping

    def close(self) -> None:
        """Close the descriptor now; only for who knows that nobody else holds this file."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._disk.forget(descriptor)
            os.close(descriptor)

    def _read_some(self, length: int, position: int) -> bytes:
        return os.pread(self._descriptor, length, position)

    def _write_some(self, buffer: Buffer, position: int) -> int:
        return os.pwrite(self._descriptor, buffer, position)


class Directory(File):
    """An open directory, good for one thing: syncing the names in it."""

    __slots__ = ()

    def sync(self) -> None:
        """Return when names made, changed or removed here are durable."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise StorageError("sync the directory", self.path, error) from error


class Lock:
    """Holds a lock file against other processes until it is released or the process ends."""

    __slots__ = ("_descriptor", "_identity", "path")

    def __init__(self, path: str, descriptor: int, identity: tuple[int, int]) -> None:
        self.path = path
        self._descriptor = descriptor
        self._identity = identity

    def release(self) -> None:
        """Let others in; harmless when done already."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            _locked.discard(self._identity)
            os.close(descriptor)


class Disk:
    """The file system, with errors as sentences and open descriptors counted."""

    def __init__(self) -> None:
        self._held: set[int] = set()
        self.residency = Residency()
        self._sync_queues: list[SyncQueue] = []  # idle ones, for the threads that wait
        self._nowhere: int | None = None

    @property
    def open_files(self) -> int:
        """Descriptors held by files and mappings of this disk."""
        return len(self._held)

    def nowhere(self) -> int:
        """A descriptor that swallows everything."""
        if self._nowhere is None:
            self._nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        return self._nowhere

    def remember(self, handle: int) -> None:
        """Count a descriptor (its number) or a mapping (minus its identity)."""
        self._held.add(handle)

    def forget(self, handle: int) -> None:
        """Count no longer."""
        self._held.discard(handle)

    def open(self, path: str, *, write: bool, create: bool = False) -> File:
        """Open a file that exists, or make it when `create`."""
        flags = (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0) | os.O_CLOEXEC
        try:
            return File(self, path, os.open(path, flags, 0o644))
        except OSError as error:
            raise StorageError("open", path, error) from error

    def open_directory(self, path: str) -> File:
        """Open a directory in order to sync it, whatever its name is by then."""
        try:
            return Directory(self, path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except OSError as error:
            raise StorageError("open the directory", path, error) from error

    def exists(self, path: str) -> bool:
        """Whether anything has this name."""
        return self._look_at(path) is not None

    def is_dir(self, path: str) -> bool:
        """Whether this is a directory."""
        found = self._look_at(path)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def _look_at(self, path: str) -> os.stat_result | None:
        try:
            return os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StorageError("look at", path, error) from error

    def identity(self, path: str) -> tuple[int, int]:
        """What no other file or directory of this system has, as long as this one is there."""
        with _reported("look at", path):
            return _identity(os.stat(path))

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, in no order."""
        try:
            return os.listdir(path)
        except OSError as error:
            raise StorageError("list", path, error) from error

    def make_dirs(self, path: str) -> None:
        """Make a directory and those above it; nothing when it is there."""
        with _reported("make the directory", path):
            os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        """Give a file or directory another name, replacing a file of that name."""
        with _reported(f"rename {source} to", target):
            os.rename(source, target)

    def unlink(self, path: str, *, missing_ok: bool = False) -> None:
        """Remove a file's name."""
        try:
            os.unlink(path)
        except FileNotFoundError as error:
            if not missing_ok:
                raise StorageError("delete", path, error) from error
        except OSError as error:
            raise StorageError("delete", path, error) from error

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all below it; nothing when it is gone."""
        with _reported("delete", path):
            for root, directories, files in os.walk(path, topdown=False):
                for name in files:
                    os.unlink(f"{root}/{name}")
                for name in directories:
                    remove = os.unlink if os.path.islink(f"{root}/{name}") else os.rmdir
                    remove(f"{root}/{name}")
            if os.path.lexists(path):
                os.rmdir(path)

    def size(self, path: str) -> int:
        """Bytes in a file."""
        try:
            return os.stat(path).st_size
        except OSError as error:
            raise StorageError("ask the size of", path, error) from error

    def modified_ms(self, path: str) -> int:
        """When a file was last written, in wall milliseconds."""
        with _reported("ask the age of", path):
            return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, wall_ms: int) -> None:
        """Have a file look as if it was last written then."""
        with _reported("set the age of", path):
            os.utime(path, ns=(wall_ms * 1_000_000, wall_ms * 1_000_000))

    def read(self, path: str) -> bytes:
        """All of a (small) file."""
        data = b""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # io.open asks the system thrice as much
            try:
                while more := os.read(descriptor, _READ_BYTES):
                    data += more
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StorageError("read", path, error) from error
        return data

    def write_beside(self, path: str, data: Buffer, beside: str = TEMPORARY) -> File:
        """Write what a file is to hold under a name of its own; `put_in_place` gives it the file's, when it is durable."""
        file = self.open(path + beside, write=True, create=True)
        file.truncate(0)
        file.pwrite(data, 0)
        return file

    def put_in_place(self, path: str, beside: str = TEMPORARY) -> None:
        """Let a file hold what was written beside it."""
        self.rename(path + beside, path)

    def replace_atomically(self, path: str, data: Buffer, *, sync: bool = True, beside: str = TEMPORARY) -> None:
        """Give a file new contents so that a reader, or a crash, finds either the old or the new ones.

        `beside`: how the name of what is written first ends; two who write at once need two.
        """
        file = self.write_beside(path, data, beside)
        try:
            if sync:
                file.sync()
        finally:
            file.close()
        self.put_in_place(path, beside)
        if sync:
            self.sync_dir(os.path.dirname(path) or ".")

    def sync_dir(self, path: str) -> None:
        """Make names made, changed or removed in a directory durable."""
        directory = self.open_directory(path)
        try:
            directory.sync()
        finally:
            directory.close()

    def sync_queue(self) -> SyncQueue | None:
        """A queue for syncs that the kernel does for who may not wait; None where the system has none."""
        return SyncQueue.open()

    def sync_together(self, files: Sequence[File]) -> dict[File, StorageError]:
        """Make the data and sizes of many files durable, and the names in directories; what failed, and that is final."""
        kinds = [file for file in files if is_plain(file)], [file for file in files if _is_plain_directory(file)]
        failures = sync_results([file for file in files if not is_plain(file) and not _is_plain_directory(file)], [])
        for kind in kinds:
            for start in range(0, len(kind), CAPACITY):
                some = kind[start : start + CAPACITY]
                failures |= sync_results(some, self._sync_at_a_time(some, are_directories=kind is kinds[1]))
        return failures

    def _sync_at_a_time(self, files: Sequence[File], *, are_directories: bool) -> list[int]:
        queue = None
        if len(files) > 1:
            queue = self._sync_queues.pop() if self._sync_queues else self.sync_queue()
        if queue is None or not queue.begin([file.fileno() for file in files], are_directories=are_directories):
            return []
        numbers = queue.wait()
        self._sync_queues.append(queue)
        return numbers

    def sync_dirs(self, paths: Sequence[str]) -> dict[str, StorageError]:
        """Make names made, changed or removed in many directories durable; what failed."""
        failures: dict[str, StorageError] = {}
        directories: list[File] = []
        for path in paths:
            try:
                directories.append(self.open_directory(path))
            except StorageError as error:
                failures[path] = error
        return failures | {file.path: error for file, error in self.sync_together(directories).items()}

    def sync_all(self, path: str, write_out: Callable[[], None]) -> None:
        """Call `write_out`, then make everything durable that it wrote anywhere on the file system of `path`.

        One call for thousands of files; an error is told that any of them met since the call began.
        """
        import ctypes  # noqa: PLC0415  # only a shutdown with many logs needs it

        with _reported("sync the file system of", path):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                write_out()
                system = ctypes.CDLL(None, use_errno=True)
                if hasattr(system, "syncfs") and system.syncfs(descriptor):
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
                if not hasattr(system, "syncfs"):
                    os.sync()
            finally:
                os.close(descriptor)

    def lock(self, path: str) -> Lock:
        """Take a lock file (the kind of lock that Java takes), or raise when another process or we hold it."""
        with _reported("lock", path):
            # A process may hold such a lock twice, and closing any descriptor of the file lets go of it.
            if os.path.exists(path) and _identity(os.stat(path)) in _locked:
                raise StorageError("lock", path, OSError(0, "this process holds it already"))
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(descriptor)
                raise StorageError("lock", path, OSError(error.errno, "another process holds it")) from error
            identity = _identity(os.fstat(descriptor))
        _locked.add(identity)
        return Lock(path, descriptor, identity)

    def free_bytes(self, path: str) -> int:
        """Bytes that we may still write where `path` lies."""
        with _reported("ask the free space of", path):
            figures = os.statvfs(path)
        return figures.f_bavail * figures.f_frsize

    def total_bytes(self, path: str) -> int:
        """The size of the file system where `path` lies."""
        with _reported("ask the size of", path):
            figures = os.statvfs(path)
        return figures.f_blocks * figures.f_frsize


def is_plain(file: File) -> bool:
    """Whether the kernel may sync it in place of its own method."""
    return type(file).sync is File.sync


def _is_plain_directory(file: File) -> bool:
    return type(file).sync is Directory.sync


def sync_results(files: Sequence[File], numbers: Sequence[int]) -> dict[File, StorageError]:
    """What failed of what a queue has done, if one has; the syncs that it left untried are done now."""
    failures: dict[File, StorageError] = {}
    for place, file in enumerate(files):
        number = numbers[place] if numbers else UNTRIED
        if number == UNTRIED:
            try:
                file.sync()
            except StorageError as error:
                failures[file] = error
        elif number:
            failures[file] = StorageError("sync", file.path, OSError(number, os.strerror(number)))
    return failures


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


@contextmanager
def _reported(action: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(action, path, error) from error
