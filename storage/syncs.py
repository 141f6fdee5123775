"""What makes a log durable, as work for a thread; that of many logs is done together (group commit).

RULES    1. First the files are synced, all at a time; then each log that had no failure makes its further steps, one
            after the other: they name what must not be known before its bytes are there.
         2. A failure counts only while the log is in service: what was deleted meanwhile need not be durable.
         3. One log's failure says nothing of the others: what that means is for whoever asked.
NOT HERE Which files (segments/durability.py, openable_log.py), how they are synced (disk.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from storage.disk import Disk, File, StorageError


class Sync:
    """What makes one log durable; calling it does it."""

    __slots__ = ("disk", "files", "is_wanted", "steps")

    def __init__(
        self, disk: Disk, files: Sequence[File], steps: Sequence[Callable[[], None]], is_wanted: Callable[[], bool]
    ) -> None:
        self.disk = disk
        self.files = files
        self.steps = steps
        self.is_wanted = is_wanted

    def __call__(self) -> None:
        """Do it alone."""
        (error,) = sync_together([self])
        if error is not None:
            raise error


def sync_together(syncs: Sequence[Sync]) -> list[StorageError | None]:
    """Do all of them, which lie on one disk; what became of each."""
    errors = errors_of(syncs, syncs[0].disk.sync_together([file for sync in syncs for file in sync.files]))
    for place, sync in enumerate(syncs):
        if sync.steps and errors[place] is None:
            errors[place] = _take_steps(sync)
    return errors


def errors_of(syncs: Sequence[Sync], failures: dict[File, StorageError]) -> list[StorageError | None]:
    """What became of each, where these files have failed."""
    if not failures:
        return [None] * len(syncs)
    return [
        next((failures[file] for file in sync.files if file in failures), None) if sync.is_wanted() else None
        for sync in syncs
    ]


def _take_steps(sync: Sync) -> StorageError | None:
    for step in sync.steps:
        if not sync.is_wanted():
            break
        try:
            step()
        except StorageError as error:
            return error if sync.is_wanted() else None
    return None
