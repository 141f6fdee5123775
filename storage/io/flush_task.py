"""What makes a log durable, as work for a thread; that of many logs is done together (group commit).

RULES    1. What is still to be written is written; then all files are synced, those of all logs at a time; then what was
            written beside a file takes its place; then the directories are synced, each once. So a name is durable only
            behind its bytes, and a thousand new partitions cost two turns of the disk.
         2. A failure counts only while the log is in service: what was deleted meanwhile need not be durable.
         3. One log's failure says nothing of the others: what that means is for whoever asked.
         4. Where nothing more can be written for want of room, the open files are synced and let go of all the same: what
            was deleted meanwhile gives its room back only then. The rest is done when there is room.
         5. What is found, written or renamed by its path is so in a visit to the log (path_guard.py).
NOT HERE Which files (segments/durability.py, openable_log.py), how they are synced (disk.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from storage.io.deferred_file_ops import Later, at_once
from storage.io.disk import Disk, File, StorageError

SEGMENTS_AT_A_TIME: Final = 16
"""Of one log, in a sync: each has up to five files open until it is over."""

T = TypeVar("T")


class Sync:
    """What makes one log durable; calling it does it.

    Args:
        disk: where it lies.
        files: open ones, to be synced.
        is_wanted: whether the log is in service.
        replaced: files by their paths, that get these contents.
        written: further files that were written, by their paths, and may not be there.
        names: directories.
        visit: does something at the log's files, unless it is gone.
    """

    __slots__ = ("disk", "end_offset", "files", "is_complete", "is_wanted", "names", "replaced", "visit", "written")

    def __init__(
        self,
        disk: Disk,
        files: Sequence[File],
        is_wanted: Callable[[], bool],
        *,
        replaced: Sequence[tuple[str, bytes]] = (),
        written: Sequence[str] = (),
        names: Sequence[str] = (),
        visit: Later = at_once,
    ) -> None:
        self.disk = disk
        self.files = files
        self.is_wanted = is_wanted
        self.replaced = replaced
        self.written = written
        self.names = names
        self.visit = visit
        self.end_offset = 0
        """Up to here the log is durable then."""
        self.is_complete = True
        """Whether nothing is left for a further one."""

    def __call__(self) -> None:
        """Do it alone."""
        (error,) = sync_together([self])
        if error is not None:
            raise error

    @property
    def is_of_files(self) -> bool:
        """Whether nothing is to be done but to sync the files."""
        return not (self.replaced or self.written or self.names)

    def all_files(self) -> list[File]:
        """Write what is still to be written; all that is to be synced."""
        files = list(self.files)

        def write() -> None:
            files.extend(self.disk.open(path, write=True) for path in self.written if self.disk.exists(path))
            files.extend(self.disk.write_beside(path, data) for path, data in self.replaced)

        if not self.is_of_files and self.is_wanted():
            self.visit(write)
        return files

    def put_in_place(self) -> None:
        """What was written beside a file is durable."""

        def put() -> None:
            for path, _ in self.replaced:
                self.disk.put_in_place(path)

        if self.is_wanted():
            self.visit(put)


def sync_together(syncs: Sequence[Sync]) -> list[StorageError | None]:
    """Do all of them, which lie on one disk; what became of each."""
    disk = syncs[0].disk
    errors: list[StorageError | None] = [None] * len(syncs)
    files: list[list[File]] = [[] for _ in syncs]
    for place, sync in enumerate(syncs):
        error, files[place] = _attempt(sync.all_files, files[place])
        if error is not None and error.is_full:
            files[place] = list(sync.files)
        errors[place] = error
    failures = disk.sync_together([file for some in files for file in some])
    for place, sync in enumerate(syncs):
        failure = next((failures[file] for file in files[place] if file in failures), None)
        if errors[place] is not None and failure is None:
            sync.files = ()
        errors[place] = failure or errors[place]
        if errors[place] is None and sync.replaced:
            errors[place], _ = _attempt(sync.put_in_place, None)
    sound = [sync for place, sync in enumerate(syncs) if errors[place] is None and sync.names and sync.is_wanted()]
    nameless = disk.sync_dirs(list({path: None for sync in sound for path in sync.names})) if sound else {}
    for place, sync in enumerate(syncs):
        errors[place] = errors[place] or next((nameless[path] for path in sync.names if path in nameless), None)
    return _that_count(syncs, errors)


def errors_of(syncs: Sequence[Sync], failures: dict[File, StorageError]) -> list[StorageError | None]:
    """What became of each, where these files have failed."""
    if not failures:
        return [None] * len(syncs)
    return _that_count(
        syncs, [next((failures[file] for file in sync.files if file in failures), None) for sync in syncs]
    )


def _that_count(syncs: Sequence[Sync], errors: list[StorageError | None]) -> list[StorageError | None]:
    return [error if sync.is_wanted() else None for sync, error in zip(syncs, errors, strict=True)]


def _attempt(act: Callable[[], T], otherwise: T) -> tuple[StorageError | None, T]:
    try:
        return None, act()
    except StorageError as error:
        return error, otherwise
