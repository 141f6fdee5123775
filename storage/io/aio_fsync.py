"""fdatasync of many files at a time, done by threads of the kernel.

RULES    1. Linux does it (io_submit with IOCB_CMD_FDSYNC, since 4.18): the files share the commits of the file system's
            journal and the flushes of the device, and no thread of ours waits. Every file has an answer of its own, the
            one that fdatasync would give, or of a directory fsync.
         2. What the system does not take is UNTRIED: who asked syncs it by itself. Where it offers nothing, `open` says so.
         3. One queue has one round under way. Its descriptor is readable when some of it has ended, and counts these: the
            answers are fetched once.
         4. ctypes is loaded by the first queue: a start does not pay for it. Its calls that cannot wait keep the
            interpreter, since giving it away costs more than they do.
NOT HERE When to sync (broker/io/io_thread_pool.py), what a failure means (disk.py). Why so: docs/decisions/0022-group-commit.md
"""

from __future__ import annotations

import errno
import os
import platform
import sys
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final

CAPACITY: Final = 256
UNTRIED: Final = -1
_FSYNC: Final = 2
_FDSYNC: Final = 3
_TELLS: Final = 1  # the descriptor that the request names
_CALLS: Final = {
    "x86_64": (206, 209, 208, 207),
    "aarch64": (0, 2, 4, 1),
}  # io_setup, io_submit, io_getevents, io_destroy
# Data, key, flags, opcode, priority, descriptor; buffer, length, offset, reserved; flags, descriptor to tell.
_REQUEST: Final = Struct("<QIiHhI32xII")
_EVENT: Final = Struct("<Q8xq8x")  # data, result


class SyncQueue:
    """A queue of the kernel with the memory that its calls need."""

    def __init__(self, calls: tuple[int, int, int, int]) -> None:
        import ctypes  # noqa: PLC0415  # rule 4

        self._call: Callable[..., int] = ctypes.PyDLL(None, use_errno=True).syscall
        self._waiting_call: Callable[..., int] = ctypes.CDLL(None, use_errno=True).syscall
        self._long: Callable[[int], Any] = ctypes.c_long
        self._errno = ctypes.get_errno
        setup, self._submit, self._get_events, self._destroy = map(ctypes.c_long, calls)
        self._requests = ctypes.create_string_buffer(_REQUEST.size * CAPACITY)
        self._events = ctypes.create_string_buffer(_EVENT.size * CAPACITY)
        first = ctypes.addressof(self._requests)
        self._pointers = (ctypes.c_void_p * CAPACITY)(*range(first, first + len(self._requests), _REQUEST.size))
        self._context = ctypes.c_ulong(0)
        self._numbers: list[int] = []
        self._under_way = 0
        self._taken = 0
        self._told = 0  # at least as many of those that were taken have not ended as are missing here
        self._descriptor = -1
        if self._call(setup, self._long(CAPACITY), ctypes.byref(self._context)):
            raise self._error()
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    @classmethod
    def open(cls) -> SyncQueue | None:
        """A new queue; None where the system has none."""
        calls = _CALLS.get(platform.machine())
        if sys.platform != "linux" or sys.byteorder != "little" or calls is None:
            return None
        try:
            return cls(calls)
        except OSError:
            return None

    def fileno(self) -> int:
        """What is readable when something has ended (rule 3)."""
        return self._descriptor

    def begin(self, descriptors: Sequence[int], *, are_directories: bool = False) -> bool:
        """Begin to sync at most CAPACITY files, or directories; False where the system takes none."""
        kind = _FSYNC if are_directories else _FDSYNC
        for place, descriptor in enumerate(descriptors):
            at = place * _REQUEST.size
            _REQUEST.pack_into(self._requests, at, place, 0, 0, kind, 0, descriptor, _TELLS, self._descriptor)
        self._numbers = [UNTRIED] * len(descriptors)
        taken = self._call(self._submit, self._context, self._long(len(descriptors)), self._pointers)
        self._taken = self._under_way = max(taken, 0)
        self._told = 0
        return taken > 0

    def ended(self) -> list[int] | None:
        """Of each file 0, the error number of its sync, or UNTRIED; None while any is under way."""
        try:
            self._told += os.eventfd_read(self._descriptor)
        except BlockingIOError:
            return None
        return None if self._told < self._taken else self._reap(self._call, 0)

    def wait(self) -> list[int]:
        """The same, when all have ended."""
        while (numbers := self._reap(self._waiting_call, self._under_way)) is None:
            pass
        return numbers

    def close(self) -> None:
        """Give it back, when what is under way has ended; harmless when done already. The system has few to give."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._waiting_call(self._destroy, self._context)
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()

    def _reap(self, call: Callable[..., int], least: int) -> list[int] | None:
        count = call(self._get_events, self._context, self._long(least), self._long(CAPACITY), self._events, None)
        if count < 0 and self._errno() != errno.EINTR:
            raise self._error()
        for at in range(max(count, 0)):
            place, result = _EVENT.unpack_from(self._events, at * _EVENT.size)
            self._numbers[place] = -result
            self._under_way -= 1
        return None if self._under_way else self._numbers

    def _error(self) -> OSError:
        number = self._errno()
        return OSError(number, os.strerror(number))
