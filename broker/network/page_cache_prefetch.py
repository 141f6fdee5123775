"""Sends what is not in the page cache without making the loop wait for the disk (design D6, seeds.md I5).

RULES    1. Before a piece of a region goes to the socket, the kernel is asked whether all of it is in the page cache.
            If not, a reader thread reads it into the cache; the connection waits, all others go on.
         2. While a stretch is being sent, the next one is being read: a scan is as fast as its disk.
         3. Where reading leaves nothing in the cache (direct I/O, no memory), or a stretch was gone again before it could
            be sent, the thread hands over bytes, a bounded piece at a time: whatever the disk does, the answer leaves.
         4. What a scan has brought into the cache it gives back, `BEHIND_BYTES` behind itself. What lay there before,
            most of a stretch, stays: somebody else uses it.
NOT HERE Finding out where batches lie (storage/io/would_block.py), threads (`broker/io/io_thread_pool.py`).
"""

from __future__ import annotations

import logging
import os
from collections import Counter, deque
from collections.abc import Callable
from typing import Final
from weakref import ref

from protocol.records import FileRegion
from replication.io_executor import Worker
from storage.io.disk import File, StorageError

_log = logging.getLogger("barnabas.network")

STRETCH_BYTES: Final = 2 * 1024 * 1024
BEHIND_BYTES: Final = 8 * 1024 * 1024
HANDED_OVER_BYTES: Final = 256 * 1024
_FRUITLESS: Final = 16
"""So many stretches in a row that were read and left nothing in the page cache: their file system does not use it."""

Ready = Callable[["bytes | None", "StorageError | None"], None]
"""Told once, on the loop: the piece's first bytes where the cache does not keep them; why the disk failed."""

_Range = tuple["ref[File]", int, int]


class Warmer:
    """What all connections share: the threads, and what is known of the disks."""

    def __init__(self, worker: Worker, failed: Callable[[str, StorageError], None]) -> None:
        """`failed` is told of log directories that cannot be read."""
        self.worker = worker
        self.failed = failed
        self._fruitless: Counter[str] = Counter()

    def is_without_cache(self, directory: str) -> bool:
        """Whether reading there leaves nothing in the page cache."""
        return self._fruitless[directory] >= _FRUITLESS

    def was_read(self, directory: str, *, is_cached: bool) -> None:
        """Something was read there, and lies in the page cache now, or not."""
        if self.is_without_cache(directory):
            return
        self._fruitless[directory] = 0 if is_cached else self._fruitless[directory] + 1
        if self.is_without_cache(directory):
            _log.warning("%s does not use the page cache: what is read there is copied through this process", directory)


class Scan:
    """The cold reads of one connection."""

    __slots__ = ("_behind", "_behind_bytes", "_last", "_warmer")

    def __init__(self, warmer: Warmer) -> None:
        self._warmer = warmer
        self._behind: deque[_Range] = deque()  # what we brought into the cache, the oldest first
        self._behind_bytes = 0
        self._last: tuple[str, int] | None = None  # path and position

    @staticmethod
    def is_at_hand(region: FileRegion, skip: int, limit: int) -> bool:
        """Whether sending this much of a region, from `skip` bytes into it, waits for nothing."""
        file = region.file
        if not isinstance(file, File):
            return True
        try:
            return file.is_resident(region.position + skip, min(limit, region.length - skip))
        except StorageError:
            return False  # the thread will meet the error too, and knows whom to tell

    def fetch(self, region: FileRegion, skip: int, ready: Ready) -> None:
        """Have the stretch that begins `skip` bytes into a region read, and the one behind it too (rule 2)."""
        file = region.file
        assert isinstance(file, File)
        directory = os.path.dirname(os.path.dirname(file.path))
        position, left = region.position + skip, region.length - skip
        if self._last == (file.path, position) or self._warmer.is_without_cache(directory):
            self._hand_over(directory, file, position, min(left, HANDED_OVER_BYTES), ready)
            return
        self._last = file.path, position
        stretch = min(left, STRETCH_BYTES)
        self._warm(directory, file, position, stretch, ready)
        if left > stretch:
            self._warm(directory, file, position + stretch, min(left - stretch, STRETCH_BYTES), _no_matter)

    def _hand_over(self, directory: str, file: File, position: int, length: int, ready: Ready) -> None:
        found: list[bytes] = []

        def done(error: StorageError | None) -> None:
            if error is not None:
                self._warmer.failed(directory, error)
            ready(found[0] if found else None, error)

        self._warmer.worker.read(directory, lambda: found.append(file.pread(length, position)), done)

    def _warm(self, directory: str, file: File, position: int, length: int, ready: Ready) -> None:
        before, after = 0, 0
        doomed = self._too_far_behind()

        def run() -> None:
            nonlocal before, after
            for old, start, count in doomed:
                old_file = old()
                if old_file is not None:  # else its segment is deleted
                    old_file.drop_cache(start, count)
            before = file.cached_bytes(position, length)
            file.warm(position, length)
            after = file.cached_bytes(position, length)

        def done(error: StorageError | None) -> None:
            if error is not None:
                self._warmer.failed(directory, error)
            else:
                self._warmer.was_read(directory, is_cached=after > 0)
                if before < length // 2:
                    self._behind.append((ref(file), position, length))
                    self._behind_bytes += length
            ready(None, error)

        self._warmer.worker.read(directory, run, done)

    def _too_far_behind(self) -> list[_Range]:
        """What to give back now that two stretches more are going to be read (rule 4)."""
        doomed: list[_Range] = []
        while self._behind and self._behind_bytes + 2 * STRETCH_BYTES > BEHIND_BYTES:
            doomed.append(self._behind.popleft())
            self._behind_bytes -= doomed[-1][2]
        return doomed


def _no_matter(data: bytes | None, error: StorageError | None) -> None:
    """Nobody waits for this."""
