"""The periodic work on all logs of a log manager: checkpoints, flushes, retention, deletions, idle files and producers.

RULES    1. Long operations run in steps (an iterator, one log per step), or are work for a thread.
         2. Future replicas get no periodic work.
NOT HERE The schedule (broker/node/scheduled_tasks.py), the retention of one log (storage/log/retention.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial

from storage.directories.checkpoint_writer import Work
from storage.directories.log_directory import CheckpointSteps
from storage.directories.log_manager import LogManager
from storage.directories.log_retention import RetentionSteps, retain_all
from storage.directories.partition_directory import delete_paths
from storage.log.log import Log


def begin_checkpoints(manager: LogManager) -> list[tuple[str, CheckpointSteps]]:
    """For each log directory, steps whose result is work that writes the changed checkpoint files.

    A directory with pending work is skipped.
    """
    return [(log_dir.path, log_dir.checkpoint()) for log_dir in manager.directories.values() if not log_dir.is_writing]


def directory_checks(manager: LogManager) -> list[tuple[str, Work]]:
    """For each log directory, work that checks whether it still exists."""
    return [(directory.path, directory.check) for directory in manager.directories.values()]


def invalidate_checkpoints(manager: LogManager, directory: str) -> None:
    """Forget the file contents after a failed write on a full disk: the next update writes all files."""
    log_dir = manager.directories.get(directory)
    if log_dir is not None:
        log_dir.checkpoints.contents.clear()


def logs_to_flush(manager: LogManager, wall_ms: int) -> Iterator[Log | None]:
    """The logs to flush now, because of `flush.ms` or a full segment; a step for each log, None for the others."""
    for log in list(manager.logs.values()):
        opened = log.opened
        yield log if opened is not None and opened.flush.is_due(log.config, wall_ms) else None


def retain(manager: LogManager, wall_ms: int) -> RetentionSteps:
    """Apply retention, a few segments per step (log_retention.py)."""
    return retain_all(list(manager.logs.values()), wall_ms, manager.go_offline)


def due_deletions(manager: LogManager, wall_ms: int) -> list[tuple[str, Work]]:
    """For each log directory, work that deletes the files and directories that are due.

    A file that is not renamed yet is included in a later call.
    """
    files: dict[str, list[str]] = defaultdict(list)
    for log in manager.logs.values():
        if log.files.deleted_files:
            files[log.directory] += log.files.take_deletable(wall_ms)
    directories = manager.deletions.take_due(wall_ms, manager.deletion_delay_ms, manager.directories)
    return [
        (directory, partial(delete_paths, manager.disk, files.get(directory, []), directories.get(directory, [])))
        for directory in {**files, **directories}
        if files.get(directory) or directories.get(directory)
    ]


def close_idle_files(manager: LogManager) -> Iterator[None]:
    """Close the files without a use since the last call, some per step."""
    yield from manager.file_handles.close_idle()
    yield from manager.commit_logs.open_files.close_idle()


def expire_producers(manager: LogManager, wall_ms: int) -> Iterator[None]:
    """Remove idle producers, one log per step."""
    for log in list(manager.logs.values()):
        if log.opened is not None:
            log.opened.producers.expire(wall_ms, manager.producer_expiration_ms)
        yield
