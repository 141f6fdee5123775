"""fdatasync of many files at once by kernel threads (Linux AIO).

RULES    1. io_submit with IOCB_CMD_FDSYNC (Linux 4.18): the files share journal commits and device flushes, and no thread of
            ours waits. Each file has its own result, the same as of fdatasync, or of fsync for a directory.
         2. A request that the kernel does not accept is NOT_SUBMITTED: the caller syncs that file. `open` returns None without
            kernel support.
         3. A queue has one batch in flight. Its eventfd becomes readable when requests complete, and counts them; the
            results are read once, when all are complete.
         4. ctypes is imported by the first queue, so that it does not slow down the start. Calls that cannot block keep
            the GIL, since releasing it costs more than they do.
NOT HERE When to sync (broker/io/group_commit.py), failures (disk.py). Why: docs/decisions/0022-group-commit.md
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
NOT_SUBMITTED: Final = -1
_FSYNC: Final = 2
_FDSYNC: Final = 3
_NOTIFY_EVENTFD: Final = 1  # the request has an eventfd
_CALLS: Final = {
    "x86_64": (206, 209, 208, 207),
    "aarch64": (0, 2, 4, 1),
}  # io_setup, io_submit, io_getevents, io_destroy
# Data, key, flags, opcode, priority, descriptor; buffer, length, offset, reserved; flags, eventfd.
_REQUEST: Final = Struct("<QIiHhI32xII")
_EVENT: Final = Struct("<Q8xq8x")  # data, result


class SyncQueue:
    """A kernel AIO context with the buffers of its calls."""

    def __init__(self, calls: tuple[int, int, int, int]) -> None:
        import ctypes  # noqa: PLC0415  # rule 4

        self._call: Callable[..., int] = ctypes.PyDLL(None, use_errno=True).syscall
        self._waiting_call: Callable[..., int] = ctypes.CDLL(None, use_errno=True).syscall
        self._long: Callable[[int], Any] = ctypes.c_long
        self._errno = ctypes.get_errno
        setup, self._io_submit, self._io_getevents, self._io_destroy = map(ctypes.c_long, calls)
        self._requests = ctypes.create_string_buffer(_REQUEST.size * CAPACITY)
        self._events = ctypes.create_string_buffer(_EVENT.size * CAPACITY)
        first = ctypes.addressof(self._requests)
        self._pointers = (ctypes.c_void_p * CAPACITY)(*range(first, first + len(self._requests), _REQUEST.size))
        self._context = ctypes.c_ulong(0)
        self._results: list[int] = []
        self._in_flight = 0
        self._submitted = 0
        self._completed = 0  # completions counted by the eventfd
        self._descriptor = -1
        if self._call(setup, self._long(CAPACITY), ctypes.byref(self._context)):
            raise self._error()
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    @classmethod
    def open(cls) -> SyncQueue | None:
        """A new queue; None if the system does not support it."""
        calls = _CALLS.get(platform.machine())
        if sys.platform != "linux" or sys.byteorder != "little" or calls is None:
            return None
        try:
            return cls(calls)
        except OSError:
            return None

    def fileno(self) -> int:
        """The eventfd, readable when requests have completed (rule 3)."""
        return self._descriptor

    def submit(self, descriptors: Sequence[int], *, are_directories: bool = False) -> bool:
        """Submit syncs of at most CAPACITY files or directories; False if the kernel accepts none."""
        kind = _FSYNC if are_directories else _FDSYNC
        for index, descriptor in enumerate(descriptors):
            at = index * _REQUEST.size
            _REQUEST.pack_into(self._requests, at, index, 0, 0, kind, 0, descriptor, _NOTIFY_EVENTFD, self._descriptor)
        self._results = [NOT_SUBMITTED] * len(descriptors)
        submitted = self._call(self._io_submit, self._context, self._long(len(descriptors)), self._pointers)
        self._submitted = self._in_flight = max(submitted, 0)
        self._completed = 0
        return submitted > 0

    def poll(self) -> list[int] | None:
        """The result of each file: 0, an errno or NOT_SUBMITTED; None while any is in flight."""
        try:
            self._completed += os.eventfd_read(self._descriptor)
        except BlockingIOError:
            return None
        return None if self._completed < self._submitted else self._reap(self._call, 0)

    def wait(self) -> list[int]:
        """The results, after all have completed."""
        while (results := self._reap(self._waiting_call, self._in_flight)) is None:
            pass
        return results

    def close(self) -> None:
        """Destroy the context after all requests have completed; harmless when repeated. The system limits their number."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._waiting_call(self._io_destroy, self._context)
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()

    def _reap(self, call: Callable[..., int], min_events: int) -> list[int] | None:
        count = call(
            self._io_getevents, self._context, self._long(min_events), self._long(CAPACITY), self._events, None
        )
        if count < 0 and self._errno() != errno.EINTR:
            raise self._error()
        for at in range(max(count, 0)):
            index, result = _EVENT.unpack_from(self._events, at * _EVENT.size)
            self._results[index] = -result
            self._in_flight -= 1
        return None if self._in_flight else self._results

    def _error(self) -> OSError:
        number = self._errno()
        return OSError(number, os.strerror(number))
