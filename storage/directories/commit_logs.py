"""The commit logs of all log directories: created by the first use, cleaned, and closed.

FORMAT   a log directory has the directory `commitlog` once a log was created in its commit log (storage/commitlog)
RULES    1. A commit log that exists is opened, and recovered if necessary, before the logs of its directory are listed.
         2. A clean shutdown deletes a commit log that has no partition left: with its directory, Apache Kafka does not start on
            the log directory.
NOT HERE Which partitions are in a commit log (engines.py), when it is cleaned (broker/node/commit_log_cleaning.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from storage.commitlog.cleaner import Cleaner
from storage.commitlog.commit_log import DIRECTORY, FILE_BYTES, CommitLog
from storage.commitlog.files_ahead import FILES_AHEAD
from storage.directories.partition_directory import DELETED, suffixed_dir_name
from storage.io.checkpoint_file import TopicPartition
from storage.io.deferred_file_ops import FileOp
from storage.io.disk import Disk
from storage.io.file_handle_cache import FileHandleCache, OwnerLimit
from storage.io.path_guard import LockContext
from storage.log.log_files import index_path

_OPEN_FILES: Final = 80
"""Of all commit logs together; 32 of them are reserved for those that were opened just now."""
_INDEX_NAME: Final = re.compile(rf"[0-9a-f]{{32}}-\d+({re.escape(DELETED)})?")
"""The directory of a key index, or of one that is being deleted."""


class CommitLogs:
    """At most one commit log for each log directory."""

    def __init__(
        self,
        disk: Disk,
        file_handles: FileHandleCache,
        random_bytes: Callable[[int], bytes],
        new_lock: Callable[[], LockContext],
    ) -> None:
        """Create the object; opens no file."""
        self._disk = disk
        self._random_bytes = random_bytes
        self.submit: Callable[[str, FileOp], None] = _run_now
        """Runs work in a log directory that nothing waits for: at once unless replaced."""
        self.check_directory: Callable[[str], None] = lambda _: None
        """Raises StorageError if the path of a log directory is another directory now, or none; any thread."""
        self.new_lock = new_lock
        self.file_bytes = FILE_BYTES
        """The size of new files."""
        self.open_files = OwnerLimit(disk, min(_OPEN_FILES, file_handles.limit // 2), new_lock())
        """The open files, but those that are written."""
        self.by_directory: dict[str, CommitLog] = {}
        self.cleaners: dict[str, Cleaner] = {}
        """By log directory."""
        self._creating = new_lock()

    @property
    def new_files_bytes(self) -> int:
        """What the first append to a commit log takes of the free space."""
        return (1 + FILES_AHEAD) * self.file_bytes

    def get_or_create(self, directory: str) -> CommitLog:
        """The commit log of a log directory; any thread."""
        with self._creating:
            log = self.by_directory.get(directory)
            if log is None:
                self.check_directory(directory)
                log = CommitLog(
                    self._disk,
                    directory,
                    random_bytes=self._random_bytes,
                    new_lock=self.new_lock,
                    file_bytes=self.file_bytes,
                    open_files=self.open_files,
                )
                log.submit = lambda op: self.submit(directory, op)
                self.by_directory[directory] = log
                self.cleaners[directory] = Cleaner(self._disk, log)
            return log

    def has_partition(self, key: TopicPartition) -> bool:
        """Whether an open commit log contains a partition without a directory."""
        return any(
            (slot.topic, slot.slot_id.partition) == key for log in self.by_directory.values() for slot in log.slots
        )

    # ---- start and shutdown ------------------------------------------------------------------------------

    def open(self, directory: str, names: Sequence[str]) -> None:
        """Open the commit log of a log directory with these entries, if it exists; `Engines.drop_leftovers` follows."""
        if DIRECTORY in names:
            log = self.get_or_create(directory)
            log.open()
            self._remove_unused_indexes(directory, log)

    def begin_shutdown(self) -> None:
        """From now on all work runs at once, so that its failure is that of the shutdown."""
        self.submit = _run_now

    def close(self, directory: str) -> None:
        """Seal the commit log of a log directory; its logs are closed, and no pass of cleaning continues."""
        log = self.by_directory.get(directory)
        if log is not None:
            log.close()
            self.cleaners[directory].remove_unfinished()

    def remove_unused(self, directory: str) -> None:
        """Delete the closed commit log of a log directory if it has no partition (rule 2).

        It is renamed first, to a name that Apache Kafka deletes too.
        """
        log = self.by_directory.get(directory)
        if log is None or log.slots or not self._disk.exists(log.directory):
            return
        self.go_offline(directory)
        path = f"{directory}/{suffixed_dir_name(DIRECTORY, 0, self._random_bytes(16), DELETED)}"
        self._disk.rename(log.directory, path)
        self._disk.sync_dir(directory)
        self._disk.remove_tree(path)

    def go_offline(self, directory: str) -> None:
        """The log directory has failed."""
        self.by_directory.pop(directory, None)
        self.cleaners.pop(directory, None)

    # ---- cleaning ----------------------------------------------------------------------------------------

    def is_ready_to_clean(self, directory: str, wall_ms: int, max_dead_ms: int) -> bool:
        """Prepare `clean`, as far as one turn of the loop allows; False if the next turn must continue."""
        cleaner = self.cleaners.get(directory)
        if cleaner is None:
            return True
        cleaner.max_dead_ms = max_dead_ms
        return cleaner.begin_pass(wall_ms)

    def clean(self, directory: str, wall_ms: int, max_dead_ms: int, *, is_full: bool) -> Iterator[int] | None:
        """The steps of a cleaning pass, each to be run by a thread, with the bytes that it wrote; None without a commit log.

        `max_dead_ms`: deleted batches are removed within this time.
        """
        self.is_ready_to_clean(directory, wall_ms, max_dead_ms)
        cleaner = self.cleaners.get(directory)
        return None if cleaner is None else cleaner.clean(wall_ms, is_full=is_full)

    def settle(self, directory: str, wall_ms: int, is_full: Callable[[], bool]) -> Iterator[int] | None:
        """The steps of settling some old files, as `clean`; None without a commit log. It ends when the disk is full."""
        cleaner = self.cleaners.get(directory)
        return None if cleaner is None else cleaner.settle(wall_ms, is_full)

    def release_replaced(self, directory: str) -> bool:
        """Release the space of files that a pass has replaced; True if that must continue in the next turn."""
        log = self.by_directory.get(directory)
        return log is not None and log.release_replaced()

    # ---- key indexes of partitions without a directory ---------------------------------------------------

    def _remove_unused_indexes(self, directory: str, log: CommitLog) -> None:
        """Delete the key indexes that no partition of a commit log has: a kill has ended the deletion of the partition."""
        used = {index_path(directory, *slot.slot_id[:2]).rpartition("/")[2] for slot in log.slots if slot.topic}
        for name in self._disk.listdir(log.directory):
            if _INDEX_NAME.fullmatch(name) and name not in used:
                self._disk.remove_tree(f"{log.directory}/{name}")

    def remove_index(self, path: str) -> None:
        """Delete a key index, while the process that writes it may add and rename files: it has only the old path."""
        deleted = path + DELETED
        self._disk.remove_tree(deleted)  # of a deletion that a kill has ended
        if self._disk.exists(path):
            self._disk.rename(path, deleted)
            self._disk.remove_tree(deleted)


def _run_now(directory: str, op: FileOp) -> None:
    del directory
    op()
