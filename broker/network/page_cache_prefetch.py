"""Reads uncached log regions into the page cache, so that sendfile(2) does not block the event loop.

RULES    1. Before a piece of a region is sent, the kernel is asked whether all of it is in the page cache. If not, a reader
            thread reads it into the cache. That connection waits; all others continue.
         2. Reads that continue each other, or begin with the file, are a scan. A thread reads what follows while a piece is
            sent, up to twice as much, also beyond the region's end. It uses the kernel's read-ahead, whose large folios cost
            a third of single pages. A page where the kernel continues its read-ahead must not be sent first by the event
            loop, which might wait for the disk: so of a scan only what a thread has passed is sent. A scan ends at the end of
            the file, or if READ_AHEAD_BYTES that follow were cached before. All other reads are exact, also of a piece that is
            mostly cached where a scan would begin: the kernel has reclaimed some of its pages.
         3. If reading leaves nothing in the cache (direct I/O, no memory), or a piece was evicted before it was sent, the
            thread returns the bytes themselves, in bounded pieces. So every response makes progress.
         4. What all connections bring into the cache is at most 1/KEPT_SHARE of the memory, then the oldest of it is evicted:
            a scan does not displace what others use, and readers of the same records read them from disk once. A piece that
            was mostly cached before stays, of a scan if what follows it was too: another reader uses it.
         5. The ranges of a scattered region are read by one job, PREFETCH_BYTES at a time, and stay: their pages contain the
            batches of other partitions.
         6. The region after the one that is waited for is read before what only a later request needs (rule 2).
NOT HERE Finding batches in a log (storage/io/disk_lookup.py), threads (`broker/io/io_thread_pool.py`).
"""

from __future__ import annotations

import logging
import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple
from weakref import ref

from protocol.file_region import FileRegion, HasFileno
from replication.completion import Completion
from replication.io_executor import IoExecutor, IoResult
from storage.io.disk import File, StorageError
from storage.io.page_cache import Span

_log = logging.getLogger("barnabas.network")

PREFETCH_BYTES: Final = 2 * 1024 * 1024
KEPT_SHARE: Final = 16
MIN_KEPT_BYTES: Final = 8 * 1024 * 1024
_MIN_RANGE_BYTES: Final = 128 * 1024
"""A shorter range counts as this many bytes, so that few are remembered."""
DIRECT_READ_BYTES: Final = 256 * 1024
_MAX_UNCACHED_READS: Final = 16
"""After this many consecutive reads that leave nothing in the page cache, the file system counts as one without cache."""
READ_AHEAD_BYTES: Final = 32 * 1024 * 1024
"""The kernel reads less ahead: at most twice read_ahead_kb, which is 128 KiB by default."""
_MAX_SCANS: Final = 1024
COPIED_RANGE_BYTES: Final = 64 * 1024
COPIED_BYTES_PER_CALL: Final = 192 * 1024


class _Range(NamedTuple):
    """A range of a file that a prefetch brought into the page cache."""

    file: ref[File]
    position: int
    length: int


class _Scan(NamedTuple):
    """The last reads of a file from the disk."""

    end: int
    """Where they end, those that are under way included."""
    passed_end: int
    """Where those end that are finished."""
    is_continued: bool
    """Whether it is a scan (rule 2)."""


class Uncached(NamedTuple):
    """What must be read before more of a response is sent."""

    region: FileRegion
    skip: int
    """How much of the region is sent."""
    following: Sequence[Span] = ()
    """What is sent next from the same file (rule 5)."""
    next_region: FileRegion | None = None
    """The region after it, such as that of the next partition (rule 6)."""


_NEW_SCAN: Final = _Scan(0, 0, is_continued=False)


class PageCachePrefetcher:
    """The state that all connections share: the threads, and which directories bypass the page cache."""

    def __init__(
        self,
        worker: IoExecutor,
        on_directory_failed: Callable[[str, StorageError], None],
        memory_bytes: int = 0,
    ) -> None:
        """`on_directory_failed` gets the log directories that cannot be read; `memory_bytes`: of the machine (rule 4)."""
        self.worker = worker
        self._kept_bytes = max(memory_bytes // KEPT_SHARE, MIN_KEPT_BYTES)
        self._brought: OrderedDict[tuple[str, int], _Range] = (
            OrderedDict()
        )  # oldest first; by path and place in the file
        self._brought_bytes = 0
        self._scans: OrderedDict[str, _Scan] = OrderedDict()  # by path, oldest first
        self.on_directory_failed = on_directory_failed
        self._uncached_reads: Counter[str] = Counter()
        self.space = memoryview(bytearray(COPIED_BYTES_PER_CALL))
        """Where small regions are read to be sent at once."""
        self.reads = 0
        """Reads of records that were not in the page cache."""

    def bypasses_page_cache(self, directory: str) -> bool:
        """Whether reading in a directory leaves nothing in the page cache."""
        return self._uncached_reads[directory] >= _MAX_UNCACHED_READS

    def record_read(self, directory: str, *, is_cached: bool) -> None:
        """Records whether a read left its bytes in the page cache."""
        if self.bypasses_page_cache(directory):
            return
        self._uncached_reads[directory] = 0 if is_cached else self._uncached_reads[directory] + 1
        if self.bypasses_page_cache(directory):
            _log.warning("%s does not use the page cache: its data are copied through this process", directory)

    def record_brought(self, file: File, position: int, length: int) -> None:
        """Records that a range was not in the page cache before it was read, not even after an earlier read."""
        place = file.path, position // _MIN_RANGE_BYTES
        earlier = self._brought.pop(place, None)
        if earlier is not None:
            self._brought_bytes -= max(earlier.length, _MIN_RANGE_BYTES)
            length = max(length, earlier.position + earlier.length - position)
        self._brought[place] = _Range(ref(file), position, length)
        self._brought_bytes += max(length, _MIN_RANGE_BYTES)

    def scan_of(self, file: File) -> _Scan:
        """The last reads of a file."""
        return self._scans.get(file.path, _NEW_SCAN)

    def begin_read(self, file: File, position: int, length: int) -> tuple[bool, int]:
        """Whether a read belongs to a scan (rule 2), and where this read and those before it end."""
        if not position:
            self.end_scan(file)  # of another reader, or an earlier one
        end, scan = position + length, self.scan_of(file)
        is_next = 0 <= scan.end - position <= 2 * PREFETCH_BYTES  # what is read ahead, and a batch that was cut off
        is_scan = is_next and (scan.is_continued or not _is_mostly_cached(file, position, length))
        return is_scan, max(end, scan.end) if is_scan else end

    def record_scan(self, file: File, end: int, *, is_continued: bool) -> None:
        """Records that a file will be read up to `end`."""
        passed_end = self.scan_of(file).passed_end if is_continued else 0
        self._scans[file.path] = _Scan(end, passed_end, is_continued)
        self._scans.move_to_end(file.path)
        if len(self._scans) > _MAX_SCANS:
            self._scans.popitem(last=False)

    def record_passed(self, file: File, end: int) -> None:
        """Records that a file was read up to `end`."""
        scan = self._scans.get(file.path)
        if scan is not None and end > scan.passed_end:
            self._scans[file.path] = scan._replace(passed_end=end)

    def end_scan(self, file: File) -> None:
        """Forgets the last reads, so nothing more is read ahead of them."""
        self._scans.pop(file.path, None)

    def take_evictable(self) -> list[_Range]:
        """The ranges to evict before two more pieces are read (rule 4)."""
        evicted: list[_Range] = []
        while self._brought and self._brought_bytes + 2 * PREFETCH_BYTES > self._kept_bytes:
            evicted.append(self._brought.popitem(last=False)[1])
            self._brought_bytes -= max(evicted[-1].length, _MIN_RANGE_BYTES)
        return evicted


class ReadAhead:
    """The uncached reads of one connection."""

    __slots__ = ("_last", "_prefetcher")

    def __init__(self, prefetcher: PageCachePrefetcher) -> None:
        self._prefetcher = prefetcher
        self._last: tuple[str, int] | None = None  # path and position of the last prefetch

    def is_cached(self, region: FileRegion, skip: int, limit: int) -> bool:
        """Whether this much of a region, from `skip` bytes into it, can be sent without waiting for the disk."""
        file = region.file
        if not isinstance(file, File):
            return True
        position, length = region.position + skip, min(limit, region.length - skip)
        return _is_resident(file, position, length) and self._is_passed(file, position, position + length)

    def _is_passed(self, file: File, position: int, end: int) -> bool:
        """Whether the event loop may send a cached range (rule 2); reads on if it is the last one that was read."""
        scan = self._prefetcher.scan_of(file)
        if not scan.is_continued or position > scan.end + READ_AHEAD_BYTES:
            return True
        if end > scan.passed_end:
            return end - position <= PREFETCH_BYTES and self._last == (file.path, position)
        if end > scan.end - PREFETCH_BYTES:
            self._read_on(file, scan.end, PREFETCH_BYTES, is_scan=True)
        return True

    @property
    def space(self) -> memoryview:
        """What `read_cached` reads to; all connections use it."""
        return self._prefetcher.space

    @staticmethod
    def read_cached(file: HasFileno, spans: Sequence[Span], space: memoryview) -> tuple[int, int]:
        """Reads ranges of a file into `space`, as far as that needs no disk; returns how many, and their bytes.

        Ends before a range of more than COPIED_RANGE_BYTES.
        """
        if not isinstance(file, File):
            return 0, 0
        try:
            return file.read_spans_if_resident(spans, space, COPIED_RANGE_BYTES)
        except StorageError:
            return 0, 0  # the reader thread gets the same error and reports it

    def prefetch(self, wanted: Uncached) -> Completion[bytes | None]:
        """Reads a piece of a region, and what is sent after it (rules 2, 5, 6).

        The result is the first bytes of the piece if the page cache does not keep them, else None; or the StorageError.
        """
        file = wanted.region.file
        assert isinstance(file, File)
        position, left = wanted.region.position + wanted.skip, wanted.region.length - wanted.skip
        if self._last == (file.path, position) or self._prefetcher.bypasses_page_cache(_directory_of(file)):
            return self._read_directly(file, position, min(left, DIRECT_READ_BYTES))
        self._last = file.path, position
        length = min(left, PREFETCH_BYTES)
        if wanted.following:  # what is between them belongs to other partitions
            return self._prefetch_range(file, position, length, _first_bytes(wanted.following, PREFETCH_BYTES - length))
        is_scan, end = self._prefetcher.begin_read(file, position, length)
        piece = self._prefetch_range(file, position, length, is_scan=is_scan)
        if wanted.next_region is not None and length == left:
            self._read_next(wanted.next_region)
        ahead = 2 * length if is_scan else left - length
        self._read_on(file, end, min(ahead, PREFETCH_BYTES), is_scan=is_scan)
        return piece

    def _read_next(self, region: FileRegion) -> None:
        """Reads the first piece of a region that will be sent soon, unless it is cached; no request waits for it."""
        file, position, length = region.file, region.position, min(region.length, PREFETCH_BYTES)
        if not isinstance(file, File) or self._prefetcher.bypasses_page_cache(_directory_of(file)):
            return
        if not self.is_cached(region, 0, length):
            is_scan, end = self._prefetcher.begin_read(file, position, length)
            self._prefetcher.record_scan(file, end, is_continued=is_scan)
            self._prefetch_range(file, position, length, is_scan=is_scan)

    def _read_on(self, file: File, position: int, length: int, *, is_scan: bool) -> None:
        """Reads what follows in the file, unless it is cached; no request waits for it."""
        self._prefetcher.record_scan(file, position + length, is_continued=is_scan)
        if length and (is_scan or not _is_resident(file, position, length)):
            self._prefetch_range(file, position, length, is_scan=is_scan)

    def _read_directly(self, file: File, position: int, length: int) -> Completion[bytes | None]:
        data: bytes | None = None

        def run() -> None:
            nonlocal data
            data = file.pread(length, position)

        return self._read(file, run).map(lambda _: data)

    def _prefetch_range(
        self, file: File, position: int, length: int, following: Sequence[Span] = (), *, is_scan: bool = False
    ) -> Completion[bytes | None]:
        prefetcher = self._prefetcher
        evicted = prefetcher.take_evictable()
        was_cached = is_cached = False

        def run() -> None:
            nonlocal length, was_cached, is_cached
            for old in evicted:
                old_file = old.file()
                if old_file is not None:  # otherwise its segment is deleted
                    old_file.drop_cache(old.position, old.length)
            if is_scan:
                window = length + READ_AHEAD_BYTES
                was_cached = file.cached_bytes(position, window) == window
            else:
                was_cached = _is_mostly_cached(file, position, length)
            file.announce_reads(following)
            length = file.prefetch(position, length, exactly=not is_scan)
            for next_position, next_length in following:
                file.prefetch(next_position, next_length)
            is_cached = file.cached_bytes(position, length) > 0

        def record(_: None) -> None:
            if is_scan and (was_cached or not length):
                prefetcher.end_scan(file)
            elif is_scan:
                prefetcher.record_passed(file, position + length)
            if not length:  # the end of the file
                return
            prefetcher.record_read(_directory_of(file), is_cached=is_cached)
            if not was_cached:
                prefetcher.record_brought(file, position, length)

        return self._read(file, run).map(record)

    def _read(self, file: File, run: Callable[[], None]) -> Completion[None]:
        """Runs work on a reader thread; an error takes the log directory offline."""
        directory = _directory_of(file)

        def check(read: IoResult) -> None:
            if read.value is not None:
                self._prefetcher.on_directory_failed(directory, read.value)
                raise read.value

        self._prefetcher.reads += 1
        return self._prefetcher.worker.read(directory, run).handle(check)


def _is_resident(file: File, position: int, length: int) -> bool:
    try:
        return file.is_resident(position, length)
    except StorageError:
        return False  # the reader thread gets the same error and reports it


def _is_mostly_cached(file: File, position: int, length: int) -> bool:
    return file.cached_bytes(position, length) >= length // 2


def _directory_of(file: File) -> str:
    """The log directory of a partition's file."""
    return os.path.dirname(os.path.dirname(file.path))


def _first_bytes(spans: Sequence[Span], limit: int) -> list[Span]:
    """The first ranges, of together at most `limit` bytes."""
    found: list[Span] = []
    for span in spans:
        limit -= span[1]
        if limit < 0:
            break
        found.append(span)
    return found
