"""The limits of open log files: above them, the least recently used ones are closed.

RULES    1. The disk counts all open files and mappings, including those that threads or pending responses hold. A share of
            the limit is reserved for these; above the rest, files are closed.
         2. An owner of open files registers once (`register`) and sets `usage = USED` at each use. An owner without a use
            since its last check is closed, the others get another round, at most two per call.
         3. Files opened since the last check are kept: their first use is still to come.
         4. Files that cannot be closed because writes are pending are checked again next time.
         5. `on_eviction_needed` schedules the closing for a time when no file is in use. By default it runs at once.
         6. The files of commit logs have a limit of their own, `OwnerLimit`, since thousands of partitions share a few files.
            They are closed at once, in any thread: an operation that uses one has a reference to it.
NOT HERE The owners (storage/segments, storage/commitlog), the process limit (broker/process/resource_limits.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, TypeVar

from storage.io.disk import Disk
from storage.io.path_guard import LockContext

IDLE: Final = 0
USED: Final = 1
NEW: Final = 2

UNLIMITED: Final = 1 << 60
MIN_LIMIT: Final = 64
"""The smallest accepted limit."""
_RESERVED: Final = 8
_MIN_RESERVED: Final = 32
"""The reserved share (1/8) and its minimum, for files that are open briefly: mostly those that the reader pool has opened and
the event loop does not know yet (broker/io/reader_pool.py).
"""
_MAX_ROUNDS: Final = 2
_OWNERS_PER_STEP: Final = 128


class HandleOwner(Protocol):
    """An object with open files."""

    usage: int
    """IDLE, USED or NEW since the last check."""


H = TypeVar("H", bound=HandleOwner)
Close = Callable[[H], bool]


class FileHandleCache:
    """The owners of a disk's open files; threads may register them."""

    def __init__(self, disk: Disk, limit: int = UNLIMITED) -> None:
        """`limit`: the maximum number of open files and mappings of the disk."""
        self._disk = disk
        self.limit = limit
        """The maximum number of open files."""
        self._target = limit - max(limit // _RESERVED, _MIN_RESERVED)
        self._owners: OrderedDict[HandleOwner, Close[Any]] = OrderedDict()  # the next to check is first
        self._new: dict[HandleOwner, None] = {}  # since the last check
        self._is_eviction_requested = False
        self.closed = 0
        """Number of owners closed so far because of the limit."""
        self.on_eviction_needed: Callable[[], object] = self.close_surplus
        """Schedules `close_surplus`; called by any thread."""

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def _open_files(self) -> int:
        return self._disk.open_files

    def __str__(self) -> str:
        return f"{self._disk.open_files} of at most {self.limit} log files are open"

    def at_file_limit(self, wanted: int = 0) -> bool:
        """Whether `wanted` more files would reach the limit: callers should retry large reads later."""
        return self._disk.open_files + wanted >= self.limit

    def register(self, owner: H, close: Close[H]) -> None:
        """Register an owner that has opened files; `close` closes them and returns whether it did."""
        owner.usage = NEW
        self._owners[owner] = close
        self._new[owner] = None
        if self._open_files > self._target and not self._is_eviction_requested:
            self._is_eviction_requested = True
            self.on_eviction_needed()

    def unregister(self, owner: HandleOwner) -> None:
        """Remove an owner whose files are closed, or whose files nothing but their readers may keep open."""
        self._owners.pop(owner, None)
        self._new.pop(owner, None)

    def close_surplus(self) -> None:
        """Close files until the target is reached."""
        self._is_eviction_requested = False
        new = self._take_new()
        for _ in range(_MAX_ROUNDS * len(self._owners)):
            if not self._owners or self._open_files <= self._target:
                break
            self.closed += self._try_close(*self._owners.popitem(last=False))  # one atomic call: threads add owners
        _age(new)

    def close_idle(self) -> Iterator[None]:
        """Close the files without a use since the last call, some per step."""
        _age(self._take_new())
        owners = list(self._owners)
        for begin in range(0, len(owners), _OWNERS_PER_STEP):
            for owner in owners[begin : begin + _OWNERS_PER_STEP]:
                close = self._owners.pop(owner, None)
                if close is not None:
                    self._try_close(owner, close)
            yield

    def _try_close(self, owner: HandleOwner, close: Close[Any]) -> bool:
        """Close an idle owner's files; otherwise move the owner to the end."""
        if owner.usage == IDLE and close(owner):
            return True
        if owner.usage == USED:
            owner.usage = IDLE
        self._owners[owner] = close
        return False

    def _take_new(self) -> list[HandleOwner]:
        new, self._new = self._new, {}
        return list(new)


class OwnerLimit(FileHandleCache):
    """A limit of owners with one file each, whatever else the disk has open (rule 6)."""

    def __init__(self, disk: Disk, limit: int, lock: LockContext) -> None:
        """`limit`: likewise, with the reserved share; `lock`: a mutex."""
        super().__init__(disk, limit)
        self._lock = lock

    @property
    def _open_files(self) -> int:
        return len(self._owners)

    def close_surplus(self) -> None:
        """As `FileHandleCache.close_surplus`; any thread."""
        with self._lock:
            super().close_surplus()


class HandleRegistration:
    """Registers the owners of one engine while `close` is set."""

    __slots__ = ("_cache", "close")

    def __init__(self, cache: FileHandleCache | None) -> None:
        self._cache = cache
        self.close: Close[Any] | None = None

    def files_opened(self, owner: HandleOwner) -> None:
        """Register an owner that has opened files."""
        if self._cache is not None and self.close is not None:
            self._cache.register(owner, self.close)

    def files_closed(self, owner: HandleOwner) -> None:
        """Unregister an owner that has closed its files."""
        if self._cache is not None:
            self._cache.unregister(owner)


def _age(owners: list[HandleOwner]) -> None:
    for owner in owners:
        owner.usage = min(owner.usage, USED)
