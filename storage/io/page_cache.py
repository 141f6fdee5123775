"""What of a file lies in the page cache, asked of the kernel without waiting.

RULES    1. cachestat(2) counts the pages of a range. Pages that are being read count too; a reader would wait for
            them. They are the last ones of a range nearly always, so the last byte is asked for in a way that may
            not wait (preadv2 with RWF_NOWAIT).
         2. Where the kernel has no cachestat, or it does not know this file system, the first and the last byte
            speak for all; where it cannot be asked at all, everything counts as resident.
         3. ctypes is loaded by the first question: a start does not pay for it.
         4. The structures of the call are made once, so one object serves one thread.
NOT HERE Why, and what it costs: docs/decisions/0014-reads-never-block-the-loop.md
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Final

_CACHESTAT: Final = 451  # on every architecture
_PAGE: Final = os.sysconf("SC_PAGESIZE")
_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)
_NO_ANSWER: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})

Count = Callable[[int, int, int], int]
"""Descriptor, position, length: how many pages of the range are in the cache; -1 where that cannot be told."""


class Residency:
    """Asks the kernel, for one thread."""

    __slots__ = ("_count", "_scratch")

    def __init__(self) -> None:
        self._count: Count | None = None
        self._scratch = [bytearray(1)]

    def covers(self, descriptor: int, position: int, length: int) -> bool:
        """Whether a read of the range would not wait for the disk."""
        if length <= 0:
            return True
        last = position + length - 1
        if not self._is_at_hand(descriptor, last):
            return False
        pages = last // _PAGE - position // _PAGE + 1
        if pages == 1:
            return True
        cached = (self._count or self._load())(descriptor, position, length)
        return cached >= pages or (cached < 0 and self._is_at_hand(descriptor, position))

    def read(self, descriptor: int, position: int, length: int) -> bytearray | None:
        """What of the range can be read without waiting, in one call; None where the kernel has no such call."""
        if not _NOWAIT:
            return None
        data = bytearray(length)
        try:
            count = os.preadv(descriptor, (data,), position, _NOWAIT)
        except BlockingIOError:
            return bytearray()
        except OSError as error:
            if error.errno not in _NO_ANSWER:
                raise
            return None
        return data if count == length else data[:count]

    def cached_bytes(self, descriptor: int, position: int, length: int) -> int:
        """About how many bytes of the range are in the cache."""
        pages = (self._count or self._load())(descriptor, position, length)
        return length if pages < 0 else min(length, pages * _PAGE)

    def _is_at_hand(self, descriptor: int, position: int) -> bool:
        if not _NOWAIT:
            return True
        try:
            os.preadv(descriptor, self._scratch, position, _NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_ANSWER:
                raise
            return self._is_counted(descriptor, position)
        return True

    def _is_counted(self, descriptor: int, position: int) -> bool:
        return (self._count or self._load())(descriptor, position, 1) != 0

    def _load(self) -> Count:
        self._count = count = _cachestat() if sys.platform == "linux" else _unknown
        return count


def _unknown(descriptor: int, position: int, length: int) -> int:  # noqa: ARG001
    return -1


def _cachestat() -> Count:
    import ctypes  # noqa: PLC0415  # rule 3

    class Range(ctypes.Structure):
        _fields_ = (("position", ctypes.c_uint64), ("length", ctypes.c_uint64))

    class Statistics(ctypes.Structure):
        _fields_ = tuple((name, ctypes.c_uint64) for name in ("cached", "dirty", "written_back", "gone", "gone_lately"))

    asked, found = Range(), Statistics()
    asked_pointer, found_pointer = ctypes.byref(asked), ctypes.byref(found)
    system_call = ctypes.CDLL(None).syscall

    def count(descriptor: int, position: int, length: int) -> int:
        asked.position, asked.length = position, length
        if system_call(_CACHESTAT, descriptor, asked_pointer, found_pointer, 0):
            return -1
        return int(found.cached)

    return count
