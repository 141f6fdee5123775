"""Access to the file system; all other modules of storage and replication use it.

RULES    1. Every system error is raised as `StorageError` with the path and the errno.
         2. A `File` has no position: every read and write passes one, so threads may share a file.
         3. `pwrite` writes everything or raises; the caller truncates the rest of a failed write.
         4. A descriptor is closed with the last reference to its `File`: a file that is still being sent stays readable,
            also after it was renamed or deleted. `close_deleted` closes those of deleted files.
         5. Mappings are read-only and are closed before their file is truncated: access beyond the end raises
            SIGBUS, and so does a store on a full disk.
         6. `sync` makes data and size durable (fdatasync); a name is durable after `sync_dir` of its directory.
         7. `sync_files` syncs plain files together; a subclass with its own `sync` is called instead.
         8. `is_resident` and the `..._if_resident` reads never block, and are for the event loop's thread only. Their answer
            may be outdated under memory pressure (docs/decisions/0014-reads-do-not-block-the-event-loop.md).
NOT HERE When to sync (flush_task.py), the contents. Tests and simulations subclass `Disk` and override `open`, or `File` and
         its two system calls.
"""
# Paths are plain strings: creating a Path costs more than the system call.

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from protocol.errors import without_frames
from protocol.primitives import Buffer
from storage.io.aio_fsync import CAPACITY, NOT_SUBMITTED, SyncQueue
from storage.io.file_lock import FileLock, lock_file
from storage.io.page_cache import PageCache, Span

_FADVISE_BYTES = 256 * 1024  # per fadvise call; the kernel may shorten a longer range
_MAX_BUFFERS = 1024  # of one pwritev
_READ_BYTES = 32 * 1024  # most of these files have a few bytes; each read allocates this buffer
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE
TEMPORARY = ".tmp"  # suffix of a file that replaces another one
DELETED = ".deleted"
"""Suffix of a file to be deleted; a deletion may take milliseconds."""


class StorageError(Exception):
    """A disk operation failed; the log directory goes offline."""

    def __init__(self, action: str, path: str, error: OSError | None = None) -> None:
        reason = "" if error is None else f": {error.strerror or error}"
        super().__init__(f"Cannot {action} {path}{reason}.")
        self.path = path
        self.errno = None if error is None else error.errno
        self.is_full = not action.startswith("sync") and self.errno in (errno.ENOSPC, errno.EDQUOT)
        """Whether only disk space is missing, so that a retry can succeed. A failed sync has lost data and is never retried."""
        self.is_locked = action == "lock" and self.errno in (0, errno.EAGAIN, errno.EACCES)
        """Whether another process holds the lock, or we may not take it."""


class Mapping(mmap.mmap):
    """A read-only mapping of a file's first bytes; it holds its own descriptor."""

    _disk: Disk

    def close(self) -> None:
        """Unmap; harmless when repeated."""
        super().close()
        self._disk.handle_closed(-id(self))

    def __del__(self) -> None:
        if not self.closed:
            self.close()


class File:
    """An open file with positional reads and writes."""

    __slots__ = ("__weakref__", "_descriptor", "_disk", "_has_read_ahead", "path", "sync_failure")

    def __init__(self, disk: Disk, path: str, descriptor: int) -> None:
        self._disk = disk
        self._descriptor = descriptor
        self._has_read_ahead = True  # that of the kernel
        self.path = path
        self.sync_failure: StorageError | None = None
        """Why a sync failed. All later ones fail too: the kernel would report success for data that it has dropped."""
        disk.handle_opened(descriptor)

    def __repr__(self) -> str:
        return f"File({self.path!r}, {self._descriptor})"

    def __del__(self) -> None:
        self.close()

    def fileno(self) -> int:
        """The descriptor, for sendfile; -1 when closed."""
        return self._descriptor

    def size(self) -> int:
        """The current size in bytes."""
        with _as_storage_error("ask the size of", self.path):
            return os.fstat(self._descriptor).st_size

    def modified_ms(self) -> int:
        """The time of the last modification, in wall milliseconds."""
        with _as_storage_error("ask the age of", self.path):
            return os.fstat(self._descriptor).st_mtime_ns // 1_000_000

    def pread(self, length: int, position: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""
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
        """The same without blocking; None if any of the bytes is not in the page cache."""
        try:
            data = self._disk.page_cache.read_resident(self._descriptor, position, length)
        except OSError as error:
            raise StorageError("read", self.path, error) from error
        if data is not None:
            return data if len(data) == length else None
        return self.pread(length, position) if self.is_resident(position, length) else None

    def read_spans_if_resident(self, spans: Sequence[Span], space: memoryview, limit: int) -> tuple[int, int]:
        """Read ranges into `space` without blocking, as `PageCache.read_resident_spans`."""
        try:
            return self._disk.page_cache.read_resident_spans(self._descriptor, spans, space, limit)
        except OSError as error:
            raise StorageError("read", self.path, error) from error

    def is_resident(self, position: int, length: int) -> bool:
        """Whether these existing bytes can be read without waiting for the disk."""
        try:
            return self._disk.page_cache.is_resident(self._descriptor, position, length)
        except OSError as error:
            raise StorageError("read", self.path, error) from error

    def cached_bytes(self, position: int, length: int) -> int:
        """The approximate number of these bytes in the page cache, including reads in progress; any thread."""
        return PageCache().cached_bytes(self._descriptor, position, length)

    def announce_reads(self, spans: Sequence[Span]) -> None:
        """Begin to read these ranges into the page cache; any thread."""
        if hasattr(os, "posix_fadvise"):
            with _as_storage_error("read", self.path):
                for position, length in spans:
                    os.posix_fadvise(self._descriptor, position, length, os.POSIX_FADV_WILLNEED)

    def prefetch(self, position: int, length: int, *, exactly: bool = True) -> int:
        """Read these bytes into the page cache; any thread. Returns how many there are: fewer only at the end of the file.

        `exactly`: no more than these, which disables the kernel's read-ahead for the file.
        """
        at, end = position, position + length
        with _as_storage_error("read", self.path):
            if hasattr(os, "posix_fadvise"):
                self._set_read_ahead(wanted=not exactly)
                for piece in range(position, end if exactly else position, _FADVISE_BYTES):
                    os.posix_fadvise(self._descriptor, piece, min(_FADVISE_BYTES, end - piece), os.POSIX_FADV_WILLNEED)
            while at < end:
                count = os.sendfile(self._disk.dev_null(), self._descriptor, at, end - at)
                if not count:
                    break
                at += count
        return at - position

    def _set_read_ahead(self, *, wanted: bool) -> None:
        """Enables or disables the kernel's read-ahead; without a system call if nothing changes."""
        if wanted != self._has_read_ahead:
            self._has_read_ahead = wanted
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_NORMAL if wanted else os.POSIX_FADV_RANDOM)

    def drop_cache(self, position: int, length: int) -> None:
        """Drop these bytes from the page cache, except pages that are in use or dirty."""
        if hasattr(os, "posix_fadvise"):
            with _as_storage_error("give back the cache of", self.path):
                os.posix_fadvise(self._descriptor, position, length, os.POSIX_FADV_DONTNEED)

    def pwrite(self, buffer: Buffer, position: int) -> None:
        """Write all of `buffer`."""
        length = len(buffer)
        try:
            written = self._write_some(buffer, position)
            while written < length:
                with memoryview(buffer) as view:
                    written += self._write_some(view[written:], position + written)
        except OSError as error:
            raise StorageError("write", self.path, error) from error

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all of the buffers, one after the other."""
        try:
            written = self._write_some_of(buffers[:_MAX_BUFFERS] if len(buffers) > _MAX_BUFFERS else buffers, position)
        except OSError as error:
            raise StorageError("write", self.path, error) from error
        if written < sum(map(len, buffers)):
            self.pwrite(b"".join(buffers)[written:], position + written)

    def truncate(self, size: int) -> None:
        """Truncate the file, or extend it with zeros."""
        with _as_storage_error("truncate", self.path):
            os.ftruncate(self._descriptor, size)

    def allocate(self, size: int) -> bool:
        """Allocate disk space for `size` bytes without changing the file size; a no-op if unsupported.

        Returns False if the disk is full: nothing is allocated.
        """
        import ctypes  # noqa: PLC0415  # rarely used

        system = ctypes.CDLL(None, use_errno=True)
        length = ctypes.c_int64(size)
        if not hasattr(system, "fallocate") or not system.fallocate(
            self._descriptor, _KEEP_SIZE, ctypes.c_int64(0), length
        ):
            return True
        number = ctypes.get_errno()
        if number not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOSPC):
            raise StorageError("reserve space for", self.path, OSError(number, os.strerror(number)))
        self.truncate(self.size())  # releases what a full disk could allocate
        return number != errno.ENOSPC

    def sync(self) -> None:
        """Make data and size durable; entries of a directory. A failure is final (`sync_failure`)."""
        if self.sync_failure is not None:
            raise self.sync_failure
        try:
            self.sync_once()
        except StorageError as error:
            self.sync_failure = error
            raise

    def map(self, length: int) -> Mapping:
        """Map the first `length` bytes, at least one, read-only."""
        try:
            mapping = Mapping(self._descriptor, length, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            cause = error if isinstance(error, OSError) else OSError(0, str(error))
            raise StorageError("map", self.path, cause) from error
        mapping._disk = self._disk  # noqa: SLF001
        self._disk.handle_opened(-id(mapping))
        return mapping

    def close(self) -> None:
        """Close the descriptor now; only if no other reference uses the file."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._disk.handle_closed(descriptor)
            close: Callable[[int], object] = os.close
            with suppress(OSError):  # the disk has failed
                close = os.close if os.fstat(descriptor).st_nlink else self._disk.close_deleted
            close(descriptor)

    def sync_once(self) -> None:
        """The system call of `sync`."""
        with _as_storage_error("sync", self.path):
            os.fdatasync(self._descriptor)

    def _read_some(self, length: int, position: int) -> bytes:
        return os.pread(self._descriptor, length, position)

    def _write_some(self, buffer: Buffer, position: int) -> int:
        return os.pwrite(self._descriptor, buffer, position)

    def _write_some_of(self, buffers: Sequence[Buffer], position: int) -> int:
        return os.pwritev(self._descriptor, buffers, position)


class Directory(File):
    """An open directory, for syncing its entries."""

    __slots__ = ()

    def sync_once(self) -> None:
        """As for a file."""
        with _as_storage_error("sync the directory", self.path):
            os.fsync(self._descriptor)


class Disk:
    """The file system; counts open descriptors."""

    def __init__(self) -> None:
        self._handles: set[int] = set()
        self.page_cache = PageCache()
        self._sync_queues: list[SyncQueue] = []  # idle queues, for blocking calls
        self._dev_null_descriptor: int | None = None
        self.close_deleted: Callable[[int], object] = os.close
        """Closes a descriptor of a deleted file: the kernel may free its blocks then, in a millisecond per MiB."""

    @property
    def open_files(self) -> int:
        """The number of open files and mappings."""
        return len(self._handles)

    def dev_null(self) -> int:
        """A descriptor of /dev/null."""
        if self._dev_null_descriptor is None:
            self._dev_null_descriptor = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        return self._dev_null_descriptor

    def handle_opened(self, handle: int) -> None:
        """Count a descriptor, or a mapping as minus its id."""
        self._handles.add(handle)

    def handle_closed(self, handle: int) -> None:
        """Remove a descriptor or mapping from the count."""
        self._handles.discard(handle)

    def open(self, path: str, *, write: bool, create: bool = False) -> File:
        """Open an existing file; `create` creates a missing one."""
        flags = (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0) | os.O_CLOEXEC
        try:
            return File(self, path, os.open(path, flags, 0o644))
        except OSError as error:
            raise StorageError("open", path, error) from error

    def open_directory(self, path: str) -> File:
        """Open a directory to sync it, also after a rename."""
        with _as_storage_error("open the directory", path):
            return Directory(self, path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def exists(self, path: str) -> bool:
        """Whether the path exists."""
        return self._stat(path) is not None

    def is_dir(self, path: str) -> bool:
        """Whether the path is a directory."""
        found = self._stat(path)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def _stat(self, path: str) -> os.stat_result | None:
        try:
            return os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StorageError("look at", path, error) from error

    def device_and_inode(self, path: str) -> tuple[int, int]:
        """The device and inode numbers, unique while the file exists."""
        with _as_storage_error("look at", path):
            status = os.stat(path)
        return status.st_dev, status.st_ino

    def stamp(self, path: str) -> str | None:
        """Inode, size, and time of the last change in nanoseconds (ctime, which no program can set); None if missing.

        Differs after every change of a file's contents or of a directory's names, and for a copy.
        """
        found = self._stat(path)
        return None if found is None else f"{found.st_ino}/{found.st_size}/{found.st_ctime_ns}"

    def listdir(self, path: str) -> list[str]:
        """The names in a directory, unordered."""
        with _as_storage_error("list", path):
            return os.listdir(path)

    def make_dirs(self, path: str) -> None:
        """Create a directory and its parents; a no-op if it exists."""
        with _as_storage_error("make the directory", path):
            os.makedirs(path, exist_ok=True)

    def restrict(self, path: str) -> None:
        """Allow only the owner to read a file or directory."""
        with _as_storage_error("change the mode of", path):
            os.chmod(path, 0o700 if self.is_dir(path) else 0o600)

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory; an existing target file is replaced."""
        with _as_storage_error(f"rename {source} to", target):
            os.rename(source, target)

    def unlink(self, path: str, *, missing_ok: bool = False) -> None:
        """Delete a file."""
        try:
            os.unlink(path)
        except FileNotFoundError as error:
            if not missing_ok:
                raise StorageError("delete", path, error) from error
        except OSError as error:
            raise StorageError("delete", path, error) from error

    def remove_tree(self, path: str) -> None:
        """Delete a directory tree; a no-op if it does not exist."""
        with _as_storage_error("delete", path):
            for root, directories, files in os.walk(path, topdown=False):
                for name in files:
                    os.unlink(f"{root}/{name}")
                for name in directories:
                    remove = os.unlink if os.path.islink(f"{root}/{name}") else os.rmdir
                    remove(f"{root}/{name}")
            if os.path.lexists(path):
                os.rmdir(path)

    def size(self, path: str) -> int:
        """The size of a file in bytes."""
        with _as_storage_error("ask the size of", path):
            return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        """The time of the last modification, in wall milliseconds."""
        with _as_storage_error("ask the age of", path):
            return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, wall_ms: int) -> None:
        """Set the time of the last modification."""
        with _as_storage_error("set the age of", path):
            os.utime(path, ns=(wall_ms * 1_000_000, wall_ms * 1_000_000))

    def read(self, path: str) -> bytes:
        """The contents of a small file."""
        data = b""
        with _as_storage_error("read", path):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # io.open makes three times as many system calls
            try:
                while more := os.read(descriptor, _READ_BYTES):
                    data += more
            finally:
                os.close(descriptor)
        return data

    def write_temporary(self, path: str, data: Buffer, suffix: str = TEMPORARY, *, is_private: bool = False) -> File:
        """Write new contents of `path` to a temporary file; `commit_temporary` renames it after a sync.

        `is_private`: only the owner can read it, before it has contents.
        """
        file = self.open(path + suffix, write=True, create=True)
        if is_private:
            self.restrict(path + suffix)
        file.truncate(0)
        file.pwrite(data, 0)
        return file

    def commit_temporary(self, path: str, suffix: str = TEMPORARY) -> None:
        """Rename the temporary file into place."""
        self.rename(path + suffix, path)

    def replace_atomically(
        self, path: str, data: Buffer, *, sync: bool = True, suffix: str = TEMPORARY, is_private: bool = False
    ) -> None:
        """Replace a file's contents: a reader, also after a crash, finds the old or the new ones.

        `suffix`: of the temporary file; concurrent writers need different ones.
        """
        file = self.write_temporary(path, data, suffix, is_private=is_private)
        try:
            if sync:
                file.sync()
        finally:
            file.close()
        self.commit_temporary(path, suffix)
        if sync:
            self.sync_dir(os.path.dirname(path) or ".")

    def sync_dir(self, path: str) -> None:
        """Make created, renamed and removed entries of a directory durable."""
        directory = self.open_directory(path)
        try:
            directory.sync()
        finally:
            directory.close()

    def sync_queue(self) -> SyncQueue | None:
        """A queue for syncs without blocking; None if the system does not support it."""
        return SyncQueue.open()

    def sync_files(self, files: Sequence[File]) -> dict[File, StorageError]:
        """Sync many files and directories; returns the failures, which are final."""
        plain = [file for file in files if is_plain(file)]
        directories = [file for file in files if type(file).sync_once is Directory.sync_once]
        others = [file for file in files if type(file).sync_once not in (File.sync_once, Directory.sync_once)]
        failures = sync_results(others, [])
        for group in (plain, directories):
            for start in range(0, len(group), CAPACITY):
                queued = group[start : start + CAPACITY]
                results = self._sync_by_queue(queued, are_directories=group is directories)
                failures |= sync_results(queued, results)
        return failures

    def _sync_by_queue(self, files: Sequence[File], *, are_directories: bool) -> list[int]:
        """The results of a queue (aio_fsync.py); empty if none was submitted."""
        queue = None
        if len(files) > 1:
            queue = self._sync_queues.pop() if self._sync_queues else self.sync_queue()
        if queue is None or not queue.submit([file.fileno() for file in files], are_directories=are_directories):
            return []
        results = queue.wait()
        self._sync_queues.append(queue)
        return results

    def sync_dirs(self, paths: Sequence[str]) -> dict[str, StorageError]:
        """Sync the entries of many directories; returns the failures."""
        failures: dict[str, StorageError] = {}
        directories: list[File] = []
        for path in paths:
            try:
                directories.append(self.open_directory(path))
            except StorageError as error:
                failures[path] = without_frames(error)
        return failures | {file.path: error for file, error in self.sync_files(directories).items()}

    def sync_all(self, path: str, write_out: Callable[[], None]) -> None:
        """Call `write_out`, then make all its writes on the file system of `path` durable (syncfs).

        One call for thousands of files; it reports any error of these writes.
        """
        import ctypes  # noqa: PLC0415  # only for a shutdown with many logs

        with _as_storage_error("sync the file system of", path):
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

    def lock(self, path: str) -> FileLock:
        """Lock a file (file_lock.py)."""
        with _as_storage_error("lock", path):
            return lock_file(path)

    def space(self, path: str) -> tuple[int, int]:
        """The total and the usable bytes of the file system of `path`."""
        with _as_storage_error("ask the space of", path):
            status = os.statvfs(path)
        return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize


def is_plain(file: File) -> bool:
    """Whether a kernel queue may sync the file instead of its own method."""
    return type(file).sync_once is File.sync_once


def sync_results(files: Sequence[File], results: Sequence[int]) -> dict[File, StorageError]:
    """The failures among the results of a queue (aio_fsync.py), which are empty if none was submitted.

    Files that were not submitted are synced now.
    """
    failures: dict[File, StorageError] = {}
    for file, number in zip(files, results or [NOT_SUBMITTED] * len(files), strict=True):
        if number == NOT_SUBMITTED:
            try:
                file.sync()
            except StorageError as error:
                failures[file] = without_frames(error)
        elif file.sync_failure is not None:
            failures[file] = file.sync_failure
        elif number:
            file.sync_failure = failures[file] = StorageError("sync", file.path, OSError(number, os.strerror(number)))
    return failures


@contextmanager
def _as_storage_error(action: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(action, path, error) from error
