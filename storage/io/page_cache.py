"""Queries the page cache without blocking.

RULES    1. cachestat(2) counts the pages of a range, including pages that are still being read, for which a reader would
            wait. These are nearly always the last of a range, so the last byte is also read with preadv2(RWF_NOWAIT).
         2. Without cachestat, or on a file system without support, the first and last byte represent the range; without
            RWF_NOWAIT, everything counts as resident.
         3. ctypes is imported at the first query, so that it does not slow down the start.
         4. The structures of the call are allocated once: one object serves one thread.
         5. cachestat is called with the interpreter locked (PyDLL): it takes less time than to get the lock back.
NOT HERE Why, and the cost: docs/decisions/0014-reads-do-not-block-the-event-loop.md
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

_CACHESTAT: Final = 451  # on every architecture
_PAGE: Final = os.sysconf("SC_PAGESIZE")
MAX_GAP_BYTES: Final = 4096
"""Between two ranges that are read together: reading the gap costs less than another call."""
_RANGES_PER_CALL: Final = 512  # they and their gaps are the buffers of one system call
_FAR: Final = -MAX_GAP_BYTES - 1  # the end of a range that is near no other
_UNUSED: Final = memoryview(bytearray(MAX_GAP_BYTES))
_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)
_NO_ANSWER: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})

Span = tuple[int, int]
"""Position and length of a range."""

Count = Callable[[int, int, int], int]
"""Descriptor, position, length -> number of cached pages; -1 if unknown."""


class PageCache:
    """Queries for one thread."""

    __slots__ = ("_count", "_scratch")

    def __init__(self) -> None:
        self._count: Count | None = None
        self._scratch = [bytearray(1)]

    def is_resident(self, descriptor: int, position: int, length: int) -> bool:
        """Whether a read of the range would not wait for the disk."""
        if length <= 0:
            return True
        last = position + length - 1
        if not self._is_byte_resident(descriptor, last):
            return False
        pages = last // _PAGE - position // _PAGE + 1
        if pages == 1:
            return True
        cached = (self._count or self._load())(descriptor, position, length)
        return cached >= pages or (cached < 0 and self._is_byte_resident(descriptor, position))

    def read_resident(self, descriptor: int, position: int, length: int) -> bytearray | None:
        """The resident part of the range, in one call; None if the kernel does not support it."""
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

    def read_resident_spans(
        self, descriptor: int, spans: Sequence[Span], space: memoryview, limit: int
    ) -> tuple[int, int]:
        """Read ranges of a file, one after the other, into `space`; returns how many, and their bytes.

        Ends before a range that is longer than `limit`, does not fit or is not resident; at once without support of the kernel.
        """
        done = filled = 0
        if not _NOWAIT:
            return done, filled
        end, room, preadv = _FAR, len(space), os.preadv
        try:
            for number, (position, length) in enumerate(spans):
                if number < done:
                    continue
                after = filled + length
                if length > limit or after > room:
                    break
                if end <= position <= end + MAX_GAP_BYTES:
                    done, filled = _read_group(descriptor, spans, number, space, filled, limit)
                    end = _FAR
                elif preadv(descriptor, (space[filled:after],), position, _NOWAIT) == length:
                    end = position + length
                    filled = after
                    done += 1
                if number == done:
                    break
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno not in _NO_ANSWER:
                raise
        return done, filled

    def cached_bytes(self, descriptor: int, position: int, length: int) -> int:
        """The approximate number of cached bytes in the range."""
        pages = (self._count or self._load())(descriptor, position, length)
        return length if pages < 0 else min(length, pages * _PAGE)

    def _is_byte_resident(self, descriptor: int, position: int) -> bool:
        if not _NOWAIT:
            return True
        try:
            os.preadv(descriptor, self._scratch, position, _NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_ANSWER:
                raise
            return self._is_page_cached(descriptor, position)
        return True

    def _is_page_cached(self, descriptor: int, position: int) -> bool:
        return (self._count or self._load())(descriptor, position, 1) != 0

    def _load(self) -> Count:
        self._count = count = _cachestat()() if sys.platform == "linux" else (lambda *_: -1)
        return count


def _read_group(
    descriptor: int, spans: Sequence[Span], first: int, space: memoryview, filled: int, limit: int
) -> tuple[int, int]:
    """Read ranges with small gaps by one call, the gaps into a buffer that nothing uses.

    Returns the number of the range after them, and how much of the space is filled.
    """
    buffers: list[memoryview] = []
    position = end = spans[first][0]
    used, last = filled, min(first + _RANGES_PER_CALL, len(spans))
    for number in range(first, last):
        begin, length = spans[number]
        if not 0 <= begin - end <= MAX_GAP_BYTES or length > limit or used + length > len(space):
            last = number
            break
        if begin > end:
            buffers.append(_UNUSED[: begin - end])
        buffers.append(space[used : used + length])
        used, end = used + length, begin + length
    end = position + os.preadv(descriptor, buffers, position, _NOWAIT)
    done = first
    while done < last and sum(spans[done]) <= end:
        filled += spans[done][1]
        done += 1
    return done, filled


@cache
def _cachestat() -> Callable[[], Count]:
    """Makes functions for one thread each (rule 4). What all of them share, 100 us of CPU, is made once."""
    import ctypes  # noqa: PLC0415  # rule 3

    class Range(ctypes.Structure):
        _fields_ = (("position", ctypes.c_uint64), ("length", ctypes.c_uint64))

    class Statistics(ctypes.Structure):
        _fields_ = tuple(
            (name, ctypes.c_uint64) for name in ("cached", "dirty", "written_back", "evicted", "recently_evicted")
        )

    byref, system_call = ctypes.byref, ctypes.PyDLL(None).syscall

    def new_count() -> Count:
        request, result = Range(), Statistics()
        request_pointer, result_pointer = byref(request), byref(result)

        def count(descriptor: int, position: int, length: int) -> int:
            request.position, request.length = position, length
            if system_call(_CACHESTAT, descriptor, request_pointer, result_pointer, 0):
                return -1
            return int(result.cached)

        return count

    return new_count
