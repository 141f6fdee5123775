"""Flush tasks: make logs durable in a thread, many of them together (group commit).

RULES    1. A flush writes pending replacement files, syncs all files of all tasks together, renames the replacements into
            place, then syncs each directory once. So a name is never durable before its bytes, and a thousand new
            partitions cost two rounds of disk syncs.
         2. A failure counts only while the log is in service: a deleted log need not be durable.
         3. Each task has its own result; the caller handles it.
         4. If the disk is full, the open files are synced and closed nevertheless: deleted files release their space only
            then. The rest is retried when space is free.
         5. Paths are opened, written and renamed under the log's path guard (path_guard.py).
NOT HERE Which files (segments/durability.py, log_flush.py), the sync calls (disk.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from protocol.errors import without_frames
from storage.io.deferred_file_ops import Submit, run_now
from storage.io.disk import Disk, File, StorageError

SEGMENTS_AT_A_TIME: Final = 16
"""Segments of one log per flush: each has up to five open files during it."""


@dataclass(slots=True, eq=False)
class FlushTask:
    """Makes one log durable when called."""

    disk: Disk
    files: Sequence[File]
    """Open files to sync."""
    is_in_service: Callable[[], bool]
    """Whether the log is in service."""
    replacements: Sequence[tuple[str, bytes]] = field(default=(), kw_only=True)
    """(path, new contents) of files to replace."""
    written: Sequence[str] = field(default=(), kw_only=True)
    """Paths of files that were written; a missing one is ignored."""
    directories: Sequence[str] = field(default=(), kw_only=True)
    """Directories to sync."""
    run_guarded: Submit = field(default=run_now, kw_only=True)
    """Runs work on the log's paths, unless the log is deleted."""
    end_offset: int = 0
    """After success, the log is durable up to this offset."""
    is_complete: bool = True
    """Whether no further flush is needed."""

    def __call__(self) -> None:
        """Run this task alone; raises StorageError if the flush fails."""
        (error,) = flush_together([self])
        if error is not None:
            raise error

    @property
    def only_syncs(self) -> bool:
        """Whether the task only syncs open files."""
        return not (self.replacements or self.written or self.directories)

    def write_and_list_files(self) -> list[File]:
        """Write the temporary files; returns all files to sync."""
        files = list(self.files)

        def write() -> None:
            files.extend(self.disk.open(path, write=True) for path in self.written if self.disk.exists(path))
            files.extend(self.disk.write_temporary(path, data) for path, data in self.replacements)

        if not self.only_syncs and self.is_in_service():
            self.run_guarded(write)
        return files

    def commit_temporary(self) -> None:
        """Rename the durable temporary files into place."""

        def put() -> None:
            for path, _ in self.replacements:
                self.disk.commit_temporary(path)

        if self.is_in_service():
            self.run_guarded(put)


def flush_together(tasks: Sequence[FlushTask]) -> list[StorageError | None]:
    """Run tasks of one disk together; returns the error of each, or None."""
    disk = tasks[0].disk
    errors: list[StorageError | None] = [None] * len(tasks)
    files: list[list[File]] = [[] for _ in tasks]
    for index, task in enumerate(tasks):
        try:
            files[index] = task.write_and_list_files()
        except StorageError as error:
            errors[index] = without_frames(error)
            if error.is_full:
                files[index] = list(task.files)
    failures = disk.sync_files(list(dict.fromkeys(chain.from_iterable(files))))  # logs may share a file
    for index, task in enumerate(tasks):
        failure = next((failures[file] for file in files[index] if file in failures), None)
        if errors[index] is not None and failure is None:
            task.files = ()
        errors[index] = failure or errors[index]
        if errors[index] is None and task.replacements:
            try:
                task.commit_temporary()
            except StorageError as error:
                errors[index] = without_frames(error)
    written_tasks = [task for index, task in enumerate(tasks) if errors[index] is None and task.is_in_service()]
    directories = {path: None for task in written_tasks for path in task.directories}
    directory_failures = disk.sync_dirs(list(directories)) if directories else {}
    for index, task in enumerate(tasks):
        errors[index] = errors[index] or next(
            (directory_failures[path] for path in task.directories if path in directory_failures), None
        )
    return _relevant(tasks, errors)


def flush_errors(tasks: Sequence[FlushTask], failures: dict[File, StorageError]) -> list[StorageError | None]:
    """The error of each task, given the failed files."""
    if not failures:
        return [None] * len(tasks)
    return _relevant(tasks, [next((failures[file] for file in task.files if file in failures), None) for task in tasks])


def _relevant(tasks: Sequence[FlushTask], errors: list[StorageError | None]) -> list[StorageError | None]:
    return [error if task.is_in_service() else None for task, error in zip(tasks, errors, strict=True)]
