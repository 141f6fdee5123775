"""A disk with an empty page cache that reports blocking calls, for tests of non-blocking reads.

RULES    1. While `is_blocking_forbidden`, opening, reading and mapping fail the test, except for bytes that were
            read before if the page cache `keeps` them. With `keeps` False nothing is ever resident.
         2. `evict_all` empties the page cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from storage.io.disk import Disk, File, Mapping
from storage.io.disk_lookup import DiskLookup
from storage.io.page_cache import Span

T = TypeVar("T")
PAGE = 4096


class ColdFile(File):
    """A file whose pages are resident after they are read."""

    __slots__ = ()
    _disk: ColdDisk

    def _pages(self, position: int, length: int) -> set[tuple[str, int]]:
        return {(self.path, page) for page in range(position // PAGE, (position + max(length, 1) - 1) // PAGE + 1)}

    def is_resident(self, position: int, length: int) -> bool:
        return self._is_cached(position, length)

    def _is_cached(self, position: int, length: int) -> bool:
        return self._pages(position, length) <= self._disk.resident

    def cached_bytes(self, position: int, length: int) -> int:
        return min(length, PAGE * len(self._pages(position, length) & self._disk.resident))

    def pread(self, length: int, position: int) -> bytes:
        assert not self._disk.is_blocking_forbidden or self._is_cached(position, length), f"waits for {self.path}"
        if self._disk.keeps:
            self._disk.resident |= self._pages(position, length)
        return super().pread(length, position)

    def pread_if_resident(self, length: int, position: int) -> bytes | None:
        return self.pread(length, position) if self._is_cached(position, length) else None

    def read_spans_if_resident(self, spans: Sequence[Span], space: memoryview, limit: int) -> tuple[int, int]:
        done = filled = 0
        for position, length in spans:
            if length > limit or filled + length > len(space) or not self._is_cached(position, length):
                break
            space[filled : filled + length] = self.pread(length, position)
            done, filled = done + 1, filled + length
        return done, filled

    def announce_reads(self, spans: Sequence[Span]) -> None:
        self._disk.announced += [(os.path.basename(self.path), *span) for span in spans]

    def prefetch(self, position: int, length: int, *, exactly: bool = True) -> int:
        length = len(self.pread(length, position))
        if length:
            self._disk.warmed.append((os.path.basename(self.path), position, length))
        return length

    def drop_cache(self, position: int, length: int) -> None:
        self._disk.resident -= self._pages(position, length)

    def map(self, length: int) -> Mapping:
        assert not self._disk.is_blocking_forbidden or self._is_cached(0, length), f"maps {self.path}"
        return super().map(length)


class ColdDisk(Disk):
    def __init__(self, *, keeps: bool = True) -> None:
        super().__init__()
        self.keeps = keeps
        self.is_blocking_forbidden = False
        self.resident: set[tuple[str, int]] = set()
        self.warmed: list[tuple[str, int, int]] = []
        self.announced: list[tuple[str, int, int]] = []

    def open(self, path: str, *, write: bool, create: bool = False) -> File:
        assert not self.is_blocking_forbidden, f"opens {path}"
        plain = super().open(path, write=write, create=create)
        descriptor = os.dup(plain.fileno())
        plain.close()
        return ColdFile(self, path, descriptor)

    def exists(self, path: str) -> bool:
        assert not self.is_blocking_forbidden, f"asks for {path}"
        return super().exists(path)

    def evict_all(self) -> None:
        self.resident.clear()

    @contextmanager
    def blocking_forbidden(self) -> Iterator[None]:
        """Forbid blocking calls in the `with` block."""
        self.is_blocking_forbidden = True
        try:
            yield
        finally:
            self.is_blocking_forbidden = False

    def ask(self, look: Callable[[], T | DiskLookup]) -> tuple[T, int]:
        """The result of a non-blocking call, and the number of disk lookups it took."""
        for rounds in range(20):
            with self.blocking_forbidden():
                found = look()
            if not isinstance(found, DiskLookup):
                return found, rounds
            found.run()
            with self.blocking_forbidden():
                found.finish()
        raise AssertionError("no progress")
