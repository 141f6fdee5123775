"""The directory of one partition: topic id, deferred file operations, and the directory's entry.

RULES    1. Submitted file operations are counted until they have run (deferred_file_ops.py).
         2. Threads that address the files by path register with the path guard; offline or deleted logs are skipped.
         3. The entry of a new directory, and the partition's metadata, become durable with the first flush of records, so they
            are not durable if there are none: a clean shutdown does not flush an unused log.
NOT HERE The files of the segments (the engine); what a flush contains (log_flush.py).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from storage.io.checkpoint_file import PARTITION_METADATA, CorruptCheckpoint, read_topic_id, write_topic_id
from storage.io.deferred_file_ops import UNMONITORED, FileOp, Submit, run_now
from storage.io.disk import Disk, File, StorageError
from storage.io.flush_task import FlushTask
from storage.io.path_guard import UNGUARDED

_log = logging.getLogger("barnabas.storage")


class LogFiles:
    """The directory and the file operations of one log."""

    __slots__ = (
        "_disk", "_log_dir", "_pending_ops", "cached_topic_id", "deleted_files", "disk_space", "has_directory",
        "is_entry_durable", "is_offline", "path", "path_guard", "submit",
    )  # fmt: skip

    def __init__(
        self,
        disk: Disk,
        log_dir: str,
        path: str,
        topic_id: bytes | None,
        *,
        is_entry_durable: bool,
        has_directory: bool,
    ) -> None:
        self._disk = disk
        self._log_dir = log_dir
        self.path = path
        self.cached_topic_id = topic_id
        """The topic id if it was read before."""
        self.has_directory = has_directory
        """Whether the partition has a directory; else its engine stores everything, and the path is only a name."""
        self.is_entry_durable = is_entry_durable or not has_directory
        """Whether the directory's entry and metadata are durable; a successful flush task makes them so."""
        self._pending_ops: list[object] = []  # one for each operation that was submitted and has not run
        self.is_offline = False
        """Whether the log was deleted or its directory failed."""
        self.submit: Submit = run_now
        """Runs a deferrable file operation: at once unless replaced (deferred_file_ops.py)."""
        self.disk_space = UNMONITORED  # of the log directory
        self.path_guard = UNGUARDED
        """Registers the users of the log's paths in other threads."""
        self.deleted_files: list[tuple[int, list[str]]] = []
        """Files that are no longer used: the wall time from which on they are deleted, and paths, added by the rename."""

    @property
    def index_path(self) -> str:
        """The directory of the partition's key index; created by its first use if the partition has none."""
        if self.has_directory:
            return self.path
        assert self.cached_topic_id is not None, "a log without a directory has a topic id"
        partition = self.path.rpartition("-")[2]
        return index_path(self._log_dir, self.cached_topic_id, int(partition))

    # ---- topic id ----------------------------------------------------------------------------------------

    @property
    def topic_id(self) -> bytes | None:
        """The topic id; None if the partition's metadata file is missing or incomplete."""
        if self.cached_topic_id is None:
            try:
                self.cached_topic_id = read_topic_id(self._disk, f"{self.path}/{PARTITION_METADATA}")
            except CorruptCheckpoint as error:
                _log.warning("%s Treating the log as that of the topic with its name", error)
        return self.cached_topic_id

    def assign_topic_id(self, topic_id: bytes) -> None:
        """Write the topic id to the partition's metadata file."""
        write_topic_id(self._disk, f"{self.path}/{PARTITION_METADATA}", topic_id)
        self.cached_topic_id = topic_id

    # ---- file operations ---------------------------------------------------------------------------------

    @property
    def has_pending_ops(self) -> bool:
        """Whether submitted file operations have not run yet."""
        return bool(self._pending_ops)

    def submit_op(self, op: FileOp, submit: Submit | None = None) -> None:
        """Run or queue an operation on the log's files (deferred_file_ops.py)."""
        pending = object()
        self._pending_ops.append(pending)
        (submit or self.submit)(partial(self._run_op, op, pending))

    def submit_first(self) -> Submit | None:
        """On a full disk: submits an operation that frees space, before those that wait for it."""
        return partial(self.submit_op, submit=self.disk_space.submit) if self.disk_space.is_full else None

    def run_guarded(self, work: FileOp) -> None:
        """Run work that addresses the log's files by path, in any thread; does nothing for an offline or deleted log."""
        self.path_guard.run(self, work)

    def _run_op(self, op: FileOp, pending: object) -> None:
        try:
            self.run_guarded(op)
        except StorageError as error:
            if not self.is_offline:  # else the directory has failed, or the log was deleted
                if not error.is_full:  # else the operation is retried
                    self._remove_pending(pending)
                raise
        self._remove_pending(pending)

    def _remove_pending(self, pending: object) -> None:
        if pending in self._pending_ops:
            self._pending_ops.remove(pending)

    def take_deletable(self, wall_ms: int) -> list[str]:
        """The files to delete now, each once. A file that is not renamed yet is included in a later call."""
        due = [paths for due_ms, paths in self.deleted_files if due_ms <= wall_ms]
        if not self.has_pending_ops:
            self.deleted_files = [(due_ms, paths) for due_ms, paths in self.deleted_files if due_ms > wall_ms]
        return [path for paths in due for path in _drain(paths)]

    # ---- durability --------------------------------------------------------------------------------------

    def flush_task(
        self, files: Sequence[File] = (), snapshots: Sequence[File] = (), epochs: Sequence[tuple[str, bytes]] = ()
    ) -> FlushTask:
        """A task that syncs these files, and the partition's directory entry and metadata until they are durable."""
        directories, written = [self.path] if snapshots or epochs else [], []
        if not self.is_entry_durable:
            directories, written = [self.path, self._log_dir], [f"{self.path}/{PARTITION_METADATA}"]
        return FlushTask(
            self._disk,
            [*files, *snapshots],
            lambda: not self.is_offline,  # else a failure does not count
            replacements=epochs,
            written=written,
            directories=directories,
            run_guarded=self.run_guarded,
        )

    def sync_entry(self) -> None:
        """Make the partition's directory entry durable."""
        if not self.is_entry_durable:
            self.flush_task()()
            self.is_entry_durable = True


def index_path(log_dir: str, topic_id: bytes, partition: int) -> str:
    """The directory of the key index of a partition that has none."""
    return f"{log_dir}/commitlog/{topic_id.hex()}-{partition}"


def _drain(paths: list[str]) -> list[str]:
    """Remove and return the items of a list to which a thread appends."""
    taken = paths.copy()
    del paths[: len(taken)]
    return taken
