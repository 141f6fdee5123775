"""One log directory in service: its lock, logs, checkpoints and clean-shutdown marker.

FORMAT   the offset checkpoints (checkpoint_file.py), one per field of `Checkpoint`; after a clean shutdown the marker
         `.kafka_cleanshutdown`: {"version":0,"brokerEpoch":n}, and the summaries of the logs (summary_file.py); an empty
         `.lock`, which Apache Kafka locks too
RULES    1. A corrupt checkpoint is ignored with a warning.
         2. If another directory has its path, because the disk was unmounted or replaced, nothing is written: the log
            directory counts as failed.
         3. The marker and the summaries are deleted durably. Without a marker the directory's entries are synced first: a
            killed process may have left entries that are visible but not durable.
         4. A log start offset is checkpointed when its log exists durably. A log without a directory that was never flushed
            exists only in its frames: the commit log is synced before. Else a loss of power could leave the start of a log
            that is gone, and the partition would start at 0 again.
         5. A log that a future replica in another directory replaces keeps its checkpointed offsets here until it is gone: if
            that directory fails first, the log is used again after the next start.
         6. An update for some logs keeps the offsets that the last one had for the others: thousands of moves or truncations
            must not gather all logs each time. Every MAX_PARTIAL_UPDATES-th one does, because updates end a `checkpoint`.
NOT HERE The list of directories and logs (log_manager.py); writing checkpoints (checkpoint_writer.py).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import Final

from storage.directories.checkpoint_writer import CheckpointWriter, Offsets, Work
from storage.directories.partition_directory import create_partition_dir
from storage.directories.summary_file import LOG_SUMMARIES, read_summaries, write_summaries
from storage.engine import SharedLog
from storage.io.checkpoint_file import (
    FIRST_DIRTY,
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    CorruptCheckpoint,
    TopicPartition,
    read_offsets,
)
from storage.io.deferred_file_ops import sequential
from storage.io.disk import Disk, StorageError
from storage.io.file_lock import FileLock
from storage.io.path_guard import LockContext
from storage.log.log import Log
from storage.log.log_offsets import NEVER_CLEANED, Checkpoint
from storage.log.log_summary import LogSummary

CheckpointSteps = Generator[None, None, Work | None]
"""The steps of a checkpoint, and the work that they result in."""

LOCK: Final = ".lock"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
NO_BROKER_EPOCH: Final = -1
SYNCED_ONE_BY_ONE: Final = 4
MAX_PARTIAL_UPDATES: Final = 64

# In the order of Checkpoint; with the consequence of ignoring each.
_CHECKPOINTS: Final = {
    RECOVERY_POINTS: "logs that were not closed cleanly are checked completely",
    LOG_STARTS: "logs start at their first segment, deleted records there reappear",
    HIGH_WATERMARKS: "they are determined again",
    FIRST_DIRTY: "compaction starts at the log start",
}

_log = logging.getLogger("barnabas.storage")


class LogDirectory:
    """A log directory and its logs."""

    __slots__ = (
        "_device_and_inode", "_disk", "_partial_updates", "_replaced", "_unflushed", "broker_epoch", "checkpoints",
        "directory_id", "is_writing", "logs", "names", "path", "summaries", "was_clean",
    )  # fmt: skip

    def __init__(self, disk: Disk, path: str, directory_id: bytes, lock: LockContext) -> None:
        self._disk = disk
        self.path = path
        self.directory_id = directory_id
        self.logs: dict[TopicPartition, Log] = {}
        self._replaced: dict[TopicPartition, Checkpoint] = {}  # rule 5
        self._partial_updates = 0  # since all logs were gathered
        self._unflushed: SharedLog | None = None  # the commit log that the last update syncs (rule 4)
        self.names: list[str] = []
        """The names of its entries, at the start."""
        self.was_clean = False
        """Whether the last shutdown was clean."""
        self.summaries: dict[str, LogSummary] = {}
        """The summaries that it left, by name of the log; the logs take them over."""
        self.broker_epoch = NO_BROKER_EPOCH
        self._device_and_inode: tuple[int, int] | None = None
        self.checkpoints = CheckpointWriter(disk, path, lock)
        self.is_writing = False
        """Whether work of `checkpoint` is pending or running."""

    def begin_use(self) -> None:
        """Take the marker, or sync the directory, before any other access (rule 3)."""
        self.check()
        self._take_marker()
        if not self.was_clean:
            self._disk.sync_dir(self.path)
        self.names = self._disk.listdir(self.path)

    def _take_marker(self) -> None:
        disk, marker = self._disk, f"{self.path}/{CLEAN_SHUTDOWN}"
        if not disk.exists(marker):
            disk.unlink(f"{self.path}/{LOG_SUMMARIES}", missing_ok=True)
            return
        try:
            self.broker_epoch = int(json.loads(disk.read(marker))["brokerEpoch"])
        except (ValueError, KeyError, TypeError):
            self.broker_epoch = NO_BROKER_EPOCH  # older Kafka versions write an empty file, also after a clean shutdown
        self.summaries = read_summaries(disk, self.path, self.broker_epoch)
        disk.unlink(f"{self.path}/{LOG_SUMMARIES}", missing_ok=True)
        disk.unlink(marker)
        disk.sync_dir(self.path)
        self.was_clean = True

    def write_clean_marker(self, broker_epoch: int) -> None:
        """Write the summaries and the clean-shutdown marker: all logs here were closed durably."""
        self._write_summaries(broker_epoch)
        marker = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()
        self._disk.replace_atomically(f"{self.path}/{CLEAN_SHUTDOWN}", marker)

    def _write_summaries(self, broker_epoch: int) -> None:
        found = {log.name: log.stamped_summary() for log in self.logs.values()}
        summaries = {name: summary for name, summary in found.items() if summary is not None}
        if broker_epoch == NO_BROKER_EPOCH or not summaries:
            return  # the next marker may have the same epoch
        try:
            write_summaries(self._disk, self.path, broker_epoch, summaries)
        except StorageError as error:
            if not error.is_full:
                raise
            _log.warning("%s The next use of each log takes longer", error)

    def check(self) -> None:
        """Raise StorageError if the path is another directory now (rule 2)."""
        found = self._disk.device_and_inode(self.path)
        self._device_and_inode = self._device_and_inode or found
        if found != self._device_and_inode:
            raise StorageError("use", self.path, OSError(0, "it is another directory now"))

    def create_partition_dir(self, path: str, topic_id: bytes) -> None:
        """Create the directory of a partition here."""
        self.check()
        create_partition_dir(self._disk, path, topic_id)

    def read_checkpoints(self) -> dict[TopicPartition, Checkpoint]:
        """The checkpointed offsets of each log."""
        contents = self.checkpoints.contents = {name: self._read(name) for name in _CHECKPOINTS}
        self.checkpoints.written = contents.copy()
        points, starts, watermarks, first_dirty = contents.values()
        return {
            key: Checkpoint(
                points.get(key, 0), starts.get(key, 0), watermarks.get(key, 0), first_dirty.get(key, NEVER_CLEANED)
            )
            for key in {key for offsets in contents.values() for key in offsets}
        }

    def _read(self, name: str) -> Offsets:
        try:
            return read_offsets(self._disk, f"{self.path}/{name}")
        except CorruptCheckpoint as error:
            _log.warning("%s Ignoring it: %s", error, _CHECKPOINTS[name])
            return {}

    def update_checkpoints(
        self,
        overrides: Mapping[TopicPartition, Checkpoint] = {},  # never modified
        *,
        may_be_dropped: bool = False,
    ) -> Work | None:
        """Work that writes the changed checkpoint files, with `overrides` for some logs (rule 6); None if nothing changed.

        It must run before the next operation, unless it `may_be_dropped`. All logs are gathered in one turn.
        """
        gathered = _Gathered()
        if overrides and self.checkpoints.contents and self._partial_updates < MAX_PARTIAL_UPDATES:
            self._partial_updates += 1
            gathered.unflushed = self._unflushed
            for name, offsets in self.checkpoints.contents.items():
                gathered.contents[name].update(offsets)
            for key, known in overrides.items():
                gathered.remove(key)
                if key in self.logs:
                    self._gather(gathered, key, self.logs[key], known)
        else:
            self._partial_updates = 0
            for key, log in self.logs.items():
                self._gather(gathered, key, log, overrides.get(key) or log.checkpoint)
        return self._update(gathered, may_be_dropped=may_be_dropped)

    def _gather(self, gathered: _Gathered, key: TopicPartition, log: Log, known: Checkpoint) -> None:
        if known.log_start_offset and _exists_only_in_frames(log):
            gathered.unflushed = log.open().engine.shared_log
        if log.files.has_pending_ops:  # a compacted segment is perhaps not in place yet (segment_swap.py rule 2)
            written = self.checkpoints.contents.get(FIRST_DIRTY, {})
            first_dirty_offset = min(known.first_dirty_offset, written.get(key, NEVER_CLEANED))
            known = known._replace(first_dirty_offset=first_dirty_offset)
        gathered.add(key, known)

    def _update(self, gathered: _Gathered, *, in_background: bool = False, may_be_dropped: bool = False) -> Work | None:
        for key, known in self._replaced.items():
            if key not in self.logs:
                gathered.add(key, known)
        work = self.checkpoints.update(gathered.contents, in_background=in_background, may_be_dropped=may_be_dropped)
        self._unflushed = unflushed = gathered.unflushed
        return work if work is None or unflushed is None else sequential([unflushed.flush_task(), work])

    def keep_checkpoint(self, log: Log) -> None:
        """Keep the checkpointed offsets of a log that is being replaced until `forget_checkpoint` (rule 5).

        Its log start offset is that of the last checkpoint, if rule 4 requires a sync for another one.
        """
        key, known = (log.topic, log.partition), log.checkpoint
        if _exists_only_in_frames(log):
            start_offset = self.checkpoints.contents.get(LOG_STARTS, {}).get(key, 0)
            known = known._replace(log_start_offset=start_offset)
        self._replaced[key] = known

    def forget_checkpoint(self, partition: TopicPartition) -> None:
        """The replaced log of this partition, if there is one, is gone; any thread."""
        self._replaced.pop(partition, None)

    def lower_checkpoint(self, log: Log, end_offset: int, start_offset: int) -> Work | None:
        """Work that writes what the checkpoint of a log will be after a truncation; None if nothing changes.

        It is dropped if the log is deleted before.
        """
        known = log.checkpoint
        lowered = Checkpoint(
            log.recovery_point_within(end_offset),
            start_offset,
            min(known.high_watermark, end_offset),
            min(known.first_dirty_offset, end_offset),
        )
        return self.update_checkpoints({(log.topic, log.partition): lowered}, may_be_dropped=True)

    def checkpoint(self) -> CheckpointSteps:
        """Gather the offsets, one log per step; the result is work that writes them in the background, if they have changed.

        An update between the steps may have lowered offsets that were gathered before: the result is None then, and the next
        checkpoint writes them. `is_writing` is true until the work has run.
        """
        self.is_writing = True
        logs, updates, gathered = self.logs.copy(), self.checkpoints.updates, _Gathered()
        for key, log in logs.items():
            self._gather(gathered, key, log, log.checkpoint)
            yield
        work = None
        if self.checkpoints.updates == updates:
            if logs != self.logs:
                for key, log in logs.items():
                    if self.logs.get(key) is not log:
                        gathered.remove(key)
            work = self._update(gathered, in_background=True)
            self._partial_updates = 0
        self.is_writing = work is not None
        return None if work is None else partial(self._write_checkpoints, work)

    def _write_checkpoints(self, work: Work) -> None:
        try:
            self.check()
            work()
        finally:
            self.is_writing = False

    def close_all(self) -> None:
        """Close all open logs durably, including those closed without a sync before."""
        open_logs = [log for log in self.logs.values() if log.is_open]
        unsynced = [log for log in self.logs.values() if log.is_closed_unsynced]
        if len(open_logs) <= SYNCED_ONE_BY_ONE and not unsynced:
            for log in open_logs:
                log.close()
            return

        def close() -> None:
            for log in open_logs:
                log.close(sync=False)

        def confirm_flushed() -> None:
            for log in open_logs:
                log.confirm_flushed()

        self._disk.sync_all(self.path, close)
        self._disk.sync_all(self.path, confirm_flushed)


def _exists_only_in_frames(log: Log) -> bool:
    """Whether an open log has neither a directory nor a durable record: it is lost if the frames of its commit log are lost."""
    return log.opened is not None and not log.files.has_directory and not log.recovery_point


class _Gathered:
    """The offsets of some logs, by checkpoint file."""

    def __init__(self) -> None:
        self.contents: dict[str, Offsets] = {name: {} for name in _CHECKPOINTS}
        self.unflushed: SharedLog | None = None
        """The commit log, if rule 4 requires its sync."""

    def add(self, key: TopicPartition, known: Checkpoint) -> None:
        """Add those of a log."""
        points, starts, watermarks, first_dirty = self.contents.values()
        points[key], start_offset, watermarks[key], first_dirty_offset = known
        if start_offset:
            starts[key] = start_offset
        if first_dirty_offset != NEVER_CLEANED:
            first_dirty[key] = first_dirty_offset

    def remove(self, key: TopicPartition) -> None:
        """Remove those of a log."""
        for offsets in self.contents.values():
            offsets.pop(key, None)


def lock_directories(disk: Disk, directories: Sequence[str]) -> list[FileLock]:
    """Lock all existing log directories, or none; raises StorageError if another process holds one of the locks."""
    locks: list[FileLock] = []
    try:
        for directory in directories:
            locks.append(disk.lock(f"{directory}/{LOCK}"))  # noqa: PERF401  # released below on failure
    except StorageError:
        for lock in locks:
            lock.release()
        raise
    return locks
