"""All logs of this broker: load, create, delete, close (Kafka: LogManager).

FORMAT   in each log directory: `.lock`, the offset checkpoints (checkpoint_file.py), partition directories
         (partition_directory.py), and after a clean shutdown a marker (log_directory.py)
RULES    1. The clean-shutdown markers are taken before anything else changes; one is written last, and only in a directory
            where every log was closed durably.
         2. After an unclean stop every log is recovered. A log with more than LAZY_RECOVERY_BYTES to read is recovered at
            the start (`recover`), others at their first use or at the shutdown, up to RECOVERED_AT_SHUTDOWN of them;
            a directory with unrecovered logs is not marked clean.
         3. A log directory with a failed disk goes offline for good, alone: its logs refuse every use, nothing is
            written there, and its partitions are not created elsewhere. A partition of a missing directory is created in
            another one if it can be copied from other brokers and no directory is offline: a disk was replaced.
         4. A partition directory with another topic id belongs to a deleted topic: it is renamed as a stray. One without
            a directory is deleted: its topic id does not return.
         5. Deletion renames the directory; the files are deleted after `log.segment.delete.delay.ms`, as work for a
            thread (deletions.py). Directories are created and renamed through `submit_directory_op` and not accessed before. A
            name that is used again gets the same log directory, after the rename is durable and no checkpoint has an offset of
            the previous log.
         6. `recover` runs in steps, one log per step.
NOT HERE One log (log.py), the directory of a new log (log_placement.py), how logs are constructed (log_construction.py), future
         replicas (future_logs.py), periodic work (log_maintenance.py), meta.properties
         (replication/metadata_log/node_identity.py).
         Why recovery may wait: docs/decisions/0005-recovery-on-first-use.md
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Final

from protocol.errors import KafkaError
from storage.config.log_config import LogConfig
from storage.directories.checkpoint_writer import Work
from storage.directories.commit_logs import CommitLogs
from storage.directories.deletions import Deletions
from storage.directories.engines import Engines
from storage.directories.future_replica import (
    copies_without_log,
    finish_interrupted_moves,
)
from storage.directories.log_construction import creation, logs_in, new_log
from storage.directories.log_directory import NO_BROKER_EPOCH, LogDirectory
from storage.directories.log_placement import LogPlacement
from storage.directories.partition_directory import DELETED, STRAY, parse_future_dir_name
from storage.io.checkpoint_file import RECOVERY_POINTS, TopicPartition
from storage.io.deferred_file_ops import DiskSpace, FileOp, no_op
from storage.io.disk import Disk, StorageError
from storage.io.disk_lookup import DiskLookup
from storage.io.disk_usage import DiskUsage
from storage.io.file_handle_cache import UNLIMITED, FileHandleCache
from storage.io.file_lock import FileLock
from storage.io.path_guard import LockContext, PathGuard
from storage.log.log import Log
from storage.log.log_offsets import Checkpoint
from storage.log.producer_state import DEFAULT_EXPIRATION_MS

LAZY_RECOVERY_BYTES: Final = 1024 * 1024
RECOVERED_AT_SHUTDOWN: Final = 200

_log = logging.getLogger("barnabas.storage")


class LogManager:
    """The logs of all log directories."""

    def __init__(
        self,
        disk: Disk,
        directories: Mapping[str, bytes],
        config: LogConfig,
        *,
        random_bytes: Callable[[int], bytes],
        failed: Mapping[str, StorageError] = {},  # never modified
        locks: Sequence[FileLock] = (),
        max_open_files: int = UNLIMITED,
        new_lock: Callable[[], LockContext] = nullcontext,
    ) -> None:
        """Create the object; `load` accesses the disk.

        `directories`: directory id by path; `failed`: log directories that have failed already; `locks`: released at the
        shutdown; `max_open_files`: the limit for all logs together; `new_lock`: creates a mutex if threads are used.
        """
        self.disk = disk
        self._config = config
        self._random_bytes = random_bytes
        self.path_guard = PathGuard(new_lock)
        self._locks = locks
        self.file_handles = FileHandleCache(disk, max_open_files)
        """The open files of all logs."""
        self.commit_logs = CommitLogs(disk, self.file_handles, random_bytes, new_lock)
        self.engines = Engines(disk, self.commit_logs, self.file_handles, random_bytes, new_lock)
        self.logs: dict[TopicPartition, Log] = {}
        self.directories: dict[str, LogDirectory] = {
            path: LogDirectory(disk, path, id_, new_lock()) for path, id_ in directories.items()
        }
        """Log directories in service, by path."""
        self.commit_logs.check_directory = self._check_directory
        self.directory_ids = dict(directories)
        """Directory id by path of those in service at the start."""
        self.offline: dict[str, StorageError] = dict(failed)
        """Failed log directories and their errors."""
        self.placement = LogPlacement(self.directories, self.offline)
        """Chooses the directory of each new log."""
        self.producer_expiration_ms = DEFAULT_EXPIRATION_MS
        self.deletion_delay_ms = config.file_delete_delay_ms
        """Delay before a deleted topic's files are removed: the broker's setting, as in Apache Kafka."""
        self._offline_logs: dict[TopicPartition, bytes | None] = {}  # topic id, if known
        self._has_unknown_logs = bool(failed)
        self.strays: list[Log] = []
        """Logs of deleted topics whose names are used again: their directory was missing at the deletion."""
        self.deletions = Deletions(disk, self.engines, self.path_guard, random_bytes, self._submit_directory_op)
        self.submit: Callable[[str, FileOp], None] = lambda _, op: op()
        """Runs file operations of the logs in a log directory: at once unless replaced."""
        self._submits = {path: partial(self._submit, path) for path in directories}
        self.submit_directory_op: Callable[[str, FileOp], None] = lambda _, op: op()
        """Creates and renames log directories' entries: likewise."""
        self.submit_reclaim_op: Callable[[str, FileOp], None] = lambda _, op: op()
        """Runs operations that free space in a full log directory: likewise."""
        self.disk_space = {path: DiskSpace(partial(self._submit_reclaim, path)) for path in directories}
        self.future_logs: dict[TopicPartition, Log] = {}
        """Future replicas of moving logs, in their new directories (future_logs.py)."""
        self.interrupted_moves: list[tuple[TopicPartition, str]] = []
        """The moves that the last stop interrupted: the partition, and the path of its future replica."""

    # ---- start and shutdown ------------------------------------------------------------------------------

    def load(self, id_of: Callable[[str], bytes | None] = lambda _: None) -> None:
        """List the logs of all directories; opens none. `id_of` returns the current topic id of a name.

        Raises:
            StorageError: no directory is left in service, or a partition of one topic is in two of them.
        """
        for step in (LogDirectory.begin_use, self._open_commit_log, self._finish_moves, partial(self._load, id_of)):
            for directory in list(self.directories.values()):
                try:
                    step(directory)
                except StorageError as error:
                    self.go_offline(directory.path, error)
                    self._has_unknown_logs = True
        if not self.directories:
            raise next(iter(self.offline.values()))

    def _open_commit_log(self, directory: LogDirectory) -> None:
        self.commit_logs.open(directory.path, directory.names)

    def _finish_moves(self, directory: LogDirectory) -> None:
        has_log = self.commit_logs.has_partition
        names = {path: log_dir.names for path, log_dir in self.directories.items()}
        if not self.offline:
            finish_interrupted_moves(self.disk, directory.path, names, has_log)
        for _, key in copies_without_log(self.disk, directory.path, names, has_log):
            self._offline_logs[key] = None  # the log may be in a failed directory

    def _load(self, id_of: Callable[[str], bytes | None], directory: LogDirectory) -> None:
        path = directory.path
        self.engines.drop_leftovers(path, directory.names)
        for name in directory.names:
            if name.endswith(DELETED):
                self.deletions.add(path, [f"{path}/{name}"], has_delay=False, since_ms=0)
            moved = parse_future_dir_name(name)
            if moved is not None:
                self.interrupted_moves.append((moved, f"{path}/{name}"))
        for log in logs_in(self.disk, directory, self.engines, self._config):
            self._add(log, id_of)

    def _add(self, log: Log, id_of: Callable[[str], bytes | None]) -> None:
        self.attach(log)
        key = log.topic, log.partition
        other = self.logs.setdefault(key, log)
        if other is not log:
            self._select_log(log, other, id_of(log.topic))
        selected = self.logs[key]
        for found in (other, log):  # in this order, if both are in one directory
            if found is selected or found.directory != selected.directory:
                self.directories[found.directory].logs[key] = found

    def _select_log(self, log: Log, other: Log, topic_id: bytes | None) -> None:
        """Of two logs with one name, keep the log of the current topic, or the one whose topic id is unknown."""
        if log.files.topic_id == other.files.topic_id:
            raise StorageError(
                "use", log.directory, OSError(0, f"{log.name} is in {other.directory} too; remove one of them")
            )
        if log.files.topic_id == topic_id or (log.files.topic_id is None and other.files.topic_id != topic_id):
            log, other = other, log
        self.logs[log.topic, log.partition] = other
        self.strays.append(log)

    @property
    def previous_broker_epoch(self) -> int:
        """The broker epoch of the last run; -1 unless every directory was shut down cleanly."""
        epochs = {directory.broker_epoch for directory in self.directories.values()}
        return epochs.pop() if len(epochs) == 1 and not self.offline else NO_BROKER_EPOCH

    def recover(self) -> Iterator[Log]:
        """Recover the logs that must not wait for their first use, one per step (rule 2)."""
        for log in list(self.logs.values()):
            if log.needs_recovery and not log.is_offline and not self.engines.is_unidentified(log):
                try:
                    if log.bytes_to_recover() <= LAZY_RECOVERY_BYTES:
                        continue
                    log.open()
                except StorageError as error:
                    self.go_offline(log.directory, error)
                except KafkaError as error:  # every request to the partition gets the same error
                    _log.warning("%s cannot be opened: %s", log.name, error.message or error.code.name)
                yield log

    def shutdown(self, broker_epoch: int = NO_BROKER_EPOCH) -> None:
        """Close every log durably and write the markers (rule 1); a directory that fails is recovered at the next start.

        `broker_epoch` is that of this run; a run that was not registered keeps that of the run before (Kafka writes -1).
        """
        epoch = self.previous_broker_epoch if broker_epoch == NO_BROKER_EPOCH else broker_epoch
        self.commit_logs.begin_shutdown()
        for directory in list(self.directories.values()):
            try:
                is_clean = self._recover_rest(directory)
                directory.close_all()
                self.commit_logs.close(directory.path)
                work = directory.update_checkpoints()
                if work is not None:
                    work()
                self.commit_logs.remove_unused(directory.path)
                if is_clean:
                    directory.write_clean_marker(epoch)
            except StorageError as error:
                self.go_offline(directory.path, error)
        for lock in self._locks:
            lock.release()

    def _recover_rest(self, directory: LogDirectory) -> bool:
        """Recover unused logs up to a limit; returns whether the directory may be marked clean."""
        if self.deletions.waits_for_rename(directory.path):
            return False  # a replaced log was not renamed: the directory of its future replica has failed
        rest = [log for log in directory.logs.values() if log.needs_recovery]
        if len(rest) > RECOVERED_AT_SHUTDOWN or any(map(self.engines.is_unidentified, rest)):
            return False
        for log in rest:
            try:
                log.open()
            except KafkaError as error:
                _log.warning("%s cannot be opened: %s", log.name, error.message or error.code.name)
                return False
        return True

    def go_offline(self, directory: str, error: StorageError) -> None:
        """Take a log directory out of service (rule 3); does nothing the second time."""
        failed = self.directories.pop(directory, None)
        if failed is None:
            return
        self.offline[directory] = error
        self.commit_logs.go_offline(directory)
        for key, log in failed.logs.items():
            log.go_offline()
            self._offline_logs[key] = log.files.cached_topic_id
            if self.logs.get(key) is log:
                del self.logs[key]
        for key, copy in list(self.future_logs.items()):
            if copy.directory == directory:
                copy.go_offline()
                del self.future_logs[key]

    # ---- logs --------------------------------------------------------------------------------------------

    def get_or_create(
        self,
        topic: str,
        partition: int,
        topic_id: bytes,
        config: LogConfig,
        *,
        directory_id: bytes | None = None,
        is_new: bool = True,
        has_copies: bool = False,
    ) -> Log:
        """The log of a partition; created if it does not exist.

        `directory_id`: of the directory that should have it, if known; `is_new`: whether the partition was never used, so
        that it cannot be in a missing directory; `has_copies`: whether all of it can be copied from other brokers.

        Raises:
            StorageError: it cannot be created, or is in an offline or missing directory.
        """
        key = (topic, partition)
        log = self.logs.get(key)
        if log is not None:
            if log.files.topic_id is None:
                log.files.assign_topic_id(topic_id)
            if log.files.topic_id == topic_id:
                log.update_config(config)
                return log
            self.rename_to_stray(log)
        assigned = next((path for path, known in self.directories.items() if known.directory_id == directory_id), None)
        is_replaced = has_copies and not self.offline
        is_missing = directory_id is not None and assigned is None and not is_replaced
        may_be_missing = self._has_unknown_logs and not is_new and directory_id is None
        if is_missing or may_be_missing or self._offline_logs.get(key, b"") in (None, topic_id):
            why = ", ".join(f"{path} is offline" for path in self.offline) or "its log directory is missing"
            raise StorageError("find the log of", f"{topic}-{partition}", OSError(0, why))
        return self._create(key, topic_id, config, assigned)

    def _create(self, key: TopicPartition, topic_id: bytes, config: LogConfig, assigned: str | None) -> Log:
        """A new log; `assigned`: the path of the directory that should have it, if known."""
        log_dir, has_previous = self.placement.take(key, assigned)
        log = new_log(self.disk, log_dir, self.engines, *key, topic_id, config)
        self.attach(log)
        self.logs[key] = log_dir.logs[key] = log
        try:
            if has_previous:
                self.submit_directory_op(log_dir.path, partial(self.disk.sync_dir, log_dir.path))
            create = creation(log_dir, self.engines, log)
            is_in_checkpoint = log_dir.checkpoints.may_contain(key)
            if is_in_checkpoint and log_dir.checkpoints.will_contain(key):
                self.write_checkpoints(log_dir)  # for all deleted logs; the new ones wait for the same work
            if has_previous or is_in_checkpoint:
                create = create or no_op  # so that the log is not used before
            if create is not None:
                log.files.submit_op(create, partial(self.submit_directory_op, log_dir.path))
        except StorageError:
            del self.logs[key], log_dir.logs[key]
            raise
        return log

    def delete(self, log: Log) -> None:
        """Delete a log: its directory is renamed now and removed later."""
        renamed = self._remove_log(log, DELETED)
        if log.files.has_directory:
            self.deletions.add(log.directory, renamed, has_delay=True)

    def rename_to_stray(self, log: Log) -> None:
        """Take the log of a topic that the cluster does not have out of service: its directory is kept, frames are dropped.

        A move of it that the last stop interrupted is forgotten, and its copy deleted.
        """
        key = (log.topic, log.partition)
        if self.logs.get(key) is log:
            copies = [path for moved, path in self.interrupted_moves if moved == key]
            self.interrupted_moves = [(moved, path) for moved, path in self.interrupted_moves if moved != key]
            for path in copies:
                self.deletions.submit_copy(path, key)
        self._remove_log(log, STRAY if log.files.has_directory else DELETED)

    def _remove_log(self, log: Log, suffix: str) -> list[str]:
        """Remove a log from service; the returned list gets its new path after the rename."""
        key = (log.topic, log.partition)
        log_dir = self.directories.get(log.directory)
        if log_dir is None:
            raise self.offline[log.directory]
        log.delete()
        for logs in (log_dir.logs, self.logs):
            if logs.get(key) is log:
                del logs[key]
        self.placement.remember(key, log_dir.path)
        return self.deletions.submit_rename(log, suffix)

    def attach(self, log: Log) -> None:
        """Give a log what it shares with the other logs of its log directory."""
        log.files.submit = self._submits[log.directory]
        log.files.path_guard = self.path_guard
        log.files.disk_space = self.disk_space[log.directory]

    def _check_directory(self, directory: str) -> None:
        log_dir = self.directories.get(directory)
        if log_dir is not None:  # else it is offline
            log_dir.check()

    def _submit(self, directory: str, op: FileOp) -> None:
        self.submit(directory, op)

    def _submit_directory_op(self, directory: str, op: FileOp) -> None:
        self.submit_directory_op(directory, op)

    def _submit_reclaim(self, directory: str, op: FileOp) -> None:
        self.submit_reclaim_op(directory, op)

    # ---- checkpoints -------------------------------------------------------------------------------------

    def truncation(self, log: Log, offset: int) -> DiskLookup | None:
        """The lookup that truncates an open log, after lowering the checkpoints that would point into newer records.

        None if there are no records to delete.
        """
        lower = no_op
        if offset < log.log_end_offset:
            lower = self._lower_checkpoint(log, offset, log.log_start_offset)
        return log.truncation(offset, lower)

    def full_truncation(self, log: Log, offset: int, log_start_offset: int) -> DiskLookup:
        """The lookup that empties an open log (`OpenLog.begin_full_truncation`), after lowering the checkpoints likewise."""
        lookup = log.truncation(offset, self._lower_checkpoint(log, offset, log_start_offset), log_start_offset)
        assert lookup is not None
        return lookup

    def write_checkpoints(
        self, log_dir: LogDirectory, overrides: Mapping[TopicPartition, Checkpoint] | None = None
    ) -> None:
        """Write the checkpoints before directory operations that are submitted later."""
        work = log_dir.update_checkpoints(overrides or {})
        if work is not None:
            self.submit_directory_op(log_dir.path, work)

    def _lower_checkpoint(self, log: Log, end_offset: int, start_offset: int) -> Work:
        return self.directories[log.directory].lower_checkpoint(log, end_offset, start_offset) or no_op

    def written_recovery_point(self, log: Log) -> int:
        """The recovery point on disk: after a crash, recovery starts with the segment that contains it."""
        log_dir = self.directories.get(log.directory)
        written = {} if log_dir is None else log_dir.checkpoints.written.get(RECOVERY_POINTS, {})
        return written.get((log.topic, log.partition), 0)

    def disk_usage(self, directory: str, logs: Iterable[Log]) -> DiskUsage:
        """A measurement, to be run by a thread, of a log directory and some of its logs."""
        usage = self.engines.usage
        return DiskUsage(self.disk, directory, {log.path: usage(log.path, log.files.cached_topic_id) for log in logs})
