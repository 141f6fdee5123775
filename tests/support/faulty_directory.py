"""A directory on a slow or failing disk: a FUSE file system over /dev/fuse.

FORMAT   the kernel's FUSE protocol 7.31: requests and answers with headers of 40 and 16 bytes, little-endian here
RULES    1. Everything is passed through to a normal directory. Reads and writes of data, syncs, and changes of names
            and sizes first wait for the delay of `slow_down`; name look-ups do not.
         2. A waiting operation does not block others: latency is simulated, not throughput.
         3. The operations of `fail` return EIO without effect. The kernel serves cached data, as with any disk, until
            `forget_cache`.
         4. The file system is a separate process. It ends, with the mount, at the end of its standard input, which has
            one command per line; it confirms each.
         5. It needs root and Linux; `why_fuse_is_unavailable` returns the missing condition.
NOT HERE Disks of unit tests, which fail inside our own process (faulty_disk.py, crashing_disk.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import Final, Self

from tests.support.line_process import LineProcess

DEVICE: Final = "/dev/fuse"
_DETACH: Final = 2
_NOSUID_NODEV: Final = 2 | 4
_THREADS: Final = 32
_MAX_WRITE: Final = 1 << 20
_ROOT: Final = 1
_CACHE_S: Final = 3600
_KEEP_CACHE: Final = 2
_FLAGS: Final = 1 | 1 << 5 | 1 << 18 | 1 << 22  # async reads, big writes, parallel directory operations, max_pages
_SIZE, _MODE, _TIMES = 8, 1, 16 | 32

_IN: Final = struct.Struct("<IIQQIIIHH")
_OUT: Final = struct.Struct("<IiQ")
_ATTRIBUTES: Final = struct.Struct("<6Q10I")
_IO: Final = struct.Struct("<QQII")

(
    LOOKUP, FORGET, GETATTR, SETATTR, MKDIR, UNLINK, RMDIR, RENAME, OPEN, READ, WRITE, STATFS, RELEASE, FSYNC, FLUSH,
    INIT, OPENDIR, READDIR, RELEASEDIR, FSYNCDIR, ACCESS, CREATE, INTERRUPT, DESTROY, BATCH_FORGET, RENAME2,
) = (1, 2, 3, 4, 9, 10, 11, 12, 14, 15, 16, 17, 18, 20, 25, 26, 27, 28, 29, 30, 34, 35, 36, 38, 42, 45)  # fmt: skip
_SLOW: Final = frozenset({READ, WRITE, FSYNC, FSYNCDIR, CREATE, MKDIR, UNLINK, RMDIR, RENAME, RENAME2, SETATTR})
_FAILING: Final = {
    "write": frozenset({WRITE, SETATTR}),
    "sync": frozenset({FSYNC, FSYNCDIR}),
    "read": frozenset({READ}),
    "rename": frozenset({RENAME, RENAME2}),
    "list": frozenset({OPENDIR, READDIR}),
    "everything": _SLOW | {LOOKUP, GETATTR, OPEN, STATFS, OPENDIR, READDIR},
}
_FORGET_INODE: Final = 2  # a message of ours to the kernel
_WITHOUT_ANSWER: Final = frozenset({FORGET, BATCH_FORGET, INTERRUPT, DESTROY})


def why_fuse_is_unavailable() -> str | None:
    """Why no such directory can be mounted, as a sentence; None if one can."""
    if not sys.platform.startswith("linux") or not os.path.exists(DEVICE):
        return f"there is no {DEVICE}"
    if os.geteuid() != 0:
        return "only root may mount"
    return None


class FaultyDirectory:
    """A mounted directory for the `with` block; initially fast and without errors."""

    def __init__(self, backing: Path, mountpoint: Path) -> None:
        self.path = mountpoint
        self._backing = backing

    def __enter__(self) -> Self:
        self._backing.mkdir(parents=True, exist_ok=True)
        self.path.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tests.support.faulty_directory", str(self._backing), str(self.path)]
        self._process = LineProcess(command, cwd=Path(__file__).parents[2])
        assert self._process.read_line() == "mounted"
        return self

    def slow_down(self, delay_s: float) -> None:
        """Delay every slow operation; 0 removes the delay."""
        self._tell("delay", delay_s)

    def fail(self, *kinds: str) -> None:
        """Fail these operations: write, sync, read, rename, list, or everything; none without arguments."""
        assert set(kinds) <= set(_FAILING)
        self._tell("fail", *kinds)

    def forget_cache(self) -> None:
        """Invalidate the kernel's cache: reads reach the disk."""
        self._tell("forget")

    def unmount(self) -> None:
        """Unmount lazily, with open files; the directory below the mount becomes visible."""
        _unmount(str(self.path))

    def _tell(self, *words: object) -> None:
        assert self._process.ask(" ".join(map(str, words))) == "so be it"

    def __exit__(self, *_: object) -> None:
        self._process.stop()
        _unmount(str(self.path))  # it has done so itself, unless it had to be killed


class _Node:
    """A file or directory with a kernel node number."""

    def __init__(self, parent: int, name: bytes) -> None:
        self.parent = parent
        self.name = name
        self.handles: set[int] = set()


class _Tree:
    """Names and numbers of the looked-up nodes."""

    def __init__(self, backing: str) -> None:
        self._backing = os.fsencode(backing)
        self._nodes: dict[int, _Node] = {_ROOT: _Node(0, b"")}
        self._numbers: dict[tuple[int, bytes], int] = {}
        self._next = _ROOT
        self._lock = Lock()

    def path(self, number: int, name: bytes | None = None) -> bytes:
        """The path in the backing directory."""
        with self._lock:
            names = [] if name is None else [name]
            while number != _ROOT:
                node = self._nodes[number]
                names.append(node.name)
                number = node.parent
        return b"/".join([self._backing, *reversed(names)])

    def number(self, parent: int, name: bytes) -> int:
        """The number of a name, assigned at its first lookup."""
        with self._lock:
            found = self._numbers.get((parent, name))
            if found is None:
                found = self._next = self._next + 1
                self._numbers[parent, name] = found
                self._nodes[found] = _Node(parent, name)
            return found

    def forget(self, parent: int, name: bytes) -> None:
        """Remove a name; open handles stay valid."""
        with self._lock:
            self._numbers.pop((parent, name), None)

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes) -> None:
        """Rename a node."""
        with self._lock:
            number = self._numbers.pop((parent, name), None)
            self._numbers.pop((new_parent, new_name), None)
            if number is not None:
                self._numbers[new_parent, new_name] = number
                node = self._nodes[number]
                node.parent, node.name = new_parent, new_name

    def handles(self, number: int) -> set[int]:
        """The open descriptors of a node."""
        return self._nodes[number].handles

    def numbers(self) -> list[int]:
        """All node numbers."""
        with self._lock:
            return list(self._nodes)


class _FileSystem:
    """Answers the kernel's requests."""

    def __init__(self, backing: str) -> None:
        self.delay_s = 0.0
        self.failing: frozenset[int] = frozenset()
        self._tree = _Tree(backing)
        self._answers: dict[int, Callable[[int, memoryview], bytes]] = {
            INIT: self._init, LOOKUP: self._lookup, GETATTR: self._getattr, SETATTR: self._setattr,
            MKDIR: self._mkdir, UNLINK: partial(self._remove, os.unlink), RMDIR: partial(self._remove, os.rmdir),
            RENAME: self._rename, RENAME2: self._rename2, OPEN: self._open, CREATE: self._create, READ: self._read,
            WRITE: self._write, STATFS: self._statfs, RELEASE: self._release, FSYNC: self._fsync, FLUSH: _nothing,
            OPENDIR: self._opendir, READDIR: self._readdir, RELEASEDIR: _nothing, FSYNCDIR: _nothing, ACCESS: _nothing,
        }  # fmt: skip

    def serve(self, device: int) -> None:
        """Answer until the unmount; runs in several threads."""
        while True:
            try:
                request = os.read(device, _MAX_WRITE + 8192)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR):  # the request was interrupted
                    continue
                return
            if not request:
                return
            length, opcode, unique, node, *_ = _IN.unpack_from(request)
            if opcode in _WITHOUT_ANSWER:
                continue
            if self.delay_s and opcode in _SLOW:
                time.sleep(self.delay_s)
            code, body = self._answer(opcode, node, memoryview(request)[_IN.size : length])
            with contextlib.suppress(FileNotFoundError):  # the request that waited for this answer has ended
                os.write(device, _OUT.pack(_OUT.size + len(body), -code, unique) + body)

    def forget(self, device: int) -> None:
        """Invalidate the kernel's cache of all files."""
        for number in self._tree.numbers():
            body = struct.pack("<QqQ", number, 0, 0)
            with contextlib.suppress(FileNotFoundError):  # it has forgotten the file already
                os.write(device, _OUT.pack(_OUT.size + len(body), _FORGET_INODE, 0) + body)

    def _answer(self, opcode: int, node: int, body: memoryview) -> tuple[int, bytes]:
        if opcode in self.failing:
            return errno.EIO, b""
        answer = self._answers.get(opcode)
        if answer is None:
            return errno.ENOSYS, b""
        try:
            return 0, answer(node, body)
        except OSError as error:
            return error.errno or errno.EIO, b""
        except KeyError:
            return errno.ESTALE, b""

    def _init(self, _: int, body: memoryview) -> bytes:
        major, _, readahead, flags = struct.unpack_from("<4I", body)
        return struct.pack("<4IHHIIHHI28x", major, 31, readahead, flags & _FLAGS, 64, 48, _MAX_WRITE, 1, 256, 0, 0)

    # ---- names -------------------------------------------------------------------------------------------
    def _lookup(self, parent: int, body: memoryview) -> bytes:
        return self._entry(parent, _name(body))

    def _mkdir(self, parent: int, body: memoryview) -> bytes:
        name = _name(body[8:])
        os.mkdir(self._tree.path(parent, name), struct.unpack_from("<I", body)[0])
        return self._entry(parent, name)

    def _remove(self, remove: Callable[[bytes], None], parent: int, body: memoryview) -> bytes:
        remove(self._tree.path(parent, _name(body)))
        self._tree.forget(parent, _name(body))
        return b""

    def _rename(self, parent: int, body: memoryview, names_at: int = 8) -> bytes:
        (new_parent,) = struct.unpack_from("<Q", body)
        old, new, _ = bytes(body[names_at:]).split(b"\0", 2)
        os.rename(self._tree.path(parent, old), self._tree.path(new_parent, new))
        self._tree.rename(parent, old, new_parent, new)
        return b""

    def _rename2(self, parent: int, body: memoryview) -> bytes:
        if struct.unpack_from("<8xI", body)[0]:
            raise OSError(errno.EINVAL, "no flags are known")
        return self._rename(parent, body, 16)

    def _opendir(self, _: int, __: memoryview) -> bytes:
        return struct.pack("<QII", 0, 0, 0)

    def _readdir(self, node: int, body: memoryview) -> bytes:
        _, offset, size, _ = _IO.unpack_from(body)
        entries = bytearray()
        for place, name in enumerate(sorted(os.listdir(self._tree.path(node))), 1):
            padded = -(-(24 + len(name)) // 8) * 8
            if place <= offset:
                continue
            if len(entries) + padded > size:
                break
            entries += (struct.pack("<QQII", place + 1, place, len(name), 0) + name).ljust(padded, b"\0")
        return bytes(entries)

    def _entry(self, parent: int, name: bytes) -> bytes:
        found = os.lstat(self._tree.path(parent, name))
        number = self._tree.number(parent, name)
        return struct.pack("<QQQQII", number, 0, _CACHE_S, _CACHE_S, 0, 0) + _attributes(number, found)

    # ---- attributes --------------------------------------------------------------------------------------
    def _getattr(self, node: int, _: memoryview) -> bytes:
        handles = self._tree.handles(node)
        found = os.fstat(next(iter(handles))) if handles else os.lstat(self._tree.path(node))
        return struct.pack("<QII", _CACHE_S, 0, 0) + _attributes(node, found)

    def _setattr(self, node: int, body: memoryview) -> bytes:
        valid, _, _, size, _, atime, mtime = struct.unpack_from("<II5Q", body)
        handles = self._tree.handles(node)
        target: int | bytes = next(iter(handles)) if handles else self._tree.path(node)
        if valid & _SIZE:
            os.truncate(target, size)
        if valid & _MODE:
            os.chmod(target, stat.S_IMODE(struct.unpack_from("<68xI", body)[0]))
        if valid & _TIMES == _TIMES:
            os.utime(target, (atime, mtime))
        return self._getattr(node, body)

    def _statfs(self, node: int, _: memoryview) -> bytes:
        it = os.statvfs(self._tree.path(node))
        return struct.pack(
            "<5Q3I28x",
            it.f_blocks,
            it.f_bfree,
            it.f_bavail,
            it.f_files,
            it.f_ffree,
            it.f_bsize,
            it.f_namemax,
            it.f_frsize,
        )

    # ---- data --------------------------------------------------------------------------------------------
    def _open(self, node: int, body: memoryview) -> bytes:
        return self._opened(node, os.open(self._tree.path(node), _plain(struct.unpack_from("<I", body)[0])))

    def _create(self, parent: int, body: memoryview) -> bytes:
        flags, mode = struct.unpack_from("<II", body)
        name = _name(body[16:])
        descriptor = os.open(self._tree.path(parent, name), _plain(flags) | os.O_CREAT, mode)
        entry = self._entry(parent, name)
        return entry + self._opened(self._tree.number(parent, name), descriptor)

    def _opened(self, node: int, descriptor: int) -> bytes:
        self._tree.handles(node).add(descriptor)
        return struct.pack("<QII", descriptor, _KEEP_CACHE, 0)

    def _read(self, _: int, body: memoryview) -> bytes:
        handle, offset, size, _ = _IO.unpack_from(body)
        return os.pread(handle, size, offset)

    def _write(self, _: int, body: memoryview) -> bytes:
        handle, offset, size, _ = _IO.unpack_from(body)
        return struct.pack("<II", os.pwrite(handle, body[40 : 40 + size], offset), 0)

    def _fsync(self, _: int, body: memoryview) -> bytes:
        os.fdatasync(struct.unpack_from("<Q", body)[0])
        return b""

    def _release(self, node: int, body: memoryview) -> bytes:
        (handle,) = struct.unpack_from("<Q", body)
        self._tree.handles(node).discard(handle)
        os.close(handle)
        return b""


def _nothing(_: int, __: memoryview) -> bytes:
    return b""


def _name(body: memoryview) -> bytes:
    return bytes(body).split(b"\0", 1)[0]


def _plain(flags: int) -> int:
    """The open flags without those that the kernel handles itself; it may write back through any descriptor."""
    access = os.O_RDWR if flags & os.O_ACCMODE else os.O_RDONLY
    return access | flags & (os.O_TRUNC | os.O_EXCL) | os.O_CLOEXEC


def _attributes(number: int, found: os.stat_result) -> bytes:
    times = [found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns]
    return _ATTRIBUTES.pack(
        number, found.st_size, found.st_blocks, *(ns // 10**9 for ns in times), *(ns % 10**9 for ns in times),
        found.st_mode, found.st_nlink, found.st_uid, found.st_gid, 0, 4096, 0,
    )  # fmt: skip


def _mount(device: int, mountpoint: str) -> None:
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    system = ctypes.CDLL(None, use_errno=True)
    if system.mount(b"slow", os.fsencode(mountpoint), b"fuse", _NOSUID_NODEV, options.encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), mountpoint)


def _unmount(mountpoint: str) -> None:
    ctypes.CDLL(None).umount2(os.fsencode(mountpoint), _DETACH)


def main(backing: str, mountpoint: str) -> None:
    """Mount and serve until the end of standard input; commands as in `FaultyDirectory`."""
    device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    _mount(device, mountpoint)
    file_system = _FileSystem(os.path.realpath(backing))
    for _ in range(_THREADS):
        Thread(target=file_system.serve, args=(device,), daemon=True).start()
    print("mounted", flush=True)
    for line in sys.stdin:
        what, *words = line.split()
        if what == "delay":
            file_system.delay_s = float(words[0])
        elif what == "fail":
            file_system.failing = frozenset().union(*(_FAILING[word] for word in words))
        else:
            file_system.forget(device)
        print("so be it", flush=True)
    file_system.delay_s, file_system.failing = 0.0, frozenset()
    _unmount(mountpoint)


if __name__ == "__main__":
    main(*sys.argv[1:])
