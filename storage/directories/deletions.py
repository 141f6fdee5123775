"""Deletion of logs: their directories are renamed now, and deleted when they are due.

RULES    1. A directory is deleted after its rename, which may still be queued, and after the delay of its kind.
         2. A rename waits for the users of the log's paths (path_guard.py). A log without a directory is deleted by a frame of
            the commit log (engines.py).
         3. A directory of a log directory that has failed is forgotten.
NOT HERE Which logs are deleted (log_manager.py), the deletion itself (partition_directory.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container
from functools import partial
from typing import NamedTuple

from storage.directories.engines import Engines
from storage.directories.partition_directory import DELETED, suffixed_dir_name
from storage.io.checkpoint_file import TopicPartition
from storage.io.deferred_file_ops import FileOp, no_op, sequential
from storage.io.disk import Disk
from storage.io.path_guard import PathGuard
from storage.log.log import Log


class _Deleted(NamedTuple):
    since_ms: int | None
    """None: set by the next `take_due`."""
    has_delay: bool
    directory: str
    paths: list[str]
    """Its path, after the rename."""


class Deletions:
    """The renames of deleted logs, and the pending deletions of all log directories."""

    def __init__(
        self,
        disk: Disk,
        engines: Engines,
        path_guard: PathGuard,
        random_bytes: Callable[[int], bytes],
        submit: Callable[[str, FileOp], None],
    ) -> None:
        """`submit` runs an operation on the entries of a log directory."""
        self._disk = disk
        self._engines = engines
        self._path_guard = path_guard
        self._random_bytes = random_bytes
        self._submit = submit
        self._pending: list[_Deleted] = []

    def new_path(self, directory: str, key: TopicPartition, suffix: str) -> str:
        """A new path with this suffix in a log directory."""
        return f"{directory}/{suffixed_dir_name(*key, self._random_bytes(16), suffix)}"

    def submit_rename(self, log: Log, suffix: str) -> list[str]:
        """Take a deleted log out of its place; the returned list gets the new path after the rename."""
        topic_id = log.files.cached_topic_id
        if not log.files.has_directory:
            queued = self._engines.queued_drop(log.path, topic_id)
            if queued is not None:
                self._submit(log.directory, queued)
            return []
        path = self.new_path(log.directory, (log.topic, log.partition), suffix)
        drop = self._engines.drop_of(log.path, topic_id) if suffix == DELETED else None
        return self.submit_removal(log.directory, partial(self._rename, log, path), drop, path)

    def submit_removal(self, directory: str, rename: FileOp, drop: FileOp | None, path: str) -> list[str]:
        """Run `rename`, then `drop`, in a log directory; the returned list gets `path`, the renamed directory, after both."""
        renamed: list[str] = []
        self._submit(directory, sequential([rename, drop or no_op, partial(renamed.append, path)]))
        return renamed

    def _rename(self, log: Log, path: str) -> None:
        self._path_guard.wait_for_users(log.files)
        if self._disk.exists(log.path):  # else it was deleted before it was created
            self._disk.rename(log.path, path)

    def submit_copy(self, path: str, key: TopicPartition) -> None:
        """Rename the directory of an unfinished copy and delete it: Kafka does not start with two copies of one log."""
        directory = path.rpartition("/")[0]
        deleted_path = self.new_path(directory, key, DELETED)
        rename = partial(self._disk.rename, path, deleted_path)
        renamed = self.submit_removal(directory, rename, self._engines.drop_of(path, None), deleted_path)
        self.add(directory, renamed, has_delay=False, since_ms=0)

    def add(self, directory: str, paths: list[str], *, has_delay: bool, since_ms: int | None = None) -> None:
        """Delete a directory of this log directory; `paths` gets its path after the rename."""
        self._pending.append(_Deleted(since_ms, has_delay, directory, paths))

    def waits_for_rename(self, directory: str) -> bool:
        """Whether a directory in this log directory is not renamed yet."""
        return any(deleted.directory == directory and not deleted.paths for deleted in self._pending)

    def take_due(self, wall_ms: int, delay_ms: int, in_service: Container[str]) -> dict[str, list[str]]:
        """The paths to delete now, by log directory."""
        due: dict[str, list[str]] = defaultdict(list)
        pending, self._pending = self._pending, []
        for deleted in pending:
            since_ms = wall_ms if deleted.since_ms is None else deleted.since_ms
            if since_ms + deleted.has_delay * delay_ms <= wall_ms and deleted.paths:
                due[deleted.directory] += deleted.paths
            elif deleted.directory in in_service:
                self._pending.append(deleted._replace(since_ms=since_ms))
        return due
